// The contract between the host and the kernels: one plain parameter struct a kernel, passed by value, the records and
// slot state both sides share, the constants both sides compute with, and the table of kernel names.
//
// C, so that bindgen reads it as it stands. Every struct is made of pointers, 32-bit and 64-bit scalars; sizes and
// offsets are asserted in both languages (src/model/kernels/bindings.rs is generated from this file).
// bf16 values travel as uint16_t bit patterns here. Shapes stand beside every pointer; the last axis is contiguous.
#ifndef GEMMA4_KERNELS_H
#define GEMMA4_KERNELS_H

#include <stdint.h>

// ---- Constants of the numeric contract and of launch geometry -------------------------------------------------------

enum {
  G4_WARP = 32,
  G4_TILE_M = 16,          // weight rows of one A fragment
  G4_TILE_N = 8,           // tokens of one B fragment
  G4_TILE_K = 16,          // depth of one product step
  G4_ROW_LANES = 256,      // virtual lanes of a row reduction (numerics, section 4)
  G4_SLAB_STEPS_MIN = 11,  // S(K) = largest of 8, 4, 2, 1 dividing n = ceil(K/16) with n / S at least this
  G4_ROWS_DECODE_MAX = 128,   // largest bucket, and the largest token count of the small GEMM
  G4_GEMM_THREADS = 256,
  G4_GEMM_TILED_ROWS = 128,   // weight rows a block of the prompt GEMM
  G4_GEMM_TILED_TOKENS = 64,  // tokens a block of the prompt GEMM
  G4_ROW_THREADS = 256,       // threads of every one-block-a-row kernel
  G4_ATTN_THREADS = 256,
  G4_ATTN_ROWS = 16,          // (query, head) pairs of one attention tile; queries a tile = 16 / (heads a KV head)
  G4_SLOT_STOP_IDS = 16,      // stop ids a slot can hold beside the model's EOS list
  G4_EOS_IDS = 16,            // EOS ids a model can have
  G4_SCATTER_RUNS = 8,        // runs of one packed upload
  G4_SAMPLE_GROUP = 256,        // logits of a group: fixes the order of the sampler's float sums
  G4_SAMPLE_GROUPS_MAX = 1024,  // groups of the largest vocabulary, 262144
  G4_SAMPLE_THREADS = 512,      // threads of g4_sample_rows, one block a row
  G4_SAMPLE_CANDIDATES = 4096,  // candidates that block keeps in shared memory; more are read again from the row
  G4_SAMPLE_SHARED_BYTES = 45568,  // dynamic shared memory of that block
  G4_EXPERTS_MAX = 256,         // experts of a layer: eight a lane of the router's warp, one a thread that groups
  G4_EXPERTS_TOP_MAX = 16,      // experts a token goes to
  G4_EXPERT_TILE_TOKENS = 8,    // tokens of one expert a block of the products keeps: where experts have few,
  G4_EXPERT_TILE_TOKENS_MANY = 64,  // and where they have many
  G4_LOGPROBS_MAX = 20,         // most likely tokens a row can report
  G4_BIAS_MAX = 2048,           // entries of a slot's sparse overlay: logit_bias, and bad words of one token
  G4_BAD_WORDS_MAX = 128,       // bad words of more than one token
  G4_BAD_WORD_TOKENS_MAX = 16,  // tokens of one of them
  G4_BAD_WORD_IDS_MAX = 1024,   // tokens of all of them
};

// Bits of G4Sampling.flags.
enum {
  G4_SAMPLING_SUMS = 1,       // the row needs its groups' sums: plain temperature, or top-p of the whole row
  G4_SAMPLING_LOGPROBS = 2,   // the record carries the token's log-probability, and the row has a G4Logprobs
  G4_SAMPLING_MASK = 4,       // only ids whose bit is set in the slot's mask compete
  G4_SAMPLING_BIAS = 8,       // bias_count entries of the slot's sparse overlay are added
  G4_SAMPLING_PENALTIES = 16, // penalty_table holds the slot's counts
  G4_SAMPLING_WORDS = 32,     // the slot's bad words of several tokens are watched
  G4_SAMPLING_PROCESSED = 64, // log-probabilities are of what is drawn from, not of the raw logits; needs sums
};

