// A kernel with one store past the end of its buffer, at the end of a row that is one element short: what the address
// sanitizer must catch (scripts/sanitize.sh, which fails when this program ends well). It stands in no other build.
#include <memory>

#include "../common/cta.h"
#include "harness.h"

struct OverrunParams {
  int32_t* x;
  int32_t count;
};

G4_KERNEL(planted_overrun, OverrunParams, 64) {
  // The mistake: <= where < belongs.
  if (cta.tid() <= p.count) p.x[cta.tid()] = cta.tid();
}

int main(int argc, char**) {
  constexpr int kCount = 37;
  std::unique_ptr<int32_t[]> x(new int32_t[kCount]);
  // With an argument the same kernel keeps inside: the sanitizer must have nothing to say, so the catch is no accident.
  const OverrunParams p = {x.get(), argc > 1 ? kCount - 1 : kCount};
  g4test::launch(&planted_overrun, "planted_overrun", &p, {1, 1, 1}, 64, 0);
  std::printf("the planted store went unseen, x[0] = %d\n", x[0]);
  return 0;
}
