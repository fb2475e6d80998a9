//! One launcher per kernel: asserts what the kernel's file asks for, computes grid and shared memory as that file
//! states them, fills the parameter struct.

use super::Kernels;
use super::bindings::*;
use super::geometry::{
    attention_shared_bytes, gemm_geometry, gemm_instance_tokens, gemm_stage_budget, gemm_staged_bytes, slab_count,
};
use crate::device::{DeviceSlice, DriverError, Launch, Stream};
use crate::model::synthetic::{self, Spread};

pub(super) type Result = std::result::Result<(), DriverError>;

/// K and V of one layer: the view struct and what its pointers cover.
pub type KvView = G4KvView;

/// A packed weight and its logical shape.
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    /// Packed bf16, `ceil(n/16) * ceil(k/16) * 256` elements.
    pub weight: DeviceSlice<u16>,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
}

impl Gemm {
    /// Elements of a packed weight of this shape.
    pub fn packed_len(n: usize, k: usize) -> usize {
        n.div_ceil(16) * k.div_ceil(16) * 256
    }
}

/// Arguments of `g4_qkv_prep`.
pub struct QkvPrep {
    pub qkv: DeviceSlice<u16>,
    pub q_weight: DeviceSlice<u16>,
    /// None where the layer reads another's K and V; then `kv` has no heads.
    pub k_weight: Option<DeviceSlice<u16>>,
    pub cos: DeviceSlice<u16>,
    pub sin: DeviceSlice<u16>,
    pub position: DeviceSlice<i32>,
    pub slot: DeviceSlice<i32>,
    pub q_out: DeviceSlice<u16>,
    pub kv: KvView,
    pub rows: usize,
    pub heads: usize,
    pub pairs: usize,
    pub k_eq_v: bool,
    pub eps: f32,
}

/// Arguments of `g4_attn_decode_*`.
pub struct AttnDecode {
    pub q: DeviceSlice<u16>,
    pub out: DeviceSlice<u16>,
    pub position: DeviceSlice<i32>,
    pub slot: DeviceSlice<i32>,
    pub item_begin: DeviceSlice<i32>,
    pub kv: KvView,
    pub part_o: DeviceSlice<f32>,
    pub part_ml: DeviceSlice<f32>,
    pub ticket: DeviceSlice<u32>,
    pub rows: usize,
    pub heads: usize,
    /// Keys in (q - window, q]; 0 means all.
    pub window: usize,
    /// Keys a segment.
    pub segment: usize,
}

/// Arguments of `g4_attn_prompt_*`.
pub struct AttnPrompt {
    pub q: DeviceSlice<u16>,
    pub out: DeviceSlice<u16>,
    pub kv: KvView,
    /// Chunk scratch; `k` null: everything is read from `kv`.
    pub recent: KvView,
    pub slot: usize,
    pub start: usize,
    pub rows: usize,
    pub heads: usize,
    pub window: usize,
    pub segment: usize,
}

/// Arguments of `g4_step_begin`.
pub struct StepBegin {
    pub row_slot: DeviceSlice<i32>,
    pub slots: DeviceSlice<G4Slot>,
    pub sliding_table: DeviceSlice<i32>,
    pub global_table: DeviceSlice<i32>,
    pub token: DeviceSlice<i32>,
    pub position: DeviceSlice<i32>,
    pub slot: DeviceSlice<i32>,
    pub status: DeviceSlice<i32>,
    pub sliding_item_begin: DeviceSlice<i32>,
    pub global_item_begin: DeviceSlice<i32>,
    pub rows: usize,
    pub sliding_pages: usize,
    pub global_pages: usize,
    pub page_tokens_sliding: usize,
    pub page_tokens_global: usize,
    pub window: usize,
    pub segment_sliding: usize,
    pub segment_global: usize,
}

/// One run of `g4_scatter`: `count` words of the upload from `first` on.
#[derive(Clone, Copy)]
pub struct ScatterRun {
    pub dst: DeviceSlice<i32>,
    /// Places in `dst`, in strides; none: 0, 1, 2, ...; negative: dropped.
    pub index: Option<DeviceSlice<i32>>,
    pub first: usize,
    pub count: usize,
    /// Words from one place to the next.
    pub stride: usize,
}

const NO_RUN: G4ScatterRun =
    G4ScatterRun { dst: std::ptr::null_mut(), index: std::ptr::null(), first: 0, count: 0, stride: 0 };