// A record's token, when negative, is a status.
enum {
  G4_TOKEN_NONE = -1,       // padding row or a row that is no longer live: nothing was computed
  G4_TOKEN_NAN = -2,        // the row's logits held a NaN
  G4_TOKEN_MASKED = -3,     // every logit of the row is minus infinity
  G4_TOKEN_BAD_STATE = -4,  // page -1 or a position past the limit (step rule 7): nothing was written
};

// ---- State shared by host and device --------------------------------------------------------------------------------

// What a request's sampling needs; all zeros is greedy. Written by the host only, with the slot it stands in.
// The host resolves what is off: temperature 0 for every greedy rule, top_k 0, top_p, typical_p 1, min_p 0,
// xtc_probability 0.
typedef struct G4Sampling {
  float temperature;
  float top_p;
  float min_p;
  float typical_p;
  float xtc_probability;
  float xtc_threshold;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  int32_t top_k;
  int32_t min_tokens;     // EOS and stop ids do not compete before this output index
  int32_t logprobs;       // most likely tokens to report, at most G4_LOGPROBS_MAX
  int32_t penalty_table;  // with G4_SAMPLING_PENALTIES
  int32_t bias_count;     // with G4_SAMPLING_BIAS
  uint32_t flags;         // G4_SAMPLING_*
  uint32_t choice;        // of n > 1: choices share the seed and draw from streams of their own
  uint32_t seed[2];       // key of the generator, low word first
} G4Sampling;

// What a running sequence owns on the device. Uploaded whole when it enters; afterwards position, last_token,
// output_index and live belong to the device (step rule 1).
typedef struct G4Slot {
  int32_t live;            // 1 while the sequence decodes; the sampler clears it on EOS, a stop id or the limit
  int32_t position;        // position of last_token = tokens whose K and V are in the cache
  int32_t last_token;      // token the next decode step feeds
  int32_t output_index;    // tokens generated so far
  int32_t output_limit;    // live is cleared when output_index reaches it
  int32_t position_limit;  // positions granted pages at admission; a live row at or past it is a bad state
  uint32_t generation;     // raised at each admission to the slot; copied into every record
  int32_t ignore_eos;      // 1: the model's EOS list does not stop this row (stop_ids still do)
  int32_t stop_count;
  int32_t stop_ids[G4_SLOT_STOP_IDS];
  G4Sampling sampling;
} G4Slot;

// One row's result of one step, read back through the pinned slots.
typedef struct G4Record {
  int32_t token;        // >= 0 a token id, < 0 one of G4_TOKEN_*
  float logprob;        // of the token; 0 where the request did not ask
  int32_t step;         // value of the device's step counter
  uint32_t generation;  // generation of the slot
} G4Record;

// One entry of a slot's sparse overlay. Entries ascend by id, one an id; minus infinity bans.
typedef struct G4Bias {
  int32_t id;
  float value;
} G4Bias;

// Bad words of several tokens: the last token of a word does not compete while the output ends in the tokens before it.
// Written by the host when the sequence enters, with active_count 0 and tail -1; then banned and tail are the device's.
typedef struct G4Words {
  int32_t count;
  int32_t begin[G4_BAD_WORDS_MAX + 1];  // tokens of word w: ids[begin[w]] to ids[begin[w + 1] - 1], at least two
  int32_t ids[G4_BAD_WORD_IDS_MAX];
  uint32_t active_count;
  int32_t active[G4_BAD_WORDS_MAX];              // ids banned at this output index, in any order
  int32_t tail[G4_BAD_WORD_TOKENS_MAX];          // last output tokens, latest first, -1 before the first
} G4Words;

// Log-probabilities of one row that asked. Entry i belongs to the i-th row whose slot asks: the entries stand side by
// side behind the records, and the host knows their number. Ids past the row's legal tokens, or past what was asked
// for, are -1.
typedef struct G4Logprobs {
  int32_t step;                       // as in the row's record: an entry that was not written shows
  uint32_t generation;
  int32_t rank;                       // logits of the row that are not below the token's, minus infinities aside
  float token_logprob;                // of the record's token
  int32_t id[G4_LOGPROBS_MAX];        // most likely first, lowest id on ties
  float logprob[G4_LOGPROBS_MAX];
} G4Logprobs;

