// Runs kernels from C++ tests. G4_LAUNCH names the kernel and its parameters; buffers are device memory.
//
// Two back ends: the bare fibre executor (default; one thread, no driver), and the CUDA driver API (-DG4_TEST_DRIVER:
// the software device linked in, or a real libcuda), so the same tests run under sanitizers and on a GPU.
#ifndef G4_TEST_HARNESS_H
#define G4_TEST_HARNESS_H

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../gemma4_kernels.h"
#include "../soft/abi.h"
#include "../soft/fibre.h"

namespace g4test {

struct Dim {
  uint32_t x = 1, y = 1, z = 1;
};

// A test fails by throwing; main prints the name, the text and the seed, and goes on.
[[noreturn]] inline void fail(const std::string& what) { throw what; }
#define G4_CHECK(cond, ...)                                                                    \
  do {                                                                                         \
    if (!(cond)) {                                                                             \
      char g4_text[512];                                                                       \
      std::snprintf(g4_text, sizeof g4_text, __VA_ARGS__);                                     \
      ::g4test::fail(std::string(__FILE__ ":") + std::to_string(__LINE__) + " " #cond ": " + g4_text); \
    }                                                                                          \
  } while (0)

}  // namespace g4test

#if defined(G4_TEST_DRIVER)
#include "harness_driver.h"
namespace g4test {
#else
namespace g4test {

struct Skip {
  std::string why;
};

inline bool on_gpu() { return false; }
inline bool on_hopper() { return false; }

inline void launch(G4SoftKernelFn fn, const char* name, const void* params, Dim grid, uint32_t threads, uint32_t shared,
                   uint64_t seed = 0, uint32_t cluster = 1) {
  (void)cluster;
  static g4soft::BlockRunner runner;
  g4soft::BlockLaunch l;
  l.fn = fn;
  l.params = params;
  l.grid[0] = grid.x, l.grid[1] = grid.y, l.grid[2] = grid.z;
  l.block[0] = threads;
  l.shared_bytes = shared;
  l.seed = seed;
  for (uint32_t z = 0; z < grid.z; z++)
    for (uint32_t y = 0; y < grid.y; y++)
      for (uint32_t x = 0; x < grid.x; x++) {
        const uint32_t idx[3] = {x, y, z};
        const std::string error = runner.run(l, idx);
        if (!error.empty()) fail(std::string(name) + ": " + error);
      }
}

// Device memory of n elements, poisoned; exact size, so that an address sanitizer sees a store one past the end.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t n) : n_(n), p_(static_cast<T*>(std::aligned_alloc(256, (n * sizeof(T) + 255) / 256 * 256))) {
    // aligned_alloc wants a multiple of the alignment; the tail stays inside the poison check of `tail_is_clean`.
    std::memset(static_cast<void*>(p_), 0xFB, (n * sizeof(T) + 255) / 256 * 256);
  }
  explicit Buffer(const std::vector<T>& host) : Buffer(host.size()) { upload(host); }
  Buffer(const Buffer&) = delete;
  ~Buffer() { std::free(p_); }
  T* ptr() const { return p_; }
  size_t size() const { return n_; }
  void upload(const std::vector<T>& host) { std::memcpy(p_, host.data(), host.size() * sizeof(T)); }
  std::vector<T> download() const { return std::vector<T>(p_, p_ + n_); }

 private:
  size_t n_;
  T* p_;
};

#endif

#define G4_DECLARE_KERNEL(name, Params, threads) extern "C" void name(G4SoftThread*, const void*);
G4_KERNEL_TABLE(G4_DECLARE_KERNEL)
#undef G4_DECLARE_KERNEL

// G4_LAUNCH(g4_embed, params, grid, threads, shared_bytes)
#define G4_LAUNCH(name, params, grid, threads, shared) ::g4test::launch(&name, #name, &(params), grid, threads, shared)

// Deterministic random numbers of a test; the seed is printed when a test fails.
struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed) {}
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint32_t below(uint32_t n) { return (uint32_t)(next() % n); }
  float uniform() { return (float)(next() >> 40) * (1.0f / 16777216.0f); }         // [0, 1)
  float normal() {                                                                 // Irwin-Hall, enough for tests
    float s = 0;
    for (int i = 0; i < 12; i++) s += uniform();
    return s - 6.0f;
  }
};

struct Test {
  const char* name;
  std::function<void()> run;
};
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
#define G4_TEST(name)                                                            \
  static void name();                                                            \
  static const bool name##_registered = (::g4test::tests().push_back({#name, name}), true); \
  static void name()

// Runs every test whose name contains argv[1] (all without it); the exit code counts failures.
inline int run_all(int argc, char** argv) {
  int failed = 0, passed = 0, skipped = 0;
  for (const Test& t : tests()) {
    if (argc > 1 && !std::strstr(t.name, argv[1])) continue;
    try {
      t.run();
      passed++;
      std::printf("ok   %s\n", t.name);
    } catch (const Skip& skip) {
      skipped++;
      std::printf("skip %s: %s\n", t.name, skip.why.c_str());
    } catch (const std::string& what) {
      failed++;
      std::printf("FAIL %s: %s\n", t.name, what.c_str());
    }
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed", passed, failed);
  if (skipped) std::printf(", %d skipped", skipped);
  std::printf("\n");
  return failed ? 1 : (passed ? 0 : 2);
}

}  // namespace g4test

#endif