/// Attention instance of a head dim and a segment; the start checks that it exists.
fn attention_id(decode: bool, head_dim: usize, segment: usize) -> G4KernelId {
    match (decode, head_dim, segment) {
        (true, 256, 128) => G4_ID_g4_attn_decode_h256_s128,
        (true, 256, 32) => G4_ID_g4_attn_decode_h256_s32,
        (true, 512, 256) => G4_ID_g4_attn_decode_h512_s256,
        (true, 512, 32) => G4_ID_g4_attn_decode_h512_s32,
        (false, 256, 128) => G4_ID_g4_attn_prompt_h256_s128,
        (false, 256, 32) => G4_ID_g4_attn_prompt_h256_s32,
        (false, 512, 256) => G4_ID_g4_attn_prompt_h512_s256,
        (false, 512, 32) => G4_ID_g4_attn_prompt_h512_s32,
        _ => unreachable!("no attention instance for head dim {head_dim} and segment {segment}"),
    }
}

/// The driver takes at most 65,535 blocks in the second dimension.
pub(super) fn grid(x: usize, y: usize, threads: u32, shared_bytes: usize) -> Launch {
    assert!(y <= 65_535, "{y} blocks in y");
    Launch { grid: [x as u32, y as u32, 1], threads, shared_bytes: shared_bytes as u32 }
}

impl Kernels {
    /// Row-major `[n][k]` bf16 into fragment order.
    pub fn pack(&self, s: &Stream, src: DeviceSlice<u16>, dst: DeviceSlice<u16>, n: usize, k: usize) -> Result {
        assert!(src.len() == n * k && dst.len() == Gemm::packed_len(n, k));
        let params = G4PackParams { src: src.ptr(), dst: dst.ptr(), n: n as i32, k: k as i32 };
        let blocks = (n.div_ceil(16) * k.div_ceil(16)).div_ceil(8);
        // SAFETY: lengths asserted above.
        unsafe { self.launch(s, G4_ID_g4_pack, grid(blocks, 1, 256, 0), &params) }
    }

    /// Made-up values of the tensor `name`, row-major.
    pub fn synthetic(&self, s: &Stream, name: &str, spread: Spread, dst: DeviceSlice<u16>) -> Result {
        self.launch_synthetic(s, synthetic_params(name, spread, dst, dst.len(), 1, false))
    }

    /// Made-up values of the tensor `name` `[n][k]`, in fragment order.
    pub fn synthetic_packed(
        &self,
        s: &Stream,
        name: &str,
        spread: Spread,
        dst: DeviceSlice<u16>,
        n: usize,
        k: usize,
    ) -> Result {
        assert!(dst.len() == Gemm::packed_len(n, k));
        self.launch_synthetic(s, synthetic_params(name, spread, dst, n, k, true))
    }

    fn launch_synthetic(&self, s: &Stream, params: G4SyntheticParams) -> Result {
        let (n, k) = (params.n as usize, params.k as usize);
        let groups = if params.packed == 1 { Gemm::packed_len(n, k) / 8 } else { (n * k).div_ceil(8) };
        // SAFETY: dst holds n * k elements, or the packed length of [n][k]: both makers of the struct see to it.
        unsafe { self.launch(s, G4_ID_g4_synthetic, grid(groups.div_ceil(2048), 1, 256, 0), &params) }
    }

    /// cos and sin tables `[positions][pairs]`.
    #[allow(clippy::too_many_arguments)]
    pub fn rope_table(
        &self,
        s: &Stream,
        cos: DeviceSlice<u16>,
        sin: DeviceSlice<u16>,
        theta: f64,
        positions: usize,
        pairs: usize,
        head_dim: usize,
    ) -> Result {
        assert!(cos.len() == positions * pairs && sin.len() == cos.len() && head_dim.is_power_of_two());
        let params = G4RopeTableParams {
            cos: cos.ptr(),
            sin: sin.ptr(),
            theta,
            positions: positions as i32,
            pairs: pairs as i32,
            head_dim: head_dim as i32,
        };
        // SAFETY: lengths asserted above.
        unsafe { self.launch(s, G4_ID_g4_rope_table, grid(positions.div_ceil(64), 1, 256, 0), &params) }
    }

    /// `out = bf16(x W^T)` for any number of rows: the small kernel up to 128, the tiled one above; the same bits.
    pub fn gemm(&self, s: &Stream, w: Gemm, x: DeviceSlice<u16>, out: DeviceSlice<u16>, rows: usize) -> Result {
        assert!(out.len() >= rows * w.n);
        let params = gemm_params(w, x, out.ptr().cast(), rows, 0.0);
        let (id, launch) = self.gemm_launch(G4_ID_g4_gemm_t1, G4_ID_g4_gemm_tiled, &params);
        // SAFETY: lengths asserted here and in gemm_params.
        unsafe { self.launch(s, id, launch, &params) }
    }