// K and V of one layer as one family keeps them. A page is page_tokens consecutive positions, a multiple of 16,
// starting at a multiple of page_tokens. Element order inside a page: see csrc/common/kv_layout.h.
typedef struct G4KvView {
  uint16_t* k;           // [pages][kv_heads][page_tokens * head_dim]
  uint16_t* v;           // [pages][kv_heads][page_tokens * head_dim]
  const int32_t* table;  // [slots][table_pages] page ids, -1 where nothing is granted; null: contiguous chunk scratch
  int32_t table_pages;   // position p stands in entry (p / page_tokens) % table_pages of the slot's row (a ring for
                         // the sliding family; for the global one it never wraps)
  int32_t first_page;    // scratch only: position p stands in page p / page_tokens - first_page
  int32_t page_tokens;
  int32_t kv_heads;
  int32_t head_dim;
} G4KvView;

// ---- Parameters, one struct a kernel --------------------------------------------------------------------------------

// g4_pack: row-major weight -> fragment order (csrc/common/pack_layout.h), rows and depth zero-padded to 16.
typedef struct G4PackParams {
  const uint16_t* src;  // [n][k]
  uint16_t* dst;        // [ceil(n_pad/16)][ceil(k/16)][32][8], n_pad = rows rounded up to 16
  int32_t n;
  int32_t k;
} G4PackParams;

// g4_rope_table: cos and sin of position * inv_freq, rounded to bf16, once at load.
typedef struct G4RopeTableParams {
  uint16_t* cos;      // [positions][pairs]
  uint16_t* sin;      // [positions][pairs]
  double theta;       // rope_theta
  int32_t positions;
  int32_t pairs;      // rotating pairs: head_dim/2, or int(partial_rotary_factor * head_dim / 2) when proportional
  int32_t head_dim;   // denominator of the exponent; a power of two
} G4RopeTableParams;

// g4_embed: x = E[token] * bf16(sqrt(H)), rounded once; rows whose token is negative become zeros.
typedef struct G4EmbedParams {
  const uint16_t* table;   // packed, as g4_pack writes it, [vocab][hidden]
  const int32_t* token;    // [rows]
  uint16_t* x;             // [rows][hidden]
  int32_t rows;
  int32_t hidden;
  uint32_t scale_bf16;     // bf16 bits of sqrt(hidden)
} G4EmbedParams;

// g4_rmsnorm: out = bf16(x * rsqrt(mean(x^2) + eps) * w).
typedef struct G4RmsNormParams {
  const uint16_t* x;       // [rows][width]
  const uint16_t* weight;  // [width]
  uint16_t* out;           // [rows][width]
  int32_t rows;
  int32_t width;
  float eps;
} G4RmsNormParams;

// g4_add_norm: x = bf16(x + RN(y; post)); x = bf16(x * layer_scalar) if given; normed = RN(x; next) if given.
typedef struct G4AddNormParams {
  uint16_t* x;                    // [rows][width], in place
  const uint16_t* y;              // [rows][width]
  const uint16_t* post_weight;    // [width]
  const uint16_t* layer_scalar;   // [1] or null
  const uint16_t* next_weight;    // [width] or null
  uint16_t* normed;               // [rows][width] or null together with next_weight
  int32_t rows;
  int32_t width;
  float eps;
} G4AddNormParams;

// g4_gelu_gate: out = bf16(bf16(gelu_tanh(gate)) * up). Where width is a multiple of 8, strides are and bases are
// 16-byte aligned.
typedef struct G4GeluGateParams {
  const uint16_t* gate;  // [rows][width], rows gate_stride elements apart
  const uint16_t* up;    // [rows][width], rows up_stride elements apart
  uint16_t* out;         // [rows][width]
  int32_t rows;
  int32_t width;
  int32_t gate_stride;
  int32_t up_stride;
} G4GeluGateParams;

