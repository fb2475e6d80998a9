pub const G4_WARP: _bindgen_ty_1 = 32;
pub const G4_TILE_M: _bindgen_ty_1 = 16;
pub const G4_TILE_N: _bindgen_ty_1 = 8;
pub const G4_TILE_K: _bindgen_ty_1 = 16;
pub const G4_ROW_LANES: _bindgen_ty_1 = 256;
pub const G4_SLAB_STEPS_MIN: _bindgen_ty_1 = 11;
pub const G4_ROWS_DECODE_MAX: _bindgen_ty_1 = 128;
pub const G4_GEMM_THREADS: _bindgen_ty_1 = 256;
pub const G4_GEMM_TILED_ROWS: _bindgen_ty_1 = 128;
pub const G4_GEMM_TILED_TOKENS: _bindgen_ty_1 = 64;
pub const G4_ROW_THREADS: _bindgen_ty_1 = 256;
pub const G4_ATTN_THREADS: _bindgen_ty_1 = 256;
pub const G4_ATTN_ROWS: _bindgen_ty_1 = 16;
pub const G4_SLOT_STOP_IDS: _bindgen_ty_1 = 16;
pub const G4_EOS_IDS: _bindgen_ty_1 = 16;
pub const G4_SCATTER_RUNS: _bindgen_ty_1 = 8;
pub const G4_SAMPLE_GROUP: _bindgen_ty_1 = 256;
pub const G4_SAMPLE_GROUPS_MAX: _bindgen_ty_1 = 1024;
pub const G4_SAMPLE_THREADS: _bindgen_ty_1 = 512;
pub const G4_SAMPLE_CANDIDATES: _bindgen_ty_1 = 4096;
pub const G4_SAMPLE_SHARED_BYTES: _bindgen_ty_1 = 45568;
pub const G4_EXPERTS_MAX: _bindgen_ty_1 = 256;
pub const G4_EXPERTS_TOP_MAX: _bindgen_ty_1 = 16;
pub const G4_EXPERT_TILE_TOKENS: _bindgen_ty_1 = 8;
pub const G4_EXPERT_TILE_TOKENS_MANY: _bindgen_ty_1 = 64;
pub const G4_LOGPROBS_MAX: _bindgen_ty_1 = 20;
pub const G4_BIAS_MAX: _bindgen_ty_1 = 2048;
pub const G4_BAD_WORDS_MAX: _bindgen_ty_1 = 128;
pub const G4_BAD_WORD_TOKENS_MAX: _bindgen_ty_1 = 16;
pub const G4_BAD_WORD_IDS_MAX: _bindgen_ty_1 = 1024;
pub type _bindgen_ty_1 = ::std::os::raw::c_uint;
pub const G4_SAMPLING_SUMS: _bindgen_ty_2 = 1;
pub const G4_SAMPLING_LOGPROBS: _bindgen_ty_2 = 2;
pub const G4_SAMPLING_MASK: _bindgen_ty_2 = 4;
pub const G4_SAMPLING_BIAS: _bindgen_ty_2 = 8;
pub const G4_SAMPLING_PENALTIES: _bindgen_ty_2 = 16;
pub const G4_SAMPLING_WORDS: _bindgen_ty_2 = 32;
pub const G4_SAMPLING_PROCESSED: _bindgen_ty_2 = 64;
pub type _bindgen_ty_2 = ::std::os::raw::c_uint;
pub const G4_TOKEN_NONE: _bindgen_ty_3 = -1;
pub const G4_TOKEN_NAN: _bindgen_ty_3 = -2;
pub const G4_TOKEN_MASKED: _bindgen_ty_3 = -3;
pub const G4_TOKEN_BAD_STATE: _bindgen_ty_3 = -4;
pub type _bindgen_ty_3 = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4Sampling {
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub typical_p: f32,
    pub xtc_probability: f32,
    pub xtc_threshold: f32,
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub top_k: i32,
    pub min_tokens: i32,
    pub logprobs: i32,
    pub penalty_table: i32,
    pub bias_count: i32,
    pub flags: u32,
    pub choice: u32,
    pub seed: [u32; 2usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4Sampling"][::std::mem::size_of::<G4Sampling>() - 72usize];
    ["Alignment of G4Sampling"][::std::mem::align_of::<G4Sampling>() - 4usize];
    ["Offset of field: G4Sampling::temperature"][::std::mem::offset_of!(G4Sampling, temperature) - 0usize];
    ["Offset of field: G4Sampling::top_p"][::std::mem::offset_of!(G4Sampling, top_p) - 4usize];
    ["Offset of field: G4Sampling::min_p"][::std::mem::offset_of!(G4Sampling, min_p) - 8usize];
    ["Offset of field: G4Sampling::typical_p"][::std::mem::offset_of!(G4Sampling, typical_p) - 12usize];
    ["Offset of field: G4Sampling::xtc_probability"][::std::mem::offset_of!(G4Sampling, xtc_probability) - 16usize];
    ["Offset of field: G4Sampling::xtc_threshold"][::std::mem::offset_of!(G4Sampling, xtc_threshold) - 20usize];
    ["Offset of field: G4Sampling::repetition_penalty"]
        [::std::mem::offset_of!(G4Sampling, repetition_penalty) - 24usize];
    ["Offset of field: G4Sampling::frequency_penalty"][::std::mem::offset_of!(G4Sampling, frequency_penalty) - 28usize];
    ["Offset of field: G4Sampling::presence_penalty"][::std::mem::offset_of!(G4Sampling, presence_penalty) - 32usize];
    ["Offset of field: G4Sampling::top_k"][::std::mem::offset_of!(G4Sampling, top_k) - 36usize];
    ["Offset of field: G4Sampling::min_tokens"][::std::mem::offset_of!(G4Sampling, min_tokens) - 40usize];
    ["Offset of field: G4Sampling::logprobs"][::std::mem::offset_of!(G4Sampling, logprobs) - 44usize];
    ["Offset of field: G4Sampling::penalty_table"][::std::mem::offset_of!(G4Sampling, penalty_table) - 48usize];
    ["Offset of field: G4Sampling::bias_count"][::std::mem::offset_of!(G4Sampling, bias_count) - 52usize];
    ["Offset of field: G4Sampling::flags"][::std::mem::offset_of!(G4Sampling, flags) - 56usize];
    ["Offset of field: G4Sampling::choice"][::std::mem::offset_of!(G4Sampling, choice) - 60usize];
    ["Offset of field: G4Sampling::seed"][::std::mem::offset_of!(G4Sampling, seed) - 64usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4Slot {
    pub live: i32,
    pub position: i32,
    pub last_token: i32,
    pub output_index: i32,
    pub output_limit: i32,
    pub position_limit: i32,
    pub generation: u32,
    pub ignore_eos: i32,
    pub stop_count: i32,
    pub stop_ids: [i32; 16usize],
    pub sampling: G4Sampling,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4Slot"][::std::mem::size_of::<G4Slot>() - 172usize];
    ["Alignment of G4Slot"][::std::mem::align_of::<G4Slot>() - 4usize];
    ["Offset of field: G4Slot::live"][::std::mem::offset_of!(G4Slot, live) - 0usize];
    ["Offset of field: G4Slot::position"][::std::mem::offset_of!(G4Slot, position) - 4usize];
    ["Offset of field: G4Slot::last_token"][::std::mem::offset_of!(G4Slot, last_token) - 8usize];
    ["Offset of field: G4Slot::output_index"][::std::mem::offset_of!(G4Slot, output_index) - 12usize];
    ["Offset of field: G4Slot::output_limit"][::std::mem::offset_of!(G4Slot, output_limit) - 16usize];
    ["Offset of field: G4Slot::position_limit"][::std::mem::offset_of!(G4Slot, position_limit) - 20usize];
    ["Offset of field: G4Slot::generation"][::std::mem::offset_of!(G4Slot, generation) - 24usize];
    ["Offset of field: G4Slot::ignore_eos"][::std::mem::offset_of!(G4Slot, ignore_eos) - 28usize];
    ["Offset of field: G4Slot::stop_count"][::std::mem::offset_of!(G4Slot, stop_count) - 32usize];
    ["Offset of field: G4Slot::stop_ids"][::std::mem::offset_of!(G4Slot, stop_ids) - 36usize];
    ["Offset of field: G4Slot::sampling"][::std::mem::offset_of!(G4Slot, sampling) - 100usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4Record {
    pub token: i32,
    pub logprob: f32,
    pub step: i32,
    pub generation: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4Record"][::std::mem::size_of::<G4Record>() - 16usize];
    ["Alignment of G4Record"][::std::mem::align_of::<G4Record>() - 4usize];
    ["Offset of field: G4Record::token"][::std::mem::offset_of!(G4Record, token) - 0usize];
    ["Offset of field: G4Record::logprob"][::std::mem::offset_of!(G4Record, logprob) - 4usize];
    ["Offset of field: G4Record::step"][::std::mem::offset_of!(G4Record, step) - 8usize];
    ["Offset of field: G4Record::generation"][::std::mem::offset_of!(G4Record, generation) - 12usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4Bias {
    pub id: i32,
    pub value: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4Bias"][::std::mem::size_of::<G4Bias>() - 8usize];
    ["Alignment of G4Bias"][::std::mem::align_of::<G4Bias>() - 4usize];
    ["Offset of field: G4Bias::id"][::std::mem::offset_of!(G4Bias, id) - 0usize];
    ["Offset of field: G4Bias::value"][::std::mem::offset_of!(G4Bias, value) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4Words {
    pub count: i32,
    pub begin: [i32; 129usize],
    pub ids: [i32; 1024usize],
    pub active_count: u32,
    pub active: [i32; 128usize],
    pub tail: [i32; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4Words"][::std::mem::size_of::<G4Words>() - 5196usize];
    ["Alignment of G4Words"][::std::mem::align_of::<G4Words>() - 4usize];
    ["Offset of field: G4Words::count"][::std::mem::offset_of!(G4Words, count) - 0usize];
    ["Offset of field: G4Words::begin"][::std::mem::offset_of!(G4Words, begin) - 4usize];
    ["Offset of field: G4Words::ids"][::std::mem::offset_of!(G4Words, ids) - 520usize];
    ["Offset of field: G4Words::active_count"][::std::mem::offset_of!(G4Words, active_count) - 4616usize];
    ["Offset of field: G4Words::active"][::std::mem::offset_of!(G4Words, active) - 4620usize];
    ["Offset of field: G4Words::tail"][::std::mem::offset_of!(G4Words, tail) - 5132usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4Logprobs {
    pub step: i32,
    pub generation: u32,
    pub rank: i32,
    pub token_logprob: f32,
    pub id: [i32; 20usize],
    pub logprob: [f32; 20usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4Logprobs"][::std::mem::size_of::<G4Logprobs>() - 176usize];
    ["Alignment of G4Logprobs"][::std::mem::align_of::<G4Logprobs>() - 4usize];
    ["Offset of field: G4Logprobs::step"][::std::mem::offset_of!(G4Logprobs, step) - 0usize];
    ["Offset of field: G4Logprobs::generation"][::std::mem::offset_of!(G4Logprobs, generation) - 4usize];
    ["Offset of field: G4Logprobs::rank"][::std::mem::offset_of!(G4Logprobs, rank) - 8usize];
    ["Offset of field: G4Logprobs::token_logprob"][::std::mem::offset_of!(G4Logprobs, token_logprob) - 12usize];
    ["Offset of field: G4Logprobs::id"][::std::mem::offset_of!(G4Logprobs, id) - 16usize];
    ["Offset of field: G4Logprobs::logprob"][::std::mem::offset_of!(G4Logprobs, logprob) - 96usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4KvView {
    pub k: *mut u16,
    pub v: *mut u16,
    pub table: *const i32,
    pub table_pages: i32,
    pub first_page: i32,
    pub page_tokens: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4KvView"][::std::mem::size_of::<G4KvView>() - 48usize];
    ["Alignment of G4KvView"][::std::mem::align_of::<G4KvView>() - 8usize];
    ["Offset of field: G4KvView::k"][::std::mem::offset_of!(G4KvView, k) - 0usize];
    ["Offset of field: G4KvView::v"][::std::mem::offset_of!(G4KvView, v) - 8usize];
    ["Offset of field: G4KvView::table"][::std::mem::offset_of!(G4KvView, table) - 16usize];
    ["Offset of field: G4KvView::table_pages"][::std::mem::offset_of!(G4KvView, table_pages) - 24usize];
    ["Offset of field: G4KvView::first_page"][::std::mem::offset_of!(G4KvView, first_page) - 28usize];
    ["Offset of field: G4KvView::page_tokens"][::std::mem::offset_of!(G4KvView, page_tokens) - 32usize];
    ["Offset of field: G4KvView::kv_heads"][::std::mem::offset_of!(G4KvView, kv_heads) - 36usize];
    ["Offset of field: G4KvView::head_dim"][::std::mem::offset_of!(G4KvView, head_dim) - 40usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4PackParams {
    pub src: *const u16,
    pub dst: *mut u16,
    pub n: i32,
    pub k: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4PackParams"][::std::mem::size_of::<G4PackParams>() - 24usize];
    ["Alignment of G4PackParams"][::std::mem::align_of::<G4PackParams>() - 8usize];
    ["Offset of field: G4PackParams::src"][::std::mem::offset_of!(G4PackParams, src) - 0usize];
    ["Offset of field: G4PackParams::dst"][::std::mem::offset_of!(G4PackParams, dst) - 8usize];
    ["Offset of field: G4PackParams::n"][::std::mem::offset_of!(G4PackParams, n) - 16usize];
    ["Offset of field: G4PackParams::k"][::std::mem::offset_of!(G4PackParams, k) - 20usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4RopeTableParams {
    pub cos: *mut u16,
    pub sin: *mut u16,
    pub theta: f64,
    pub positions: i32,
    pub pairs: i32,
    pub head_dim: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4RopeTableParams"][::std::mem::size_of::<G4RopeTableParams>() - 40usize];
    ["Alignment of G4RopeTableParams"][::std::mem::align_of::<G4RopeTableParams>() - 8usize];
    ["Offset of field: G4RopeTableParams::cos"][::std::mem::offset_of!(G4RopeTableParams, cos) - 0usize];
    ["Offset of field: G4RopeTableParams::sin"][::std::mem::offset_of!(G4RopeTableParams, sin) - 8usize];
    ["Offset of field: G4RopeTableParams::theta"][::std::mem::offset_of!(G4RopeTableParams, theta) - 16usize];
    ["Offset of field: G4RopeTableParams::positions"][::std::mem::offset_of!(G4RopeTableParams, positions) - 24usize];
    ["Offset of field: G4RopeTableParams::pairs"][::std::mem::offset_of!(G4RopeTableParams, pairs) - 28usize];
    ["Offset of field: G4RopeTableParams::head_dim"][::std::mem::offset_of!(G4RopeTableParams, head_dim) - 32usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4EmbedParams {
    pub table: *const u16,
    pub token: *const i32,
    pub x: *mut u16,
    pub rows: i32,
    pub hidden: i32,
    pub scale_bf16: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4EmbedParams"][::std::mem::size_of::<G4EmbedParams>() - 40usize];
    ["Alignment of G4EmbedParams"][::std::mem::align_of::<G4EmbedParams>() - 8usize];
    ["Offset of field: G4EmbedParams::table"][::std::mem::offset_of!(G4EmbedParams, table) - 0usize];
    ["Offset of field: G4EmbedParams::token"][::std::mem::offset_of!(G4EmbedParams, token) - 8usize];
    ["Offset of field: G4EmbedParams::x"][::std::mem::offset_of!(G4EmbedParams, x) - 16usize];
    ["Offset of field: G4EmbedParams::rows"][::std::mem::offset_of!(G4EmbedParams, rows) - 24usize];
    ["Offset of field: G4EmbedParams::hidden"][::std::mem::offset_of!(G4EmbedParams, hidden) - 28usize];
    ["Offset of field: G4EmbedParams::scale_bf16"][::std::mem::offset_of!(G4EmbedParams, scale_bf16) - 32usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4RmsNormParams {
    pub x: *const u16,
    pub weight: *const u16,
    pub out: *mut u16,
    pub rows: i32,
    pub width: i32,
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4RmsNormParams"][::std::mem::size_of::<G4RmsNormParams>() - 40usize];
    ["Alignment of G4RmsNormParams"][::std::mem::align_of::<G4RmsNormParams>() - 8usize];
    ["Offset of field: G4RmsNormParams::x"][::std::mem::offset_of!(G4RmsNormParams, x) - 0usize];
    ["Offset of field: G4RmsNormParams::weight"][::std::mem::offset_of!(G4RmsNormParams, weight) - 8usize];
    ["Offset of field: G4RmsNormParams::out"][::std::mem::offset_of!(G4RmsNormParams, out) - 16usize];
    ["Offset of field: G4RmsNormParams::rows"][::std::mem::offset_of!(G4RmsNormParams, rows) - 24usize];
    ["Offset of field: G4RmsNormParams::width"][::std::mem::offset_of!(G4RmsNormParams, width) - 28usize];
    ["Offset of field: G4RmsNormParams::eps"][::std::mem::offset_of!(G4RmsNormParams, eps) - 32usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4AddNormParams {
    pub x: *mut u16,
    pub y: *const u16,
    pub post_weight: *const u16,
    pub layer_scalar: *const u16,
    pub next_weight: *const u16,
    pub normed: *mut u16,
    pub rows: i32,
    pub width: i32,
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4AddNormParams"][::std::mem::size_of::<G4AddNormParams>() - 64usize];
    ["Alignment of G4AddNormParams"][::std::mem::align_of::<G4AddNormParams>() - 8usize];
    ["Offset of field: G4AddNormParams::x"][::std::mem::offset_of!(G4AddNormParams, x) - 0usize];
    ["Offset of field: G4AddNormParams::y"][::std::mem::offset_of!(G4AddNormParams, y) - 8usize];
    ["Offset of field: G4AddNormParams::post_weight"][::std::mem::offset_of!(G4AddNormParams, post_weight) - 16usize];
    ["Offset of field: G4AddNormParams::layer_scalar"][::std::mem::offset_of!(G4AddNormParams, layer_scalar) - 24usize];
    ["Offset of field: G4AddNormParams::next_weight"][::std::mem::offset_of!(G4AddNormParams, next_weight) - 32usize];
    ["Offset of field: G4AddNormParams::normed"][::std::mem::offset_of!(G4AddNormParams, normed) - 40usize];
    ["Offset of field: G4AddNormParams::rows"][::std::mem::offset_of!(G4AddNormParams, rows) - 48usize];
    ["Offset of field: G4AddNormParams::width"][::std::mem::offset_of!(G4AddNormParams, width) - 52usize];
    ["Offset of field: G4AddNormParams::eps"][::std::mem::offset_of!(G4AddNormParams, eps) - 56usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4GeluGateParams {
    pub gate: *const u16,
    pub up: *const u16,
    pub out: *mut u16,
    pub rows: i32,
    pub width: i32,
    pub gate_stride: i32,
    pub up_stride: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4GeluGateParams"][::std::mem::size_of::<G4GeluGateParams>() - 40usize];
    ["Alignment of G4GeluGateParams"][::std::mem::align_of::<G4GeluGateParams>() - 8usize];
    ["Offset of field: G4GeluGateParams::gate"][::std::mem::offset_of!(G4GeluGateParams, gate) - 0usize];
    ["Offset of field: G4GeluGateParams::up"][::std::mem::offset_of!(G4GeluGateParams, up) - 8usize];
    ["Offset of field: G4GeluGateParams::out"][::std::mem::offset_of!(G4GeluGateParams, out) - 16usize];
    ["Offset of field: G4GeluGateParams::rows"][::std::mem::offset_of!(G4GeluGateParams, rows) - 24usize];
    ["Offset of field: G4GeluGateParams::width"][::std::mem::offset_of!(G4GeluGateParams, width) - 28usize];
    ["Offset of field: G4GeluGateParams::gate_stride"][::std::mem::offset_of!(G4GeluGateParams, gate_stride) - 32usize];
    ["Offset of field: G4GeluGateParams::up_stride"][::std::mem::offset_of!(G4GeluGateParams, up_stride) - 36usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4PerLayerInputParams {
    pub table: *const u16,
    pub token: *const i32,
    pub weight: *const u16,
    pub x: *mut u16,
    pub rows: i32,
    pub layers: i32,
    pub width: i32,
    pub context_scale: f32,
    pub table_scale_bf16: u32,
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4PerLayerInputParams"][::std::mem::size_of::<G4PerLayerInputParams>() - 56usize];
    ["Alignment of G4PerLayerInputParams"][::std::mem::align_of::<G4PerLayerInputParams>() - 8usize];
    ["Offset of field: G4PerLayerInputParams::table"][::std::mem::offset_of!(G4PerLayerInputParams, table) - 0usize];
    ["Offset of field: G4PerLayerInputParams::token"][::std::mem::offset_of!(G4PerLayerInputParams, token) - 8usize];
    ["Offset of field: G4PerLayerInputParams::weight"][::std::mem::offset_of!(G4PerLayerInputParams, weight) - 16usize];
    ["Offset of field: G4PerLayerInputParams::x"][::std::mem::offset_of!(G4PerLayerInputParams, x) - 24usize];
    ["Offset of field: G4PerLayerInputParams::rows"][::std::mem::offset_of!(G4PerLayerInputParams, rows) - 32usize];
    ["Offset of field: G4PerLayerInputParams::layers"][::std::mem::offset_of!(G4PerLayerInputParams, layers) - 36usize];
    ["Offset of field: G4PerLayerInputParams::width"][::std::mem::offset_of!(G4PerLayerInputParams, width) - 40usize];
    ["Offset of field: G4PerLayerInputParams::context_scale"]
        [::std::mem::offset_of!(G4PerLayerInputParams, context_scale) - 44usize];
    ["Offset of field: G4PerLayerInputParams::table_scale_bf16"]
        [::std::mem::offset_of!(G4PerLayerInputParams, table_scale_bf16) - 48usize];
    ["Offset of field: G4PerLayerInputParams::eps"][::std::mem::offset_of!(G4PerLayerInputParams, eps) - 52usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4ExpertInputParams {
    pub x: *const u16,
    pub router_scale: *const u16,
    pub expert_weight: *const u16,
    pub router_x: *mut u16,
    pub expert_x: *mut u16,
    pub rows: i32,
    pub width: i32,
    pub root: f32,
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4ExpertInputParams"][::std::mem::size_of::<G4ExpertInputParams>() - 56usize];
    ["Alignment of G4ExpertInputParams"][::std::mem::align_of::<G4ExpertInputParams>() - 8usize];
    ["Offset of field: G4ExpertInputParams::x"][::std::mem::offset_of!(G4ExpertInputParams, x) - 0usize];
    ["Offset of field: G4ExpertInputParams::router_scale"]
        [::std::mem::offset_of!(G4ExpertInputParams, router_scale) - 8usize];
    ["Offset of field: G4ExpertInputParams::expert_weight"]
        [::std::mem::offset_of!(G4ExpertInputParams, expert_weight) - 16usize];
    ["Offset of field: G4ExpertInputParams::router_x"][::std::mem::offset_of!(G4ExpertInputParams, router_x) - 24usize];
    ["Offset of field: G4ExpertInputParams::expert_x"][::std::mem::offset_of!(G4ExpertInputParams, expert_x) - 32usize];
    ["Offset of field: G4ExpertInputParams::rows"][::std::mem::offset_of!(G4ExpertInputParams, rows) - 40usize];
    ["Offset of field: G4ExpertInputParams::width"][::std::mem::offset_of!(G4ExpertInputParams, width) - 44usize];
    ["Offset of field: G4ExpertInputParams::root"][::std::mem::offset_of!(G4ExpertInputParams, root) - 48usize];
    ["Offset of field: G4ExpertInputParams::eps"][::std::mem::offset_of!(G4ExpertInputParams, eps) - 52usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4ExpertRouteParams {
    pub logits: *const f32,
    pub slot: *const i32,
    pub scale: *const u16,
    pub expert: *mut i32,
    pub weight: *mut f32,
    pub rows: i32,
    pub experts: i32,
    pub top: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4ExpertRouteParams"][::std::mem::size_of::<G4ExpertRouteParams>() - 56usize];
    ["Alignment of G4ExpertRouteParams"][::std::mem::align_of::<G4ExpertRouteParams>() - 8usize];
    ["Offset of field: G4ExpertRouteParams::logits"][::std::mem::offset_of!(G4ExpertRouteParams, logits) - 0usize];
    ["Offset of field: G4ExpertRouteParams::slot"][::std::mem::offset_of!(G4ExpertRouteParams, slot) - 8usize];
    ["Offset of field: G4ExpertRouteParams::scale"][::std::mem::offset_of!(G4ExpertRouteParams, scale) - 16usize];
    ["Offset of field: G4ExpertRouteParams::expert"][::std::mem::offset_of!(G4ExpertRouteParams, expert) - 24usize];
    ["Offset of field: G4ExpertRouteParams::weight"][::std::mem::offset_of!(G4ExpertRouteParams, weight) - 32usize];
    ["Offset of field: G4ExpertRouteParams::rows"][::std::mem::offset_of!(G4ExpertRouteParams, rows) - 40usize];
    ["Offset of field: G4ExpertRouteParams::experts"][::std::mem::offset_of!(G4ExpertRouteParams, experts) - 44usize];
    ["Offset of field: G4ExpertRouteParams::top"][::std::mem::offset_of!(G4ExpertRouteParams, top) - 48usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4ExpertTile {
    pub expert: i32,
    pub first: i32,
    pub count: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4ExpertTile"][::std::mem::size_of::<G4ExpertTile>() - 12usize];
    ["Alignment of G4ExpertTile"][::std::mem::align_of::<G4ExpertTile>() - 4usize];
    ["Offset of field: G4ExpertTile::expert"][::std::mem::offset_of!(G4ExpertTile, expert) - 0usize];
    ["Offset of field: G4ExpertTile::first"][::std::mem::offset_of!(G4ExpertTile, first) - 4usize];
    ["Offset of field: G4ExpertTile::count"][::std::mem::offset_of!(G4ExpertTile, count) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4ExpertGroupParams {
    pub expert: *const i32,
    pub list: *mut i32,
    pub tile: *mut G4ExpertTile,
    pub tile_count: *mut i32,
    pub pairs: i32,
    pub experts: i32,
    pub tile_tokens: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4ExpertGroupParams"][::std::mem::size_of::<G4ExpertGroupParams>() - 48usize];
    ["Alignment of G4ExpertGroupParams"][::std::mem::align_of::<G4ExpertGroupParams>() - 8usize];
    ["Offset of field: G4ExpertGroupParams::expert"][::std::mem::offset_of!(G4ExpertGroupParams, expert) - 0usize];
    ["Offset of field: G4ExpertGroupParams::list"][::std::mem::offset_of!(G4ExpertGroupParams, list) - 8usize];
    ["Offset of field: G4ExpertGroupParams::tile"][::std::mem::offset_of!(G4ExpertGroupParams, tile) - 16usize];
    ["Offset of field: G4ExpertGroupParams::tile_count"]
        [::std::mem::offset_of!(G4ExpertGroupParams, tile_count) - 24usize];
    ["Offset of field: G4ExpertGroupParams::pairs"][::std::mem::offset_of!(G4ExpertGroupParams, pairs) - 32usize];
    ["Offset of field: G4ExpertGroupParams::experts"][::std::mem::offset_of!(G4ExpertGroupParams, experts) - 36usize];
    ["Offset of field: G4ExpertGroupParams::tile_tokens"]
        [::std::mem::offset_of!(G4ExpertGroupParams, tile_tokens) - 40usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4ExpertGemmParams {
    pub weight: *const u16,
    pub x: *const u16,
    pub out: *mut u16,
    pub tile: *const G4ExpertTile,
    pub tile_count: *const i32,
    pub list: *const i32,
    pub n: i32,
    pub k: i32,
    pub x_stride: i32,
    pub out_stride: i32,
    pub slabs: i32,
    pub pairs_a_row: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4ExpertGemmParams"][::std::mem::size_of::<G4ExpertGemmParams>() - 72usize];
    ["Alignment of G4ExpertGemmParams"][::std::mem::align_of::<G4ExpertGemmParams>() - 8usize];
    ["Offset of field: G4ExpertGemmParams::weight"][::std::mem::offset_of!(G4ExpertGemmParams, weight) - 0usize];
    ["Offset of field: G4ExpertGemmParams::x"][::std::mem::offset_of!(G4ExpertGemmParams, x) - 8usize];
    ["Offset of field: G4ExpertGemmParams::out"][::std::mem::offset_of!(G4ExpertGemmParams, out) - 16usize];
    ["Offset of field: G4ExpertGemmParams::tile"][::std::mem::offset_of!(G4ExpertGemmParams, tile) - 24usize];
    ["Offset of field: G4ExpertGemmParams::tile_count"]
        [::std::mem::offset_of!(G4ExpertGemmParams, tile_count) - 32usize];
    ["Offset of field: G4ExpertGemmParams::list"][::std::mem::offset_of!(G4ExpertGemmParams, list) - 40usize];
    ["Offset of field: G4ExpertGemmParams::n"][::std::mem::offset_of!(G4ExpertGemmParams, n) - 48usize];
    ["Offset of field: G4ExpertGemmParams::k"][::std::mem::offset_of!(G4ExpertGemmParams, k) - 52usize];
    ["Offset of field: G4ExpertGemmParams::x_stride"][::std::mem::offset_of!(G4ExpertGemmParams, x_stride) - 56usize];
    ["Offset of field: G4ExpertGemmParams::out_stride"]
        [::std::mem::offset_of!(G4ExpertGemmParams, out_stride) - 60usize];
    ["Offset of field: G4ExpertGemmParams::slabs"][::std::mem::offset_of!(G4ExpertGemmParams, slabs) - 64usize];
    ["Offset of field: G4ExpertGemmParams::pairs_a_row"]
        [::std::mem::offset_of!(G4ExpertGemmParams, pairs_a_row) - 68usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4ExpertCombineParams {
    pub y: *mut u16,
    pub down: *const u16,
    pub expert: *const i32,
    pub weight: *const f32,
    pub dense_weight: *const u16,
    pub expert_weight: *const u16,
    pub rows: i32,
    pub width: i32,
    pub top: i32,
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4ExpertCombineParams"][::std::mem::size_of::<G4ExpertCombineParams>() - 64usize];
    ["Alignment of G4ExpertCombineParams"][::std::mem::align_of::<G4ExpertCombineParams>() - 8usize];
    ["Offset of field: G4ExpertCombineParams::y"][::std::mem::offset_of!(G4ExpertCombineParams, y) - 0usize];
    ["Offset of field: G4ExpertCombineParams::down"][::std::mem::offset_of!(G4ExpertCombineParams, down) - 8usize];
    ["Offset of field: G4ExpertCombineParams::expert"][::std::mem::offset_of!(G4ExpertCombineParams, expert) - 16usize];
    ["Offset of field: G4ExpertCombineParams::weight"][::std::mem::offset_of!(G4ExpertCombineParams, weight) - 24usize];
    ["Offset of field: G4ExpertCombineParams::dense_weight"]
        [::std::mem::offset_of!(G4ExpertCombineParams, dense_weight) - 32usize];
    ["Offset of field: G4ExpertCombineParams::expert_weight"]
        [::std::mem::offset_of!(G4ExpertCombineParams, expert_weight) - 40usize];
    ["Offset of field: G4ExpertCombineParams::rows"][::std::mem::offset_of!(G4ExpertCombineParams, rows) - 48usize];
    ["Offset of field: G4ExpertCombineParams::width"][::std::mem::offset_of!(G4ExpertCombineParams, width) - 52usize];
    ["Offset of field: G4ExpertCombineParams::top"][::std::mem::offset_of!(G4ExpertCombineParams, top) - 56usize];
    ["Offset of field: G4ExpertCombineParams::eps"][::std::mem::offset_of!(G4ExpertCombineParams, eps) - 60usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4GemmParams {
    pub weight: *const u16,
    pub x: *const u16,
    pub out: *mut ::std::os::raw::c_void,
    pub tokens: i32,
    pub n: i32,
    pub k: i32,
    pub x_stride: i32,
    pub out_stride: i32,
    pub slabs: i32,
    pub softcap: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4GemmParams"][::std::mem::size_of::<G4GemmParams>() - 56usize];
    ["Alignment of G4GemmParams"][::std::mem::align_of::<G4GemmParams>() - 8usize];
    ["Offset of field: G4GemmParams::weight"][::std::mem::offset_of!(G4GemmParams, weight) - 0usize];
    ["Offset of field: G4GemmParams::x"][::std::mem::offset_of!(G4GemmParams, x) - 8usize];
    ["Offset of field: G4GemmParams::out"][::std::mem::offset_of!(G4GemmParams, out) - 16usize];
    ["Offset of field: G4GemmParams::tokens"][::std::mem::offset_of!(G4GemmParams, tokens) - 24usize];
    ["Offset of field: G4GemmParams::n"][::std::mem::offset_of!(G4GemmParams, n) - 28usize];
    ["Offset of field: G4GemmParams::k"][::std::mem::offset_of!(G4GemmParams, k) - 32usize];
    ["Offset of field: G4GemmParams::x_stride"][::std::mem::offset_of!(G4GemmParams, x_stride) - 36usize];
    ["Offset of field: G4GemmParams::out_stride"][::std::mem::offset_of!(G4GemmParams, out_stride) - 40usize];
    ["Offset of field: G4GemmParams::slabs"][::std::mem::offset_of!(G4GemmParams, slabs) - 44usize];
    ["Offset of field: G4GemmParams::softcap"][::std::mem::offset_of!(G4GemmParams, softcap) - 48usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4QkvPrepParams {
    pub qkv: *const u16,
    pub q_weight: *const u16,
    pub k_weight: *const u16,
    pub cos: *const u16,
    pub sin: *const u16,
    pub position: *const i32,
    pub slot: *const i32,
    pub q_out: *mut u16,
    pub kv: G4KvView,
    pub rows: i32,
    pub heads: i32,
    pub pairs: i32,
    pub k_eq_v: i32,
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4QkvPrepParams"][::std::mem::size_of::<G4QkvPrepParams>() - 136usize];
    ["Alignment of G4QkvPrepParams"][::std::mem::align_of::<G4QkvPrepParams>() - 8usize];
    ["Offset of field: G4QkvPrepParams::qkv"][::std::mem::offset_of!(G4QkvPrepParams, qkv) - 0usize];
    ["Offset of field: G4QkvPrepParams::q_weight"][::std::mem::offset_of!(G4QkvPrepParams, q_weight) - 8usize];
    ["Offset of field: G4QkvPrepParams::k_weight"][::std::mem::offset_of!(G4QkvPrepParams, k_weight) - 16usize];
    ["Offset of field: G4QkvPrepParams::cos"][::std::mem::offset_of!(G4QkvPrepParams, cos) - 24usize];
    ["Offset of field: G4QkvPrepParams::sin"][::std::mem::offset_of!(G4QkvPrepParams, sin) - 32usize];
    ["Offset of field: G4QkvPrepParams::position"][::std::mem::offset_of!(G4QkvPrepParams, position) - 40usize];
    ["Offset of field: G4QkvPrepParams::slot"][::std::mem::offset_of!(G4QkvPrepParams, slot) - 48usize];
    ["Offset of field: G4QkvPrepParams::q_out"][::std::mem::offset_of!(G4QkvPrepParams, q_out) - 56usize];
    ["Offset of field: G4QkvPrepParams::kv"][::std::mem::offset_of!(G4QkvPrepParams, kv) - 64usize];
    ["Offset of field: G4QkvPrepParams::rows"][::std::mem::offset_of!(G4QkvPrepParams, rows) - 112usize];
    ["Offset of field: G4QkvPrepParams::heads"][::std::mem::offset_of!(G4QkvPrepParams, heads) - 116usize];
    ["Offset of field: G4QkvPrepParams::pairs"][::std::mem::offset_of!(G4QkvPrepParams, pairs) - 120usize];
    ["Offset of field: G4QkvPrepParams::k_eq_v"][::std::mem::offset_of!(G4QkvPrepParams, k_eq_v) - 124usize];
    ["Offset of field: G4QkvPrepParams::eps"][::std::mem::offset_of!(G4QkvPrepParams, eps) - 128usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4KvCopyParams {
    pub src: G4KvView,
    pub dst: G4KvView,
    pub slot: i32,
    pub begin: i32,
    pub end: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4KvCopyParams"][::std::mem::size_of::<G4KvCopyParams>() - 112usize];
    ["Alignment of G4KvCopyParams"][::std::mem::align_of::<G4KvCopyParams>() - 8usize];
    ["Offset of field: G4KvCopyParams::src"][::std::mem::offset_of!(G4KvCopyParams, src) - 0usize];
    ["Offset of field: G4KvCopyParams::dst"][::std::mem::offset_of!(G4KvCopyParams, dst) - 48usize];
    ["Offset of field: G4KvCopyParams::slot"][::std::mem::offset_of!(G4KvCopyParams, slot) - 96usize];
    ["Offset of field: G4KvCopyParams::begin"][::std::mem::offset_of!(G4KvCopyParams, begin) - 100usize];
    ["Offset of field: G4KvCopyParams::end"][::std::mem::offset_of!(G4KvCopyParams, end) - 104usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4AttnDecodeParams {
    pub q: *const u16,
    pub out: *mut u16,
    pub position: *const i32,
    pub slot: *const i32,
    pub item_begin: *const i32,
    pub kv: G4KvView,
    pub part_o: *mut f32,
    pub part_ml: *mut f32,
    pub ticket: *mut u32,
    pub rows: i32,
    pub heads: i32,
    pub window: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4AttnDecodeParams"][::std::mem::size_of::<G4AttnDecodeParams>() - 128usize];
    ["Alignment of G4AttnDecodeParams"][::std::mem::align_of::<G4AttnDecodeParams>() - 8usize];
    ["Offset of field: G4AttnDecodeParams::q"][::std::mem::offset_of!(G4AttnDecodeParams, q) - 0usize];
    ["Offset of field: G4AttnDecodeParams::out"][::std::mem::offset_of!(G4AttnDecodeParams, out) - 8usize];
    ["Offset of field: G4AttnDecodeParams::position"][::std::mem::offset_of!(G4AttnDecodeParams, position) - 16usize];
    ["Offset of field: G4AttnDecodeParams::slot"][::std::mem::offset_of!(G4AttnDecodeParams, slot) - 24usize];
    ["Offset of field: G4AttnDecodeParams::item_begin"]
        [::std::mem::offset_of!(G4AttnDecodeParams, item_begin) - 32usize];
    ["Offset of field: G4AttnDecodeParams::kv"][::std::mem::offset_of!(G4AttnDecodeParams, kv) - 40usize];
    ["Offset of field: G4AttnDecodeParams::part_o"][::std::mem::offset_of!(G4AttnDecodeParams, part_o) - 88usize];
    ["Offset of field: G4AttnDecodeParams::part_ml"][::std::mem::offset_of!(G4AttnDecodeParams, part_ml) - 96usize];
    ["Offset of field: G4AttnDecodeParams::ticket"][::std::mem::offset_of!(G4AttnDecodeParams, ticket) - 104usize];
    ["Offset of field: G4AttnDecodeParams::rows"][::std::mem::offset_of!(G4AttnDecodeParams, rows) - 112usize];
    ["Offset of field: G4AttnDecodeParams::heads"][::std::mem::offset_of!(G4AttnDecodeParams, heads) - 116usize];
    ["Offset of field: G4AttnDecodeParams::window"][::std::mem::offset_of!(G4AttnDecodeParams, window) - 120usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4AttnPromptParams {
    pub q: *const u16,
    pub out: *mut u16,
    pub kv: G4KvView,
    pub recent: G4KvView,
    pub slot: i32,
    pub start: i32,
    pub rows: i32,
    pub heads: i32,
    pub window: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4AttnPromptParams"][::std::mem::size_of::<G4AttnPromptParams>() - 136usize];
    ["Alignment of G4AttnPromptParams"][::std::mem::align_of::<G4AttnPromptParams>() - 8usize];
    ["Offset of field: G4AttnPromptParams::q"][::std::mem::offset_of!(G4AttnPromptParams, q) - 0usize];
    ["Offset of field: G4AttnPromptParams::out"][::std::mem::offset_of!(G4AttnPromptParams, out) - 8usize];
    ["Offset of field: G4AttnPromptParams::kv"][::std::mem::offset_of!(G4AttnPromptParams, kv) - 16usize];
    ["Offset of field: G4AttnPromptParams::recent"][::std::mem::offset_of!(G4AttnPromptParams, recent) - 64usize];
    ["Offset of field: G4AttnPromptParams::slot"][::std::mem::offset_of!(G4AttnPromptParams, slot) - 112usize];
    ["Offset of field: G4AttnPromptParams::start"][::std::mem::offset_of!(G4AttnPromptParams, start) - 116usize];
    ["Offset of field: G4AttnPromptParams::rows"][::std::mem::offset_of!(G4AttnPromptParams, rows) - 120usize];
    ["Offset of field: G4AttnPromptParams::heads"][::std::mem::offset_of!(G4AttnPromptParams, heads) - 124usize];
    ["Offset of field: G4AttnPromptParams::window"][::std::mem::offset_of!(G4AttnPromptParams, window) - 128usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4StepBeginParams {
    pub row_slot: *const i32,
    pub slots: *const G4Slot,
    pub sliding_table: *const i32,
    pub global_table: *const i32,
    pub token: *mut i32,
    pub position: *mut i32,
    pub slot: *mut i32,
    pub status: *mut i32,
    pub sliding_item_begin: *mut i32,
    pub global_item_begin: *mut i32,
    pub rows: i32,
    pub sliding_pages: i32,
    pub global_pages: i32,
    pub page_tokens_sliding: i32,
    pub page_tokens_global: i32,
    pub window: i32,
    pub segment_sliding: i32,
    pub segment_global: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4StepBeginParams"][::std::mem::size_of::<G4StepBeginParams>() - 112usize];
    ["Alignment of G4StepBeginParams"][::std::mem::align_of::<G4StepBeginParams>() - 8usize];
    ["Offset of field: G4StepBeginParams::row_slot"][::std::mem::offset_of!(G4StepBeginParams, row_slot) - 0usize];
    ["Offset of field: G4StepBeginParams::slots"][::std::mem::offset_of!(G4StepBeginParams, slots) - 8usize];
    ["Offset of field: G4StepBeginParams::sliding_table"]
        [::std::mem::offset_of!(G4StepBeginParams, sliding_table) - 16usize];
    ["Offset of field: G4StepBeginParams::global_table"]
        [::std::mem::offset_of!(G4StepBeginParams, global_table) - 24usize];
    ["Offset of field: G4StepBeginParams::token"][::std::mem::offset_of!(G4StepBeginParams, token) - 32usize];
    ["Offset of field: G4StepBeginParams::position"][::std::mem::offset_of!(G4StepBeginParams, position) - 40usize];
    ["Offset of field: G4StepBeginParams::slot"][::std::mem::offset_of!(G4StepBeginParams, slot) - 48usize];
    ["Offset of field: G4StepBeginParams::status"][::std::mem::offset_of!(G4StepBeginParams, status) - 56usize];
    ["Offset of field: G4StepBeginParams::sliding_item_begin"]
        [::std::mem::offset_of!(G4StepBeginParams, sliding_item_begin) - 64usize];
    ["Offset of field: G4StepBeginParams::global_item_begin"]
        [::std::mem::offset_of!(G4StepBeginParams, global_item_begin) - 72usize];
    ["Offset of field: G4StepBeginParams::rows"][::std::mem::offset_of!(G4StepBeginParams, rows) - 80usize];
    ["Offset of field: G4StepBeginParams::sliding_pages"]
        [::std::mem::offset_of!(G4StepBeginParams, sliding_pages) - 84usize];
    ["Offset of field: G4StepBeginParams::global_pages"]
        [::std::mem::offset_of!(G4StepBeginParams, global_pages) - 88usize];
    ["Offset of field: G4StepBeginParams::page_tokens_sliding"]
        [::std::mem::offset_of!(G4StepBeginParams, page_tokens_sliding) - 92usize];
    ["Offset of field: G4StepBeginParams::page_tokens_global"]
        [::std::mem::offset_of!(G4StepBeginParams, page_tokens_global) - 96usize];
    ["Offset of field: G4StepBeginParams::window"][::std::mem::offset_of!(G4StepBeginParams, window) - 100usize];
    ["Offset of field: G4StepBeginParams::segment_sliding"]
        [::std::mem::offset_of!(G4StepBeginParams, segment_sliding) - 104usize];
    ["Offset of field: G4StepBeginParams::segment_global"]
        [::std::mem::offset_of!(G4StepBeginParams, segment_global) - 108usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4TailParams {
    pub slot: *const i32,
    pub slots: *mut G4Slot,
    pub step: *mut i32,
    pub rows: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4TailParams"][::std::mem::size_of::<G4TailParams>() - 32usize];
    ["Alignment of G4TailParams"][::std::mem::align_of::<G4TailParams>() - 8usize];
    ["Offset of field: G4TailParams::slot"][::std::mem::offset_of!(G4TailParams, slot) - 0usize];
    ["Offset of field: G4TailParams::slots"][::std::mem::offset_of!(G4TailParams, slots) - 8usize];
    ["Offset of field: G4TailParams::step"][::std::mem::offset_of!(G4TailParams, step) - 16usize];
    ["Offset of field: G4TailParams::rows"][::std::mem::offset_of!(G4TailParams, rows) - 24usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4ScatterRun {
    pub dst: *mut i32,
    pub index: *const i32,
    pub first: i32,
    pub count: i32,
    pub stride: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4ScatterRun"][::std::mem::size_of::<G4ScatterRun>() - 32usize];
    ["Alignment of G4ScatterRun"][::std::mem::align_of::<G4ScatterRun>() - 8usize];
    ["Offset of field: G4ScatterRun::dst"][::std::mem::offset_of!(G4ScatterRun, dst) - 0usize];
    ["Offset of field: G4ScatterRun::index"][::std::mem::offset_of!(G4ScatterRun, index) - 8usize];
    ["Offset of field: G4ScatterRun::first"][::std::mem::offset_of!(G4ScatterRun, first) - 16usize];
    ["Offset of field: G4ScatterRun::count"][::std::mem::offset_of!(G4ScatterRun, count) - 20usize];
    ["Offset of field: G4ScatterRun::stride"][::std::mem::offset_of!(G4ScatterRun, stride) - 24usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4ScatterParams {
    pub src: *const i32,
    pub runs_used: i32,
    pub runs: [G4ScatterRun; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4ScatterParams"][::std::mem::size_of::<G4ScatterParams>() - 272usize];
    ["Alignment of G4ScatterParams"][::std::mem::align_of::<G4ScatterParams>() - 8usize];
    ["Offset of field: G4ScatterParams::src"][::std::mem::offset_of!(G4ScatterParams, src) - 0usize];
    ["Offset of field: G4ScatterParams::runs_used"][::std::mem::offset_of!(G4ScatterParams, runs_used) - 8usize];
    ["Offset of field: G4ScatterParams::runs"][::std::mem::offset_of!(G4ScatterParams, runs) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4SyntheticParams {
    pub dst: *mut u16,
    pub n: i64,
    pub k: i32,
    pub packed: i32,
    pub key: u32,
    pub center: i32,
    pub bits: i32,
    pub scale: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4SyntheticParams"][::std::mem::size_of::<G4SyntheticParams>() - 40usize];
    ["Alignment of G4SyntheticParams"][::std::mem::align_of::<G4SyntheticParams>() - 8usize];
    ["Offset of field: G4SyntheticParams::dst"][::std::mem::offset_of!(G4SyntheticParams, dst) - 0usize];
    ["Offset of field: G4SyntheticParams::n"][::std::mem::offset_of!(G4SyntheticParams, n) - 8usize];
    ["Offset of field: G4SyntheticParams::k"][::std::mem::offset_of!(G4SyntheticParams, k) - 16usize];
    ["Offset of field: G4SyntheticParams::packed"][::std::mem::offset_of!(G4SyntheticParams, packed) - 20usize];
    ["Offset of field: G4SyntheticParams::key"][::std::mem::offset_of!(G4SyntheticParams, key) - 24usize];
    ["Offset of field: G4SyntheticParams::center"][::std::mem::offset_of!(G4SyntheticParams, center) - 28usize];
    ["Offset of field: G4SyntheticParams::bits"][::std::mem::offset_of!(G4SyntheticParams, bits) - 32usize];
    ["Offset of field: G4SyntheticParams::scale"][::std::mem::offset_of!(G4SyntheticParams, scale) - 36usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct G4SampleParams {
    pub logits: *const f32,
    pub slot: *const i32,
    pub status: *const i32,
    pub row_slot: *const i32,
    pub step: *const i32,
    pub slots: *mut G4Slot,
    pub mask: *const u32,
    pub bias: *const G4Bias,
    pub words: *mut G4Words,
    pub forced: *mut i32,
    pub counts: *mut u16,
    pub prompt_bits: *const u32,
    pub suppressed: *const i32,
    pub group_max: *mut u32,
    pub group_sum: *mut f32,
    pub raw_max: *mut u32,
    pub raw_sum: *mut f32,
    pub records: *mut G4Record,
    pub logprobs: *mut G4Logprobs,
    pub rows: i32,
    pub vocab: i32,
    pub groups: i32,
    pub mask_words: i32,
    pub suppressed_count: i32,
    pub eos_count: i32,
    pub eos_ids: [i32; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of G4SampleParams"][::std::mem::size_of::<G4SampleParams>() - 240usize];
    ["Alignment of G4SampleParams"][::std::mem::align_of::<G4SampleParams>() - 8usize];
    ["Offset of field: G4SampleParams::logits"][::std::mem::offset_of!(G4SampleParams, logits) - 0usize];
    ["Offset of field: G4SampleParams::slot"][::std::mem::offset_of!(G4SampleParams, slot) - 8usize];
    ["Offset of field: G4SampleParams::status"][::std::mem::offset_of!(G4SampleParams, status) - 16usize];
    ["Offset of field: G4SampleParams::row_slot"][::std::mem::offset_of!(G4SampleParams, row_slot) - 24usize];
    ["Offset of field: G4SampleParams::step"][::std::mem::offset_of!(G4SampleParams, step) - 32usize];
    ["Offset of field: G4SampleParams::slots"][::std::mem::offset_of!(G4SampleParams, slots) - 40usize];
    ["Offset of field: G4SampleParams::mask"][::std::mem::offset_of!(G4SampleParams, mask) - 48usize];
    ["Offset of field: G4SampleParams::bias"][::std::mem::offset_of!(G4SampleParams, bias) - 56usize];
    ["Offset of field: G4SampleParams::words"][::std::mem::offset_of!(G4SampleParams, words) - 64usize];
    ["Offset of field: G4SampleParams::forced"][::std::mem::offset_of!(G4SampleParams, forced) - 72usize];
    ["Offset of field: G4SampleParams::counts"][::std::mem::offset_of!(G4SampleParams, counts) - 80usize];
    ["Offset of field: G4SampleParams::prompt_bits"][::std::mem::offset_of!(G4SampleParams, prompt_bits) - 88usize];
    ["Offset of field: G4SampleParams::suppressed"][::std::mem::offset_of!(G4SampleParams, suppressed) - 96usize];
    ["Offset of field: G4SampleParams::group_max"][::std::mem::offset_of!(G4SampleParams, group_max) - 104usize];
    ["Offset of field: G4SampleParams::group_sum"][::std::mem::offset_of!(G4SampleParams, group_sum) - 112usize];
    ["Offset of field: G4SampleParams::raw_max"][::std::mem::offset_of!(G4SampleParams, raw_max) - 120usize];
    ["Offset of field: G4SampleParams::raw_sum"][::std::mem::offset_of!(G4SampleParams, raw_sum) - 128usize];
    ["Offset of field: G4SampleParams::records"][::std::mem::offset_of!(G4SampleParams, records) - 136usize];
    ["Offset of field: G4SampleParams::logprobs"][::std::mem::offset_of!(G4SampleParams, logprobs) - 144usize];
    ["Offset of field: G4SampleParams::rows"][::std::mem::offset_of!(G4SampleParams, rows) - 152usize];
    ["Offset of field: G4SampleParams::vocab"][::std::mem::offset_of!(G4SampleParams, vocab) - 156usize];
    ["Offset of field: G4SampleParams::groups"][::std::mem::offset_of!(G4SampleParams, groups) - 160usize];
    ["Offset of field: G4SampleParams::mask_words"][::std::mem::offset_of!(G4SampleParams, mask_words) - 164usize];
    ["Offset of field: G4SampleParams::suppressed_count"]
        [::std::mem::offset_of!(G4SampleParams, suppressed_count) - 168usize];
    ["Offset of field: G4SampleParams::eos_count"][::std::mem::offset_of!(G4SampleParams, eos_count) - 172usize];
    ["Offset of field: G4SampleParams::eos_ids"][::std::mem::offset_of!(G4SampleParams, eos_ids) - 176usize];
};
pub const G4_ID_g4_pack: G4KernelId = 0;
pub const G4_ID_g4_rope_table: G4KernelId = 1;
pub const G4_ID_g4_embed: G4KernelId = 2;
pub const G4_ID_g4_rmsnorm: G4KernelId = 3;
pub const G4_ID_g4_add_norm: G4KernelId = 4;
pub const G4_ID_g4_gelu_gate: G4KernelId = 5;
pub const G4_ID_g4_per_layer_input: G4KernelId = 6;
pub const G4_ID_g4_expert_input: G4KernelId = 7;
pub const G4_ID_g4_expert_route: G4KernelId = 8;
pub const G4_ID_g4_expert_group: G4KernelId = 9;
pub const G4_ID_g4_expert_gemm_t1: G4KernelId = 10;
pub const G4_ID_g4_expert_gemm_t8: G4KernelId = 11;
pub const G4_ID_g4_expert_combine: G4KernelId = 12;
pub const G4_ID_g4_gemm_t1: G4KernelId = 13;
pub const G4_ID_g4_gemm_t2: G4KernelId = 14;
pub const G4_ID_g4_gemm_t4: G4KernelId = 15;
pub const G4_ID_g4_gemm_t8: G4KernelId = 16;
pub const G4_ID_g4_gemm_t16: G4KernelId = 17;
pub const G4_ID_g4_logits_t1: G4KernelId = 18;
pub const G4_ID_g4_logits_t2: G4KernelId = 19;
pub const G4_ID_g4_logits_t4: G4KernelId = 20;
pub const G4_ID_g4_logits_t8: G4KernelId = 21;
pub const G4_ID_g4_logits_t16: G4KernelId = 22;
pub const G4_ID_g4_logits_tiled: G4KernelId = 23;
pub const G4_ID_g4_gemm_tiled: G4KernelId = 24;
pub const G4_ID_g4_qkv_prep: G4KernelId = 25;
pub const G4_ID_g4_kv_copy: G4KernelId = 26;
pub const G4_ID_g4_attn_decode_h256_s128: G4KernelId = 27;
pub const G4_ID_g4_attn_decode_h256_s32: G4KernelId = 28;
pub const G4_ID_g4_attn_decode_h512_s256: G4KernelId = 29;
pub const G4_ID_g4_attn_decode_h512_s32: G4KernelId = 30;
pub const G4_ID_g4_attn_decode_fold: G4KernelId = 31;
pub const G4_ID_g4_attn_prompt_h256_s128: G4KernelId = 32;
pub const G4_ID_g4_attn_prompt_h256_s32: G4KernelId = 33;
pub const G4_ID_g4_attn_prompt_h512_s256: G4KernelId = 34;
pub const G4_ID_g4_attn_prompt_h512_s32: G4KernelId = 35;
pub const G4_ID_g4_step_begin: G4KernelId = 36;
pub const G4_ID_g4_tail: G4KernelId = 37;
pub const G4_ID_g4_scatter: G4KernelId = 38;
pub const G4_ID_g4_synthetic: G4KernelId = 39;
pub const G4_ID_g4_sample_groups: G4KernelId = 40;
pub const G4_ID_g4_sample_rows: G4KernelId = 41;
pub const G4_KERNEL_COUNT: G4KernelId = 42;
pub type G4KernelId = ::std::os::raw::c_uint;
