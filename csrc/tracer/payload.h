// What the tracer kernels compute instead of a model: 64-bit hashes of everything a token may depend on.
//
// The tracer is a kernel image for the software device with the names and parameter structs of gemma4_kernels.h, for
// long runs over many seeds: any wrong page, stale table, lost copy or mixed-up row changes the token stream, at a few
// microseconds a kernel. Its "activations" are payloads, one a row, in the first four elements of the row; its "K and
// V" are a hash of (payload, position) in each cell; its attention folds every visible cell in ascending order; its
// logits are 1 at one entry and 0 elsewhere. Packing, the first and last node of a decode graph, the copies of K and V
// and the sampler are the real kernels (build.rs).
//
//   fold(h, w) = g ^ (g >> 29), g = (rotl(h, 23) ^ w) 0x9e3779b97f4a7c15: one-to-one in either (the turn keeps
//              fold(x, x), which the second half of a layer is, from being one value for all)
//   embed      fold(TOKEN, token)                  k cell  fold(fold(KEY, x), position)
//   attention  h = q, then ascending cells:        v cell  fold(fold(VALUE, x), position)
//              h = fold(fold(h, k), v), or fold(h, NO_PAGE) where no page is granted
//   add_norm   x = fold(x, y), normed = x          products, norms and the gate: the payload as it is
//   logits     1 at (g ^ (g >> 32)) mod vocab, g = fold(x, LOGITS)
//
// gates/common/oracle.rs says the same once more, from the token list alone.
#ifndef G4_TRACER_PAYLOAD_H
#define G4_TRACER_PAYLOAD_H

#include "../common/kv_layout.h"

namespace g4 {

constexpr uint64_t kToken = 0x746f6b656e000001ull;
constexpr uint64_t kKey = 0x6b65790000000002ull;
constexpr uint64_t kValue = 0x76616c7565000003ull;
constexpr uint64_t kLogits = 0x6c6f676974730004ull;
// What no correct run folds in: a page that is not granted, and a work list of another position.
constexpr uint64_t kNoPage = 0x6e6f706167650005ull;
constexpr uint64_t kWrongItems = 0x6974656d73000006ull;

static inline uint64_t fold(uint64_t h, uint64_t w) {
  const uint64_t g = ((h << 23 | h >> 41) ^ w) * 0x9e3779b97f4a7c15ull;
  return g ^ (g >> 29);
}

// A row's payload: its first four elements.
static inline uint64_t load_payload(const uint16_t* row) {
  uint64_t payload;
  std::memcpy(&payload, row, sizeof(payload));
  return payload;
}
static inline void store_payload(uint16_t* row, uint64_t payload) { std::memcpy(row, &payload, sizeof(payload)); }

}  // namespace g4

// A kernel that is one thread's work: the first thread of a block to run does it all and ends the block.
#define G4_TRACER_KERNEL(name, Params, threads_max)                 \
  static void name##_work(g4::Cta cta, const Params& p);            \
  G4_KERNEL(name, Params, threads_max) {                            \
    name##_work(cta, p);                                            \
    cta.self->ops->end_block(cta.self);                             \
  }                                                                 \
  static void name##_work([[maybe_unused]] g4::Cta cta, const Params& p)

#endif