// g4_per_layer_input: x = bf16(bf16(RN(bf16(x * context_scale); weight) + bf16(table[token] * table_scale)) * 2^-0.5),
// RN over each layer's width values; the table's part is zero where the token is negative.
typedef struct G4PerLayerInputParams {
  const uint16_t* table;      // [vocab][layers][width], row-major
  const int32_t* token;       // [rows]
  const uint16_t* weight;     // [width]
  uint16_t* x;                // [rows][layers][width], in place: the context projection of the embedding
  int32_t rows;
  int32_t layers;
  int32_t width;              // a multiple of 8, at most 512
  float context_scale;        // hidden^-0.5
  uint32_t table_scale_bf16;  // bf16 bits of sqrt(width)
  float eps;
} G4PerLayerInputParams;

// g4_expert_input: what a mixture of experts reads of the residual, from one mean square.
// router_x = bf16(bf16(RN(x) * router_scale) * root), RN without a weight; expert_x = RN(x; expert_weight).
typedef struct G4ExpertInputParams {
  const uint16_t* x;              // [rows][width]
  const uint16_t* router_scale;   // [width]
  const uint16_t* expert_weight;  // [width]
  uint16_t* router_x;             // [rows][width]
  uint16_t* expert_x;             // [rows][width]
  int32_t rows;
  int32_t width;
  float root;                     // width^-0.5
  float eps;
} G4ExpertInputParams;

// g4_expert_route: the `top` experts of each row with the largest logits, largest first, ties to the lower id; weight =
// softmax over all experts, renormalised over the chosen, times the expert's scale. Pair row * top + rank is a row at
// one of its experts. Padding rows (slot -1) go nowhere: expert -1, weight 0.
typedef struct G4ExpertRouteParams {
  const float* logits;    // [rows][experts]
  const int32_t* slot;    // [rows], -1 for padding
  const uint16_t* scale;  // [experts] bf16
  int32_t* expert;        // [rows][top]
  float* weight;          // [rows][top]
  int32_t rows;
  int32_t experts;        // at most G4_EXPERTS_MAX
  int32_t top;            // at most G4_EXPERTS_TOP_MAX and experts
} G4ExpertRouteParams;

// Pairs that one block of a product takes: those of list[first] to list[first + count - 1], all of one expert.
typedef struct G4ExpertTile {
  int32_t expert;
  int32_t first;
  int32_t count;
} G4ExpertTile;

// g4_expert_group: pairs by expert, cut into tiles of at most tile_tokens. Pairs without an expert are in no tile.
typedef struct G4ExpertGroupParams {
  const int32_t* expert;  // [pairs], -1: none
  int32_t* list;          // [pairs] pairs, expert after expert
  G4ExpertTile* tile;     // [the most that can be: pairs, or experts + (pairs - experts) / tile_tokens where less]
  int32_t* tile_count;    // [1]
  int32_t pairs;
  int32_t experts;        // at most G4_EXPERTS_MAX
  int32_t tile_tokens;
} G4ExpertGroupParams;

// g4_expert_gemm_t1 (tiles of 8 tokens) and g4_expert_gemm_t8 (64): out[pair] = bf16(x[pair / pairs_a_row] W^T), W the
// matrix of the tile's expert.
typedef struct G4ExpertGemmParams {
  const uint16_t* weight;    // [experts] packed [ceil(n/16)][ceil(k/16)][32][8]
  const uint16_t* x;         // [rows] or [pairs], [k], rows x_stride elements apart; as in G4GemmParams
  uint16_t* out;             // [pairs][n], rows out_stride elements apart
  const G4ExpertTile* tile;  // [*tile_count]
  const int32_t* tile_count;
  const int32_t* list;       // [pairs]
  int32_t n;
  int32_t k;
  int32_t x_stride;
  int32_t out_stride;
  int32_t slabs;             // S(K)
  int32_t pairs_a_row;       // of x: the experts of a token, or 1 where x has a row a pair
} G4ExpertGemmParams;