    /// Rows of the largest small GEMM whose three stages fit a block's shared memory: 128, or 64 on small devices.
    fn gemm_rows_max(&self) -> usize {
        if self.shared_bytes_max >= gemm_staged_bytes(16, 8, 0) { G4_ROWS_DECODE_MAX as usize } else { 64 }
    }

    /// `out = softcap(x W^T)` in f32 for any number of rows, as [`Kernels::gemm`].
    pub fn logits(
        &self,
        s: &Stream,
        w: Gemm,
        x: DeviceSlice<u16>,
        out: DeviceSlice<f32>,
        rows: usize,
        softcap: f32,
    ) -> Result {
        assert!(out.len() >= rows * w.n);
        let params = gemm_params(w, x, out.ptr().cast(), rows, softcap);
        let (id, launch) = self.gemm_launch(G4_ID_g4_logits_t1, G4_ID_g4_logits_tiled, &params);
        // SAFETY: lengths asserted here and in gemm_params.
        unsafe { self.launch(s, id, launch, &params) }
    }

    /// The instance of a product, of those from `small` on or `tiled`, and its launch.
    fn gemm_launch(&self, small: G4KernelId, tiled: G4KernelId, p: &G4GemmParams) -> (G4KernelId, Launch) {
        let (rows, n, shared_max) = (p.tokens as usize, p.n as usize, self.shared_bytes_max);
        if rows > self.gemm_rows_max() {
            let blocks = n.div_ceil(16).div_ceil(8) * rows.div_ceil(G4_GEMM_TILED_TOKENS as usize);
            let shared = gemm_staged_bytes(8, 8, gemm_stage_budget(shared_max, 8, 8));
            return (tiled, grid(blocks, 1, G4_GEMM_THREADS, shared));
        }
        let tiles = gemm_instance_tokens(rows) / 8;
        let (blocks, shared) = gemm_geometry(tiles, n, p.slabs as usize, shared_max);
        (small + tiles.trailing_zeros(), grid(blocks, 1, G4_GEMM_THREADS, shared))
    }

    /// Q, K and V of `rows` rows: norms, RoPE, the KV write.
    pub fn qkv_prep(&self, s: &Stream, a: &QkvPrep) -> Result {
        let (hd, kv_heads) = (a.kv.head_dim as usize, a.kv.kv_heads as usize);
        let width = (a.heads + kv_heads * if a.k_eq_v { 1 } else { 2 }) * hd;
        assert!(a.qkv.len() >= a.rows * width && a.q_out.len() >= a.rows * a.heads * hd);
        assert!(a.q_weight.len() == hd && a.k_weight.map(|w| w.len()) == (kv_heads > 0).then_some(hd));
        assert!(a.position.len() >= a.rows && a.slot.len() >= a.rows && a.cos.len() == a.sin.len());
        let params = G4QkvPrepParams {
            qkv: a.qkv.ptr(),
            q_weight: a.q_weight.ptr(),
            k_weight: a.k_weight.map_or(std::ptr::null(), |w| w.ptr().cast_const()),
            cos: a.cos.ptr(),
            sin: a.sin.ptr(),
            position: a.position.ptr(),
            slot: a.slot.ptr(),
            q_out: a.q_out.ptr(),
            kv: a.kv,
            rows: a.rows as i32,
            heads: a.heads as i32,
            pairs: a.pairs as i32,
            k_eq_v: a.k_eq_v.into(),
            eps: a.eps,
        };
        let launch = grid(a.rows, (a.heads + 2 * kv_heads).div_ceil(8), G4_ROW_THREADS, 8192);
        // SAFETY: lengths asserted above; positions are below the tables' length (position_limit), pages are granted.
        unsafe { self.launch(s, G4_ID_g4_qkv_prep, launch, &params) }
    }

    /// K and V of positions `[begin, end)` of a slot from one view to the other.
    pub fn kv_copy(&self, s: &Stream, src: KvView, dst: KvView, slot: usize, begin: usize, end: usize) -> Result {
        assert!(src.kv_heads == dst.kv_heads && src.head_dim == dst.head_dim);
        if begin >= end {
            return Ok(());
        }
        let params = G4KvCopyParams { src, dst, slot: slot as i32, begin: begin as i32, end: end as i32 };
        let launch = grid(end.div_ceil(16) - begin / 16, src.kv_heads as usize, 256, 0);
        // SAFETY: both views cover the positions (scratch and ring are sized for it).
        unsafe { self.launch(s, G4_ID_g4_kv_copy, launch, &params) }
    }

