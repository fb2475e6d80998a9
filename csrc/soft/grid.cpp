// A kernel's blocks over the workers: the stream's own thread takes blocks, and helpers join it while there are more.
#include <condition_variable>
#include <list>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "arena.h"
#include "context.h"
#include "counters.h"
#include "faults.h"
#include "fibre.h"
#include "module.h"
#include "stream.h"
#include "work.h"

namespace g4soft {
namespace {

// Runners (their stacks) are lent: a stream that does not execute holds none.
class Runners {
 public:
  std::unique_ptr<BlockRunner> take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return std::make_unique<BlockRunner>();
    auto runner = std::move(idle_.back());
    idle_.pop_back();
    return runner;
  }
  void give(std::unique_ptr<BlockRunner> runner) {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(runner));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<BlockRunner>> idle_;
};
Runners& runners() {
  static Runners* all = new Runners;
  return *all;
}

// One kernel in execution. Blocks are handed out by a counter; the order they come in is a seed's.
struct Grid {
  BlockLaunch launch;
  uint64_t blocks = 0;
  uint64_t first = 0;            // blocks before it were begun early
  std::vector<uint32_t> order;   // empty: ascending
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  uint32_t helpers = 0;          // under the pool's mutex
  std::mutex mutex;
  std::string error;

  void block_at(uint64_t i, uint32_t out[3]) const {
    const uint64_t b = order.empty() ? i : order[i];
    out[0] = (uint32_t)(b % launch.grid[0]);
    out[1] = (uint32_t)(b / launch.grid[0] % launch.grid[1]);
    out[2] = (uint32_t)(b / ((uint64_t)launch.grid[0] * launch.grid[1]));
  }
  bool has_more() const { return !failed && next < blocks; }
  void fail(const std::string& what) {
    failed = true;
    std::lock_guard<std::mutex> lock(mutex);
    if (error.empty()) error = what;
  }
  // Runs blocks until none is left, or count of them have run here.
  void run_blocks(uint64_t count = UINT64_MAX) {
    catch_faults();
    auto runner = runners().take();
    while (!failed && count--) {
      const uint64_t i = next.fetch_add(1);
      if (i >= blocks) break;
      uint32_t index[3];
      block_at(i, index);
      const std::string what = runner->run(launch, index);
      if (!what.empty()) fail(what);
    }
    runners().give(std::move(runner));
  }
};

constexpr int64_t kHelpNs = 60'000;  // work left below this is done alone

class Pool {
 public:
  void run(Grid& grid) {
    if (options().workers < 2 || grid.next + 1 >= grid.blocks) return grid.run_blocks();
    // Waking helpers costs more than a few short blocks: the first block tells. A seed always wakes them.
    if (!grid.launch.seed) {
      const int64_t start = now_ns();
      grid.run_blocks(1);
      if ((now_ns() - start) * (int64_t)(grid.blocks - std::min<uint64_t>(grid.blocks, grid.next)) < kHelpNs)
        return grid.run_blocks();
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (; threads_ < options().workers - 1; threads_++) std::thread([this] { help(); }).detach();
      active_.push_back(&grid);
    }
    work_.notify_all();
    grid.run_blocks();
    std::unique_lock<std::mutex> lock(mutex_);
    active_.remove(&grid);
    done_.wait(lock, [&] { return grid.helpers == 0; });
  }