// g4_expert_combine: y = bf16(RN(y; dense_weight) + RN(sum; expert_weight)), sum = bf16 of the fma chain over a row's
// pairs of weight * down, from +0, in rank order. A pair without an expert is left out.
typedef struct G4ExpertCombineParams {
  uint16_t* y;                    // [rows][width], in place: the dense branch before its norm
  const uint16_t* down;           // [rows * top][width]
  const int32_t* expert;          // [rows][top]
  const float* weight;            // [rows][top]
  const uint16_t* dense_weight;   // [width]
  const uint16_t* expert_weight;  // [width]
  int32_t rows;
  int32_t width;                  // a multiple of 8
  int32_t top;
  float eps;
} G4ExpertCombineParams;

// g4_gemm_t{1,2,4,8,16} (1 to 8, 16, 32, 64, 128 tokens) and g4_gemm_tiled (any): out = bf16(x W^T).
// g4_logits_t{1,2,4,8,16} and g4_logits_tiled: out = softcap * tanh((x W^T) / softcap), f32; softcap 0 means none.
typedef struct G4GemmParams {
  const uint16_t* weight;  // packed [ceil(n/16)][ceil(k/16)][32][8]
  const uint16_t* x;       // [tokens][k], rows x_stride elements apart; 16-byte aligned, x_stride a multiple of 8
  void* out;               // [tokens][n] bf16 (f32 for logits), rows out_stride elements apart
  int32_t tokens;
  int32_t n;
  int32_t k;
  int32_t x_stride;
  int32_t out_stride;
  int32_t slabs;           // S(K)
  float softcap;
} G4GemmParams;

// g4_qkv_prep: q = rope(RN(q; q_norm)), k = rope(RN(k; k_norm)), v = RN(v) (v = raw k when k_eq_v); q to q_out, k and v
// into the cache. Rows with slot -1 write nothing to the cache and zeros to q_out. kv.kv_heads 0: q alone, for a layer
// that reads another's K and V; kv.k, kv.v and k_weight are not used then.
typedef struct G4QkvPrepParams {
  const uint16_t* qkv;       // [rows][(heads + kv_heads * (k_eq_v ? 1 : 2)) * head_dim], q | k | v
  const uint16_t* q_weight;  // [head_dim]
  const uint16_t* k_weight;  // [head_dim]
  const uint16_t* cos;       // [positions][pairs]
  const uint16_t* sin;       // [positions][pairs]
  const int32_t* position;   // [rows]
  const int32_t* slot;       // [rows], -1 for padding
  uint16_t* q_out;           // [rows][heads][head_dim]
  G4KvView kv;
  int32_t rows;
  int32_t heads;
  int32_t pairs;             // dims i < pairs rotate with i + head_dim/2; the others pass through
  int32_t k_eq_v;
  float eps;
} G4QkvPrepParams;

// g4_kv_copy: K and V of positions [begin, end) of one sequence from one view to the other, bit for bit.
typedef struct G4KvCopyParams {
  G4KvView src;
  G4KvView dst;
  int32_t slot;
  int32_t begin;
  int32_t end;
} G4KvCopyParams;

// g4_attn_decode_h{256,512}_s{SEG}: one query a row. Work items are (row, segment) pairs in row order, times KV heads;
// block b takes items b, b + grid, ... (static). The last block to finish a (row, KV head) folds its partials.
typedef struct G4AttnDecodeParams {
  const uint16_t* q;          // [rows][heads][head_dim]
  uint16_t* out;              // [rows][heads][head_dim]
  const int32_t* position;    // [rows]
  const int32_t* slot;        // [rows], -1 for padding (writes zeros)
  const int32_t* item_begin;  // [rows + 1], exclusive sum of segments a row, made by g4_step_begin
  G4KvView kv;
  float* part_o;              // [items * kv_heads][heads / kv_heads][head_dim]
  float* part_ml;             // [items * kv_heads][heads / kv_heads][2]: m, l
  uint32_t* ticket;           // [rows * kv_heads], zero between launches (the last arriver resets it); null: nobody
                              // folds, g4_attn_decode_fold comes after with the same struct
  int32_t rows;
  int32_t heads;
  int32_t window;             // keys in (q - window, q]; 0: all keys up to q
} G4AttnDecodeParams;