    /// Attention of one query a row. Where segments grow with the context a kernel of its own folds them.
    pub fn attn_decode(&self, s: &Stream, a: &AttnDecode) -> Result {
        let hd = a.kv.head_dim as usize;
        assert!(a.q.len() >= a.rows * a.heads * hd && a.out.len() >= a.rows * a.heads * hd);
        assert!(a.item_begin.len() > a.rows && a.ticket.len() >= a.rows * a.kv.kv_heads as usize);
        let fold_apart = a.window == 0;
        let params = G4AttnDecodeParams {
            q: a.q.ptr(),
            out: a.out.ptr(),
            position: a.position.ptr(),
            slot: a.slot.ptr(),
            item_begin: a.item_begin.ptr(),
            kv: a.kv,
            part_o: a.part_o.ptr(),
            part_ml: a.part_ml.ptr(),
            ticket: if fold_apart { std::ptr::null_mut() } else { a.ticket.ptr() },
            rows: a.rows as i32,
            heads: a.heads as i32,
            window: a.window as i32,
        };
        let shared = attention_shared_bytes(hd, a.segment);
        let launch = grid(self.attention_blocks as usize, 1, G4_ATTN_THREADS, shared);
        // SAFETY: lengths asserted above; partials are sized for the segments admission counts.
        unsafe { self.launch(s, attention_id(true, hd, a.segment), launch, &params)? };
        if fold_apart {
            // SAFETY: as above; head dims are 256 or 512 (attention_id), four columns a thread.
            unsafe { self.launch(s, G4_ID_g4_attn_decode_fold, grid(a.rows, a.heads, 128, 0), &params)? };
        }
        Ok(())
    }

    /// Attention of a prompt chunk.
    pub fn attn_prompt(&self, s: &Stream, a: &AttnPrompt) -> Result {
        let (hd, kv_heads) = (a.kv.head_dim as usize, a.kv.kv_heads as usize);
        assert!(a.q.len() >= a.rows * a.heads * hd && a.out.len() >= a.rows * a.heads * hd);
        let params = G4AttnPromptParams {
            q: a.q.ptr(),
            out: a.out.ptr(),
            kv: a.kv,
            recent: a.recent,
            slot: a.slot as i32,
            start: a.start as i32,
            rows: a.rows as i32,
            heads: a.heads as i32,
            window: a.window as i32,
        };
        let queries_a_tile = G4_ATTN_ROWS as usize / (a.heads / kv_heads);
        let shared = attention_shared_bytes(hd, a.segment);
        let launch = grid(a.rows.div_ceil(queries_a_tile), kv_heads, G4_ATTN_THREADS, shared);
        // SAFETY: lengths asserted above; the views cover all positions up to start + rows.
        unsafe { self.launch(s, attention_id(false, hd, a.segment), launch, &params) }
    }

    /// First node of a decode graph.
    pub fn step_begin(&self, s: &Stream, a: &StepBegin) -> Result {
        assert!([a.row_slot, a.token, a.position, a.slot, a.status].iter().all(|v| v.len() >= a.rows));
        assert!(a.sliding_item_begin.len() > a.rows && a.global_item_begin.len() > a.rows);
        assert!(a.rows <= G4_ROWS_DECODE_MAX as usize);
        let params = G4StepBeginParams {
            row_slot: a.row_slot.ptr(),
            slots: a.slots.ptr(),
            sliding_table: a.sliding_table.ptr(),
            global_table: a.global_table.ptr(),
            token: a.token.ptr(),
            position: a.position.ptr(),
            slot: a.slot.ptr(),
            status: a.status.ptr(),
            sliding_item_begin: a.sliding_item_begin.ptr(),
            global_item_begin: a.global_item_begin.ptr(),
            rows: a.rows as i32,
            sliding_pages: a.sliding_pages as i32,
            global_pages: a.global_pages as i32,
            page_tokens_sliding: a.page_tokens_sliding as i32,
            page_tokens_global: a.page_tokens_global as i32,
            window: a.window as i32,
            segment_sliding: a.segment_sliding as i32,
            segment_global: a.segment_global as i32,
        };
        // SAFETY: lengths asserted above; row indices are below the slot count (the host wrote them).
        unsafe { self.launch(s, G4_ID_g4_step_begin, grid(1, 1, 128, 64), &params) }
    }

