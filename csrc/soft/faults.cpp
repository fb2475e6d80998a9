#include "faults.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <unistd.h>

#include "control.h"
#include "counters.h"
#include "world.h"

namespace g4soft {
namespace {

// A countdown of calls. remaining 0: no plan. The fast path of an unplanned call is one relaxed load.
struct Plan {
  std::atomic<uint64_t> remaining{0};
  std::atomic<int> code{0};

  void set(uint64_t n, int c) {
    code = c;
    remaining = n;
  }
  CUresult step() {
    uint64_t n = remaining.load(std::memory_order_relaxed);
    while (n) {
      if (remaining.compare_exchange_weak(n, n - 1)) {
        if (n != 1) return CUDA_SUCCESS;
        G4_COUNT(faults);
        return (CUresult)code.load();
      }
    }
    return CUDA_SUCCESS;
  }
};

// A plan of the environment that starts when start-up ends: the calls of a start need not be counted by whoever asks.
struct ArmedPlan {
  uint64_t n = 0;
  int code = 0;
};

struct Faults {
  Plan call, named, launch;
  ArmedPlan armed_call, armed_launch;
  // With an armed plan: a call has failed at its entry, and each later one is reported.
  std::atomic<bool> watch_later_calls{false}, has_failed{false};
  std::mutex mutex;  // name, report
  std::string name, last_report;
  std::atomic<bool> is_armed{false}, refuse{false};
  std::atomic<bool> any_stall{false};
  bool stall_all = false;              // this and the set: under the world's mutex
  std::set<const void*> stalled_streams;

  Faults() {
    // GEMMA4_SOFT_FAIL_CALL=N[:code], GEMMA4_SOFT_FAIL_LAUNCH=N[:code], GEMMA4_SOFT_STALL=1; with ARMED_ before FAIL
    // the first two count from g4soft_arm.
    from_environment("GEMMA4_SOFT_FAIL_CALL", call, CUDA_ERROR_UNKNOWN);
    from_environment("GEMMA4_SOFT_FAIL_LAUNCH", launch, CUDA_ERROR_ILLEGAL_ADDRESS);
    armed_from_environment("GEMMA4_SOFT_ARMED_FAIL_CALL", armed_call, CUDA_ERROR_UNKNOWN);
    armed_from_environment("GEMMA4_SOFT_ARMED_FAIL_LAUNCH", armed_launch, CUDA_ERROR_ILLEGAL_ADDRESS);
    // The exit handlers of a driver, behind a kernel that never ends.
    const char* waits = std::getenv("GEMMA4_SOFT_EXIT_WAITS");
    if (waits && *waits && *waits != '0')
      std::atexit([] {
        for (;;) pause();
      });
    const char* stall = std::getenv("GEMMA4_SOFT_STALL");
    if (stall && *stall && *stall != '0') any_stall = stall_all = true;
  }
  static void from_environment(const char* variable, Plan& plan, int code) {
    ArmedPlan read;
    armed_from_environment(variable, read, code);
    if (read.n) plan.set(read.n, read.code);
  }
  static void armed_from_environment(const char* variable, ArmedPlan& plan, int code) {
    const char* text = std::getenv(variable);
    if (!text) return;
    const char* colon = std::strchr(text, ':');
    plan = {std::strtoull(text, nullptr, 0), colon ? std::atoi(colon + 1) : code};
  }
};

Faults& faults() {
  static Faults* all = new Faults;
  return *all;
}

}  // namespace

void report(const char* format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  std::fprintf(stderr, "software device: %s\n", text);
  std::lock_guard<std::mutex> lock(faults().mutex);
  faults().last_report = text;
}

CUresult planned_call_fault(const char* function) {
  Faults& f = faults();
  if (f.has_failed.load(std::memory_order_relaxed)) report("%s called after a call had failed", function);
  if (f.named.remaining.load(std::memory_order_relaxed)) {
    bool matches;
    {
      std::lock_guard<std::mutex> lock(f.mutex);
      matches = f.name == function;
    }
    if (matches)
      if (const CUresult error = f.named.step()) return error;
  }
  return f.call.step();
}

void entry_failed() {
  if (faults().watch_later_calls.load(std::memory_order_relaxed)) faults().has_failed = true;
}

CUresult planned_launch_fault() { return faults().launch.step(); }

CUresult armed(Startup what, const char* function) {
  Faults& f = faults();
  if (!f.is_armed.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  switch (what) {
    case Startup::kAllocation: G4_COUNT(armed_allocations); break;
    case Startup::kFree: G4_COUNT(armed_frees); break;
    case Startup::kModuleLoad: G4_COUNT(armed_module_loads); break;
    case Startup::kCapture: G4_COUNT(armed_captures); break;
    case Startup::kInstantiation: G4_COUNT(armed_instantiations); break;
  }
  if (!f.refuse || what == Startup::kFree) return CUDA_SUCCESS;
  report("%s refused: start-up has ended", function);
  return CUDA_ERROR_NOT_PERMITTED;
}

bool stalled(const void* stream) {
  Faults& f = faults();
  if (!f.any_stall.load(std::memory_order_relaxed)) return false;
  return f.stall_all || f.stalled_streams.count(stream);
}

}  // namespace g4soft

using namespace g4soft;

#define G4_CONTROL extern "C" __attribute__((visibility("default")))

G4_CONTROL void g4soft_fail_call(uint64_t n, int code) { faults().call.set(n, code); }

G4_CONTROL void g4soft_fail_named(const char* function, uint64_t n, int code) {
  std::lock_guard<std::mutex> lock(faults().mutex);
  faults().name = function;
  faults().named.set(n, code);
}

G4_CONTROL void g4soft_fail_launch(uint64_t n, int code) { faults().launch.set(n, code); }

G4_CONTROL void g4soft_stall(void* stream) {
  Lock lock(world().mutex);
  if (stream) faults().stalled_streams.insert(stream);
  else faults().stall_all = true;
  faults().any_stall = true;
}

G4_CONTROL void g4soft_release(void) {
  Lock lock(world().mutex);
  faults().stalled_streams.clear();
  faults().any_stall = faults().stall_all = false;
  world().progress.notify_all();
}

G4_CONTROL void g4soft_arm(int refuse) {
  Faults& f = faults();
  f.refuse = refuse != 0;
  if (f.is_armed.exchange(true)) return;
  if (f.armed_call.n) f.call.set(f.armed_call.n, f.armed_call.code);
  if (f.armed_launch.n) f.launch.set(f.armed_launch.n, f.armed_launch.code);
  f.watch_later_calls = f.armed_call.n || f.armed_launch.n;
}

G4_CONTROL void g4soft_disarm(void) { faults().is_armed = false; }

G4_CONTROL size_t g4soft_last_report(char* text, size_t bytes) {
  std::lock_guard<std::mutex> lock(faults().mutex);
  const std::string& last = faults().last_report;
  if (bytes) {
    const size_t n = std::min(bytes - 1, last.size());
    std::memcpy(text, last.data(), n);
    text[n] = 0;
  }
  return last.size();
}