// g4_attn_prompt_h{256,512}_s{SEG}: a chunk of one sequence, positions [start, start + rows).
// Positions before recent.first_page * page_tokens are read from kv, later ones from recent, when recent.k is not null.
typedef struct G4AttnPromptParams {
  const uint16_t* q;  // [rows][heads][head_dim]
  uint16_t* out;      // [rows][heads][head_dim]
  G4KvView kv;        // paged
  G4KvView recent;    // chunk scratch, or k = null
  int32_t slot;
  int32_t start;
  int32_t rows;
  int32_t heads;
  int32_t window;     // as above
} G4AttnPromptParams;

// g4_step_begin, first node of a decode graph, one block: from the row index and the slot table to what the rows'
// kernels read. A row is padding (slot -1) when its slot is -1, not live, or in a bad state.
typedef struct G4StepBeginParams {
  const int32_t* row_slot;        // [rows], uploaded by a rebuild
  const G4Slot* slots;            // [slots]
  const int32_t* sliding_table;   // [slots][sliding_pages]
  const int32_t* global_table;    // [slots][global_pages]
  int32_t* token;                 // [rows]
  int32_t* position;              // [rows]
  int32_t* slot;                  // [rows] effective slot
  int32_t* status;                // [rows] 0, or G4_TOKEN_NONE, or G4_TOKEN_BAD_STATE
  int32_t* sliding_item_begin;    // [rows + 1]
  int32_t* global_item_begin;     // [rows + 1]
  int32_t rows;
  int32_t sliding_pages;
  int32_t global_pages;
  int32_t page_tokens_sliding;
  int32_t page_tokens_global;
  int32_t window;
  int32_t segment_sliding;
  int32_t segment_global;
} G4StepBeginParams;

// g4_tail, last node of a decode graph (launched by hand after a prompt chunk): advances the positions of live rows and
// the step counter, which wraps.
typedef struct G4TailParams {
  const int32_t* slot;  // [rows] effective slot
  G4Slot* slots;
  int32_t* step;        // [1]
  int32_t rows;
} G4TailParams;

// g4_scatter: the words of one packed upload to their places. Word i of a run goes to dst[i * stride], or, with an
// index, to dst[index[i] * stride] unless index[i] is negative.
typedef struct G4ScatterRun {
  int32_t* dst;
  const int32_t* index;  // [count], or null
  int32_t first;         // of the run's words in src
  int32_t count;
  int32_t stride;        // words
} G4ScatterRun;
typedef struct G4ScatterParams {
  const int32_t* src;  // the upload
  int32_t runs_used;
  G4ScatterRun runs[G4_SCATTER_RUNS];
} G4ScatterParams;

// g4_synthetic: a tensor of made-up values, a function of key and element number (csrc/kernels/synthetic.cu).
typedef struct G4SyntheticParams {
  uint16_t* dst;   // packed: [ceil(n/16)][ceil(k/16)][32][8], zero-padded as g4_pack does; else [n][k]
  int64_t n;       // 64 bits for the flat fill of a cache, [elements][1]
  int32_t k;
  int32_t packed;
  uint32_t key;    // hash of the tensor's name
  int32_t center;  // value = (center + an odd number of -(2^bits - 1) to 2^bits - 1) * scale, exact in bf16
  int32_t bits;
  float scale;     // a power of two
} G4SyntheticParams;

