// g4_gelu_gate: out = bf16(bf16(gelu_tanh(gate)) * up).
//
// gate, up, out [rows][width] bf16, rows of gate and up a stride apart; bases 16-byte aligned. An MLP's gate and up are
// two halves of one row (stride 2 * width), an expert's too; the gate of a per-layer embedding meets its layer's slice
// of a row of layers * width.
// Reads rows * width * 4 bytes, writes rows * width * 2.
// Grid: x = rows (more than y holds, where they are pairs of a row and an expert), y = ceil(width / 2048); 256 threads;
// no shared memory.
//
// Idea: elementwise, so a row is cut over blocks (8 at width 15360): at one row a single block would be all latency.
// Eight elements a thread, 16-byte loads. tanh is 20 IEEE operations and not tanh.approx: same bits as the host.
// Versions: one, not timed on a GPU.
// Test: csrc/tests/row_test.cpp (gelu_gate)
#include "../gemma4_kernels.h"
#include "../common/cta.h"
#include "../common/row.h"

G4_KERNEL(g4_gelu_gate, G4GeluGateParams, G4_ROW_THREADS) {
  const int first = (cta.block_y() * G4_ROW_THREADS + cta.tid()) * g4::kGroup;
  if (first >= p.width) return;
  const long long row = cta.block_x();
  const bool whole = g4::row_whole(p.width);
  float g[g4::kGroup], u[g4::kGroup];
  g4::group_unpack(g4::group_load(p.gate + row * p.gate_stride, first, p.width, whole), g);
  g4::group_unpack(g4::group_load(p.up + row * p.up_stride, first, p.width, whole), u);
  G4_UNROLL
  for (int j = 0; j < g4::kGroup; j++) g[j] = g4::round_bf16(g4::gelu_tanh(g[j])) * u[j];
  g4::group_store(p.out + row * p.width, first, p.width, whole, g4::group_pack(g));
}