    /// Last node of a decode graph; `rows` 0 advances the step counter alone.
    pub fn tail(
        &self,
        s: &Stream,
        slot: DeviceSlice<i32>,
        slots: DeviceSlice<G4Slot>,
        step: DeviceSlice<i32>,
        rows: usize,
    ) -> Result {
        assert!(slot.len() >= rows && step.len() == 1);
        let params = G4TailParams { slot: slot.ptr(), slots: slots.ptr(), step: step.ptr(), rows: rows as i32 };
        // SAFETY: lengths asserted above; slot indices were made by step_begin or written by the host.
        unsafe { self.launch(s, G4_ID_g4_tail, grid(1, 1, 128, 0), &params) }
    }

    /// Words of `src` to their places, run by run, at most [`G4_SCATTER_RUNS`].
    pub fn scatter(&self, s: &Stream, src: DeviceSlice<i32>, runs: &[ScatterRun]) -> Result {
        let mut params =
            G4ScatterParams { src: src.ptr(), runs_used: runs.len() as i32, runs: [NO_RUN; G4_SCATTER_RUNS as usize] };
        for (place, run) in params.runs[..runs.len()].iter_mut().zip(runs) {
            let ScatterRun { dst, index, first, count, stride } = *run;
            assert!(first + count <= src.len());
            // Without an index the last word's place; with one the kernel's file leaves the range to the host.
            assert!(index.is_some() || count == 0 || (count - 1) * stride < dst.len());
            assert!(index.is_none_or(|index| index.len() >= count));
            *place = G4ScatterRun {
                dst: dst.ptr(),
                index: index.map_or(std::ptr::null(), |index| index.ptr().cast_const()),
                first: first as i32,
                count: count as i32,
                stride: stride as i32,
            };
        }
        // SAFETY: lengths asserted above; indices are below dst.len() / stride (the host wrote them).
        unsafe { self.launch(s, G4_ID_g4_scatter, grid(runs.len().max(1), 1, 256, 0), &params) }
    }

    /// The sampler: groups, then rows.
    pub fn sample(&self, s: &Stream, params: &G4SampleParams) -> Result {
        let (rows, groups) = (params.rows as usize, params.groups as usize);
        assert!((1..=G4_ROWS_DECODE_MAX as usize).contains(&rows), "{rows} rows");
        assert!(groups <= G4_SAMPLE_GROUPS_MAX as usize);
        assert_eq!(groups, (params.vocab as usize).div_ceil(G4_SAMPLE_GROUP as usize));
        assert_eq!(params.mask_words as usize, (params.vocab as usize).div_ceil(32));
        // SAFETY: the caller (the sampler) fills the struct from its own buffers, sized for the largest bucket.
        unsafe {
            self.launch(s, G4_ID_g4_sample_groups, grid(groups.div_ceil(8), rows, 256, 0), params)?;
            let shared = G4_SAMPLE_SHARED_BYTES as usize;
            self.launch(s, G4_ID_g4_sample_rows, grid(rows, 1, G4_SAMPLE_THREADS, shared), params)
        }
    }
}

fn synthetic_params(
    name: &str,
    spread: Spread,
    dst: DeviceSlice<u16>,
    n: usize,
    k: usize,
    packed: bool,
) -> G4SyntheticParams {
    assert!(spread.bits >= 1 && spread.center.abs() + (1 << spread.bits) <= 256 && spread.exponent < 127);
    G4SyntheticParams {
        dst: dst.ptr(),
        n: n as i64,
        k: k as i32,
        packed: packed.into(),
        key: synthetic::key(name),
        center: spread.center,
        bits: spread.bits as i32,
        scale: f32::from_bits((127 - spread.exponent) << 23),
    }
}

fn gemm_params(w: Gemm, x: DeviceSlice<u16>, out: *mut std::ffi::c_void, rows: usize, softcap: f32) -> G4GemmParams {
    assert!(w.weight.len() == Gemm::packed_len(w.n, w.k) && x.len() >= rows * w.k && w.k.is_multiple_of(8));
    G4GemmParams {
        weight: w.weight.ptr(),
        x: x.ptr(),
        out,
        tokens: rows as i32,
        n: w.n as i32,
        k: w.k as i32,
        x_stride: w.k as i32,
        out_stride: w.n as i32,
        slabs: slab_count(w.k) as i32,
        softcap,
    }
}