// g4_sample_groups and g4_sample_rows: from logits to tokens, slots and records, whatever the rows' parameters.
typedef struct G4SampleParams {
  const float* logits;          // [rows][vocab]
  const int32_t* slot;          // [rows] effective slot
  const int32_t* status;        // [rows], or null: all rows are good
  const int32_t* row_slot;      // [rows] slot as the host gave it (a record of a dead row still carries its generation)
  const int32_t* step;          // [1]
  G4Slot* slots;                // [slots]
  const uint32_t* mask;         // [slots][mask_words], bit id % 32 of word id / 32
  const G4Bias* bias;           // [slots][G4_BIAS_MAX]
  G4Words* words;               // [slots]; these three, counts and prompt_bits are read where a slot's flags say so
  int32_t* forced;              // [slots] token that overrides the choice of one step, -1: none; consumed by the step
  uint16_t* counts;             // [penalty tables][vocab] times a token was output, saturating
  const uint32_t* prompt_bits;  // [penalty tables][mask_words] tokens of the prompt
  const int32_t* suppressed;    // [suppressed_count]
  uint32_t* group_max;          // [rows][groups] key of the greatest processed logit
  float* group_sum;             // [rows][groups] sum of exp((z - max) / T)
  uint32_t* raw_max;            // [rows][groups] the same of raw logits at T = 1, rows with raw log-probabilities only
  float* raw_sum;               // [rows][groups]
  G4Record* records;            // [rows]
  G4Logprobs* logprobs;         // [rows that ask], in row order
  int32_t rows;
  int32_t vocab;
  int32_t groups;               // ceil(vocab / G4_SAMPLE_GROUP)
  int32_t mask_words;           // ceil(vocab / 32)
  int32_t suppressed_count;
  int32_t eos_count;
  int32_t eos_ids[G4_EOS_IDS];
} G4SampleParams;

// ---- Names: X(name, parameter struct, threads a block) --------------------------------------------------------------

#define G4_KERNEL_TABLE(X)                                     \
  X(g4_pack, G4PackParams, 256)                                \
  X(g4_rope_table, G4RopeTableParams, 256)                     \
  X(g4_embed, G4EmbedParams, G4_ROW_THREADS)                   \
  X(g4_rmsnorm, G4RmsNormParams, G4_ROW_THREADS)               \
  X(g4_add_norm, G4AddNormParams, G4_ROW_THREADS)              \
  X(g4_gelu_gate, G4GeluGateParams, G4_ROW_THREADS)            \
  X(g4_per_layer_input, G4PerLayerInputParams, G4_ROW_THREADS) \
  X(g4_expert_input, G4ExpertInputParams, G4_ROW_THREADS)      \
  X(g4_expert_route, G4ExpertRouteParams, 256)                 \
  X(g4_expert_group, G4ExpertGroupParams, G4_EXPERTS_MAX)      \
  X(g4_expert_gemm_t1, G4ExpertGemmParams, G4_GEMM_THREADS)    \
  X(g4_expert_gemm_t8, G4ExpertGemmParams, G4_GEMM_THREADS)    \
  X(g4_expert_combine, G4ExpertCombineParams, G4_ROW_THREADS)  \
  X(g4_gemm_t1, G4GemmParams, G4_GEMM_THREADS)                 \
  X(g4_gemm_t2, G4GemmParams, G4_GEMM_THREADS)                 \
  X(g4_gemm_t4, G4GemmParams, G4_GEMM_THREADS)                 \
  X(g4_gemm_t8, G4GemmParams, G4_GEMM_THREADS)                 \
  X(g4_gemm_t16, G4GemmParams, G4_GEMM_THREADS)                \
  X(g4_logits_t1, G4GemmParams, G4_GEMM_THREADS)               \
  X(g4_logits_t2, G4GemmParams, G4_GEMM_THREADS)               \
  X(g4_logits_t4, G4GemmParams, G4_GEMM_THREADS)               \
  X(g4_logits_t8, G4GemmParams, G4_GEMM_THREADS)               \
  X(g4_logits_t16, G4GemmParams, G4_GEMM_THREADS)              \
  X(g4_logits_tiled, G4GemmParams, G4_GEMM_THREADS)            \
  X(g4_gemm_tiled, G4GemmParams, G4_GEMM_THREADS)              \
  X(g4_qkv_prep, G4QkvPrepParams, G4_ROW_THREADS)              \
  X(g4_kv_copy, G4KvCopyParams, 256)                           \
  X(g4_attn_decode_h256_s128, G4AttnDecodeParams, G4_ATTN_THREADS) \
  X(g4_attn_decode_h256_s32, G4AttnDecodeParams, G4_ATTN_THREADS)  \
  X(g4_attn_decode_h512_s256, G4AttnDecodeParams, G4_ATTN_THREADS) \
  X(g4_attn_decode_h512_s32, G4AttnDecodeParams, G4_ATTN_THREADS)  \
  X(g4_attn_decode_fold, G4AttnDecodeParams, 128)                         \
  X(g4_attn_prompt_h256_s128, G4AttnPromptParams, G4_ATTN_THREADS) \
  X(g4_attn_prompt_h256_s32, G4AttnPromptParams, G4_ATTN_THREADS)  \
  X(g4_attn_prompt_h512_s256, G4AttnPromptParams, G4_ATTN_THREADS) \
  X(g4_attn_prompt_h512_s32, G4AttnPromptParams, G4_ATTN_THREADS)  \
  X(g4_step_begin, G4StepBeginParams, 128)                     \
  X(g4_tail, G4TailParams, 128)                                \
  X(g4_scatter, G4ScatterParams, 256)                          \
  X(g4_synthetic, G4SyntheticParams, 256)                      \
  X(g4_sample_groups, G4SampleParams, 256)                     \
  X(g4_sample_rows, G4SampleParams, G4_SAMPLE_THREADS)