 private:
  void help() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      Grid* grid = nullptr;
      work_.wait(lock, [&] {
        for (Grid* g : active_)
          if (g->has_more()) return (grid = g), true;
        return false;
      });
      grid->helpers++;
      lock.unlock();
      grid->run_blocks();
      lock.lock();
      if (--grid->helpers == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::list<Grid*> active_;
  uint64_t threads_ = 0;
};
Pool& pool() {
  static Pool* all = new Pool;
  return *all;
}

void prepare(Grid& grid, const KernelLaunch& l, uint64_t salt) {
  BlockLaunch& b = grid.launch;
  b.fn = l.function->kernel->fn;
  b.params = l.params.data();
  for (int i = 0; i < 3; i++) b.grid[i] = l.grid[i], b.block[i] = l.block[i];
  b.shared_bytes = l.shared_bytes;
  grid.blocks = (uint64_t)l.grid[0] * l.grid[1] * l.grid[2];
  const uint64_t seed = options().seed;
  if (!seed) return;
  b.seed = mix(seed ^ salt) | 1;
  if (grid.blocks > 1 && grid.blocks <= (1 << 20)) {
    grid.order.resize(grid.blocks);
    std::iota(grid.order.begin(), grid.order.end(), 0u);
    for (uint64_t i = grid.blocks; i > 1; i--) std::swap(grid.order[i - 1], grid.order[mix(b.seed + i) % i]);
  }
}

// What must hold before a kernel runs. False: it does not run.
bool may_run(Context& ctx, const KernelLaunch& l) {
  if (ctx.sticky) return false;
  const char* name = l.function->kernel->name;
  if (const CUresult fault = planned_launch_fault()) {
    make_sticky(ctx, fault, std::string(name) + ": fails as planned");
    return false;
  }
  if (l.function->unloaded) {
    make_sticky(ctx, CUDA_ERROR_ILLEGAL_ADDRESS, std::string(name) + ": its module is unloaded");
    return false;
  }
  G4_COUNT(kernels_run);
  return !options().skip_kernels;
}

void finish(Context& ctx, const KernelLaunch& l, const Grid& grid) {
  if (grid.error.empty()) return;
  // A trap stands for an illegal access; a broken barrier is a failed launch.
  const bool trap = grid.error.compare(0, 5, "trap:") == 0;
  make_sticky(ctx, trap ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_LAUNCH_FAILED,
              std::string(l.function->kernel->name) + ": " + grid.error);
}

// Blocks of a dependent launch begun before its predecessor, up to griddepcontrol.wait.
using Begun = std::vector<std::unique_ptr<BlockRunner>>;

Begun begin_early(Grid& grid, uint64_t salt) {
  Begun begun;
  const uint64_t count = std::min<uint64_t>(options().early_blocks, grid.blocks);
  const uint64_t one_in = options().early_trap;
  // Device memory can be made read-only while no other stream executes anything.
  std::unique_lock<std::shared_mutex> alone(execution(), std::defer_lock);
  std::unique_ptr<Arena::ReadOnly> read_only;
  if (one_in && mix(salt) % one_in == 0 && alone.try_lock()) read_only.reset(new Arena::ReadOnly(world().device()));
  catch_faults();
  for (; grid.next < count && !grid.failed; grid.next++) {
    begun.push_back(runners().take());
    uint32_t index[3];
    grid.block_at(grid.next, index);
    const std::string what = begun.back()->begin(grid.launch, index);
    if (!what.empty()) grid.fail(what);
  }
  return begun;
}

}  // namespace

std::shared_mutex& execution() {
  static auto* mutex = new std::shared_mutex;
  return *mutex;
}

void execute(Context& ctx, const KernelLaunch& l, uint64_t salt) {
  if (!may_run(ctx, l)) return;
  std::shared_lock<std::shared_mutex> executing(execution());
  Grid grid;
  prepare(grid, l, salt);
  pool().run(grid);
  finish(ctx, l, grid);
}

void execute_pair(Context& ctx, const KernelLaunch& first, const KernelLaunch& second, uint64_t salt) {
  if (ctx.sticky) return;
  Grid grid;
  prepare(grid, second, mix(salt));
  Begun begun;
  if (!second.function->unloaded && !options().skip_kernels) begun = begin_early(grid, salt);
  if (!grid.failed) execute(ctx, first, salt);
  if (grid.failed) {
    finish(ctx, second, grid);
  } else if (may_run(ctx, second)) {
    std::shared_lock<std::shared_mutex> executing(execution());
    if (!begun.empty()) G4_COUNT(kernels_early);
    for (auto& runner : begun) {
      const std::string what = runner->finish();
      if (!what.empty()) grid.fail(what);
    }
    pool().run(grid);
    finish(ctx, second, grid);
  }
  for (auto& runner : begun) runners().give(std::move(runner));
}

void execute(Context& ctx, const HostCall& call) {
  if (ctx.sticky) return;
  G4_COUNT(host_functions);
  in_host_function = true;
  call.fn(call.user_data);
  in_host_function = false;
}

}  // namespace g4soft