enum G4KernelId {
#define G4_KERNEL_ID(name, params, threads) G4_ID_##name,
  G4_KERNEL_TABLE(G4_KERNEL_ID)
#undef G4_KERNEL_ID
  G4_KERNEL_COUNT
};

// ---- Layout: the same numbers the Rust bindings assert, so that either compiler notices a difference
// -----------------

#if defined(__cplusplus)
#include <stddef.h>
#define G4_LAYOUT(Struct, bytes, last_field, last_offset)                            \
  static_assert(sizeof(Struct) == bytes, #Struct ": size differs from the bindings"); \
  static_assert(offsetof(Struct, last_field) == last_offset, #Struct "::" #last_field ": offset in the bindings")
G4_LAYOUT(G4Slot, 172, sampling, 100);
G4_LAYOUT(G4Record, 16, generation, 12);
G4_LAYOUT(G4KvView, 48, head_dim, 40);
G4_LAYOUT(G4PackParams, 24, k, 20);
G4_LAYOUT(G4RopeTableParams, 40, head_dim, 32);
G4_LAYOUT(G4EmbedParams, 40, scale_bf16, 32);
G4_LAYOUT(G4RmsNormParams, 40, eps, 32);
G4_LAYOUT(G4AddNormParams, 64, eps, 56);
G4_LAYOUT(G4GeluGateParams, 40, up_stride, 36);
G4_LAYOUT(G4PerLayerInputParams, 56, eps, 52);
G4_LAYOUT(G4ExpertInputParams, 56, eps, 52);
G4_LAYOUT(G4ExpertRouteParams, 56, top, 48);
G4_LAYOUT(G4ExpertTile, 12, count, 8);
G4_LAYOUT(G4ExpertGroupParams, 48, tile_tokens, 40);
G4_LAYOUT(G4ExpertGemmParams, 72, pairs_a_row, 68);
G4_LAYOUT(G4ExpertCombineParams, 64, eps, 60);
G4_LAYOUT(G4GemmParams, 56, softcap, 48);
G4_LAYOUT(G4QkvPrepParams, 136, eps, 128);
G4_LAYOUT(G4KvCopyParams, 112, end, 104);
G4_LAYOUT(G4AttnDecodeParams, 128, window, 120);
G4_LAYOUT(G4AttnPromptParams, 136, window, 128);
G4_LAYOUT(G4StepBeginParams, 112, segment_global, 108);
G4_LAYOUT(G4TailParams, 32, rows, 24);
G4_LAYOUT(G4ScatterRun, 32, stride, 24);
G4_LAYOUT(G4ScatterParams, 272, runs, 16);
G4_LAYOUT(G4SyntheticParams, 40, scale, 36);
G4_LAYOUT(G4Sampling, 72, seed, 64);
G4_LAYOUT(G4Bias, 8, value, 4);
G4_LAYOUT(G4Words, 5196, tail, 5132);
G4_LAYOUT(G4Logprobs, 176, logprob, 96);
G4_LAYOUT(G4SampleParams, 240, eos_ids, 176);
#undef G4_LAYOUT
#endif

#endif
