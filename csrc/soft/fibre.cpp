#include "fibre.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <vector>

#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define G4_ASAN 1
#else
#define G4_ASAN 0
#endif

namespace g4soft {
namespace {

constexpr uint32_t kThreadsMax = 1024;
constexpr size_t kStackBytes = 256 * 1024;  // virtual; only touched pages are committed

// A switch saves what the System V ABI says a callee keeps: six registers and the stack pointer.
#if defined(__x86_64__)
extern "C" void g4soft_switch(void** save_sp, void* load_sp);
__asm__(
    ".text\n.globl g4soft_switch\n.hidden g4soft_switch\n.type g4soft_switch,@function\n"
    "g4soft_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  popq %rcx\n  jmp *%rcx\n"  // not ret: the return predictor would miss on every switch
    ".size g4soft_switch,.-g4soft_switch\n"
    // First entry of a fibre: start() left it in r12.
    ".globl g4soft_entry\n.hidden g4soft_entry\n.type g4soft_entry,@function\n"
    "g4soft_entry:\n  movq %r12, %rdi\n  call g4soft_fibre_main\n  ud2\n"
    ".size g4soft_entry,.-g4soft_entry\n");
extern "C" void g4soft_entry();
#endif

struct Place {
  const char* file;
  int line;
  int scope;
  bool operator==(const Place& o) const {
    return line == o.line && scope == o.scope && (file == o.file || !std::strcmp(file, o.file));
  }
  bool operator<(const Place& o) const {
    int c = std::strcmp(file, o.file);
    return c ? c < 0 : line != o.line ? line < o.line : scope < o.scope;
  }
};

uint64_t next_random(uint64_t& state) {  // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

struct Fibre {
  G4SoftThread thread;  // first: the kernel's `self` pointer is the fibre
  BlockRunner::Impl* owner;
#if defined(__x86_64__)
  void* sp;
#else
  ucontext_t context;
#endif
  void* arg;
  G4SoftJoinFn join_fn;
  Place place;
  bool started;
  bool done;
  bool waiting;
  uint32_t stack;  // once started
#if G4_ASAN
  void* fake_stack;
#endif
};

struct BlockRunner::Impl {
  uint8_t* stacks = nullptr;
  size_t stack_stride = 0;
  std::vector<Fibre> fibres{kThreadsMax};
  std::vector<uint32_t> ready, next_ready;
  std::vector<uint32_t> free_stacks;  // last in, first out: threads that never wait share one warm stack
  std::vector<void*> args;
  std::vector<uint8_t> shared;
  const BlockLaunch* launch = nullptr;
  Fibre* current = nullptr;
  std::vector<uint32_t> held;  // threads before griddepcontrol.wait, while holding
  bool holding = false;
  bool ended = false;  // by end_block()
  uint32_t threads = 0, live = 0, block_waiting = 0;
  uint32_t warp_waiting[kThreadsMax / 32] = {}, warp_live[kThreadsMax / 32] = {};
  uint64_t random = 0;
  std::string error;
  const void* fault_address = nullptr;  // left by the signal handler
  bool fault_write = false;
#if G4_ASAN
  const void* main_stack = nullptr;  // of the OS thread that runs the block, as the sanitizer told
  size_t main_stack_bytes = 0;
  uint32_t stacks_used = 0;
#endif
#if defined(__x86_64__)
  void* main_sp = nullptr;
#else
  ucontext_t main_context;
#endif

  Impl() {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    stack_stride = kStackBytes + page;
    void* p = mmap(nullptr, stack_stride * kThreadsMax, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (p == MAP_FAILED) abort();
    stacks = static_cast<uint8_t*>(p);
    for (uint32_t i = 0; i < kThreadsMax; i++) mprotect(stacks + i * stack_stride, page, PROT_NONE);
  }
  ~Impl() { munmap(stacks, stack_stride * kThreadsMax); }

  uint8_t* stack_of(const Fibre& f) { return stacks + f.stack * stack_stride; }

  void to_fibre(Fibre& f) {
    current = &f;
#if G4_ASAN
    void* fake_stack;
    __sanitizer_start_switch_fiber(&fake_stack, stack_of(f), stack_stride);
#endif
#if defined(__x86_64__)
    g4soft_switch(&main_sp, f.sp);
#else
    swapcontext(&main_context, &f.context);
#endif
#if G4_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    current = nullptr;
  }
  void to_main(Fibre& f) {
#if G4_ASAN
    __sanitizer_start_switch_fiber(f.done ? nullptr : &f.fake_stack, main_stack, main_stack_bytes);
#endif
#if defined(__x86_64__)
    g4soft_switch(&f.sp, main_sp);
#else
    swapcontext(&f.context, &main_context);
#endif
#if G4_ASAN
    __sanitizer_finish_switch_fiber(f.fake_stack, &main_stack, &main_stack_bytes);
#endif
  }

  static void fibre_main(Fibre* f) {
#if G4_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &f->owner->main_stack, &f->owner->main_stack_bytes);
#endif
    f->owner->launch->fn(&f->thread, f->owner->launch->params);
    f->done = true;
    f->owner->to_main(*f);
    abort();
  }
#if !defined(__x86_64__)
  static thread_local Fibre* current_for_entry;
  static void entry() { fibre_main(current_for_entry); }
#endif

  void start(Fibre& f) {
    const uint32_t i = f.stack = free_stacks.back();
    free_stacks.pop_back();
    f.started = true;
#if G4_ASAN
    stacks_used = std::max(stacks_used, i + 1);
#endif
    // Stack tops are staggered: at equal offsets in their pages all of them would share a handful of cache sets.
    uint8_t* top = stacks + (i + 1) * stack_stride - i * 448 % 16384;
#if defined(__x86_64__)
    // Seven slots: r15 r14 r13 r12 rbx rbp, return address. After the seven are popped the stack is 16-byte aligned.
    void** sp = reinterpret_cast<void**>(top) - 9;
    std::memset(sp, 0, 9 * sizeof(void*));
    sp[3] = &f;
    sp[6] = reinterpret_cast<void*>(&g4soft_entry);
    f.sp = sp;
#else
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = top - kStackBytes;
    f.context.uc_stack.ss_size = kStackBytes;
    f.context.uc_link = nullptr;
    makecontext(&f.context, &entry, 0);
#endif
  }

  void fail(const std::string& what) {
    if (error.empty()) error = what;
  }

  static std::string at(const Place& p) {
    const std::string scope = p.scope == G4_SCOPE_WARP ? "warp" : "block";
    return scope + " join at " + p.file + ":" + std::to_string(p.line);
  }

  // Completes the join of threads [begin, end) if every live one of them stands in it.
  void try_release(uint32_t begin, uint32_t end, int scope) {
    const Fibre* first = nullptr;
    bool whole = true;
    for (uint32_t i = begin; i < end; i++) {
      Fibre& f = fibres[i];
      if (f.done) { whole = false; continue; }
      if (!first) first = &f;
      if (!(f.place == first->place))
        return fail("threads of one " + std::string(scope == G4_SCOPE_WARP ? "warp" : "block") +
                    " wait at different places: " + at(first->place) + " and " + at(f.place));
    }
    if (!first) return;
    if (first->join_fn) {
      if (!whole) return fail("collective reached by a part of its scope, others have returned: " + at(first->place));
      args.clear();
      for (uint32_t i = begin; i < end; i++) args.push_back(fibres[i].arg);
      first->join_fn(args.data(), (uint32_t)args.size());
    }
    for (uint32_t i = begin; i < end; i++) {
      if (fibres[i].done) continue;
      fibres[i].waiting = false;
      next_ready.push_back(i);
    }
    if (scope == G4_SCOPE_WARP) warp_waiting[begin / 32] = 0;
    else block_waiting = 0;
  }

  void check(uint32_t i, int scope) {
    const uint32_t w = i / 32, begin = scope == G4_SCOPE_WARP ? w * 32 : 0;
    const uint32_t end = scope == G4_SCOPE_WARP ? std::min(threads, begin + 32) : threads;
    if (scope == G4_SCOPE_WARP ? (warp_waiting[w] && warp_waiting[w] == warp_live[w])
                               : (block_waiting && block_waiting == live))
      try_release(begin, end, scope);
  }

  void join(Fibre& f, int scope, void* arg, G4SoftJoinFn fn, const char* file, int line) {
    f.arg = arg;
    f.join_fn = fn;
    f.place = Place{file, line, scope};
    f.waiting = true;
    if (scope == G4_SCOPE_WARP) warp_waiting[f.thread.tid / 32]++;
    else block_waiting++;
    check(f.thread.tid, scope);
    to_main(f);
  }

  // griddepcontrol.wait: while holding, the thread stops here until finish().
  void dependency_wait(Fibre& f) {
    if (!holding) {
      if (launch->dependency_wait) launch->dependency_wait(launch->dependency_arg);
      return;
    }
    held.push_back(f.thread.tid);
    to_main(f);
  }

  // The thread ends, and with it those that have not begun; run_ready() sees that nobody is live.
  void end_block(Fibre& f) {
    for (uint32_t i = 0; i < threads; i++)
      if (fibres[i].waiting && !fibres[i].done) fail("a block ended while threads wait: " + at(fibres[i].place));
    ended = f.done = true;
    to_main(f);
    abort();
  }

  bool set_up(const BlockLaunch& l, const uint32_t block_idx[3]);
  void run_ready();
};

namespace {
thread_local BlockRunner::Impl* running = nullptr;  // the runner whose block this OS thread executes, for the handler
}

#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void g4soft_fibre_main(void* f) {
  BlockRunner::Impl::fibre_main(static_cast<Fibre*>(f));
}
#else
thread_local Fibre* BlockRunner::Impl::current_for_entry = nullptr;
#endif

namespace {

void op_join(G4SoftThread* self, int scope, void* arg, G4SoftJoinFn fn, const char* file, int line) {
  Fibre* f = reinterpret_cast<Fibre*>(self);
  f->owner->join(*f, scope, arg, fn, file, line);
}
void op_trap(G4SoftThread* self, const char* what, const char* file, int line) {
  Fibre* f = reinterpret_cast<Fibre*>(self);
  f->owner->fail(std::string("trap: ") + what + " at " + file + ":" + std::to_string(line));
  f->done = true;
  f->owner->to_main(*f);
  abort();
}
void op_dependency_wait(G4SoftThread* self) {
  Fibre* f = reinterpret_cast<Fibre*>(self);
  f->owner->dependency_wait(*f);
}
void op_dependency_launch(G4SoftThread*) {}

void op_end_block(G4SoftThread* self) {
  Fibre* f = reinterpret_cast<Fibre*>(self);
  f->owner->end_block(*f);
}

const G4SoftOps kOps = {op_join, op_trap, op_dependency_wait, op_dependency_launch, op_end_block};

}  // namespace

// Makes every fibre of the block ready to start.
bool BlockRunner::Impl::set_up(const BlockLaunch& l, const uint32_t block_idx[3]) {
#if G4_ASAN
  // A block that failed, was never finished or was ended by one thread left its fibres' red zones behind.
  for (uint32_t i = 0; (live || ended) && i < stacks_used; i++)
    ASAN_UNPOISON_MEMORY_REGION(stacks + i * stack_stride, stack_stride);
#endif
  launch = &l;
  error.clear();
  held.clear();
  holding = ended = false;
  threads = live = l.block[0] * l.block[1] * l.block[2];
  if (threads == 0 || threads > kThreadsMax) {
    error = "block of " + std::to_string(threads) + " threads";
    return false;
  }
  random = l.seed ? l.seed ^ (block_idx[0] * 0x9e3779b1ull + block_idx[1] * 0x85ebca6bull + block_idx[2]) : 0;
#if G4_ASAN
  if (!shared.empty()) ASAN_UNPOISON_MEMORY_REGION(shared.data(), shared.size());
#endif
  if (shared.size() < l.shared_bytes + 256) shared.resize(l.shared_bytes + 256);
  std::memset(shared.data(), 0xFB, l.shared_bytes + 256);  // poison: shared memory starts undefined
  uint8_t* base = shared.data() + (128 - reinterpret_cast<uintptr_t>(shared.data()) % 128) % 128;
#if G4_ASAN
  ASAN_POISON_MEMORY_REGION(base + l.shared_bytes, shared.data() + shared.size() - (base + l.shared_bytes));
#endif
  block_waiting = 0;
  ready.clear();
  next_ready.clear();
  free_stacks.clear();
  for (uint32_t i = threads; i-- > 0;) free_stacks.push_back(i);
  for (uint32_t w = 0; w * 32 < threads; w++) {
    warp_waiting[w] = 0;
    warp_live[w] = std::min(threads - w * 32, 32u);
  }
  for (uint32_t i = 0; i < threads; i++) {
    Fibre& f = fibres[i];
    f.thread = G4SoftThread{&kOps, base, l.shared_bytes, i,
                            {i % l.block[0], i / l.block[0] % l.block[1], i / (l.block[0] * l.block[1])},
                            {block_idx[0], block_idx[1], block_idx[2]},
                            {l.block[0], l.block[1], l.block[2]},
                            {l.grid[0], l.grid[1], l.grid[2]}};
    f.owner = this;
    f.started = f.done = f.waiting = false;
    next_ready.push_back(i);
  }
  return true;
}

// Runs fibres until the block has ended, failed, or (holding) stands before griddepcontrol.wait.
void BlockRunner::Impl::run_ready() {
  running = this;
  while (live && error.empty()) {
    ready.swap(next_ready);
    next_ready.clear();
    if (random)
      for (size_t i = ready.size(); i > 1; i--) std::swap(ready[i - 1], ready[next_random(random) % i]);
    if (ready.empty()) {
      if (holding && !held.empty()) break;
      std::set<Place> places;
      for (uint32_t i = 0; i < threads; i++)
        if (!fibres[i].done) places.insert(fibres[i].place);
      std::string text = "barrier that not all live threads reach:";
      for (const Place& p : places) text += " " + at(p) + ";";
      fail(text);
      break;
    }
    for (uint32_t i : ready) {
      Fibre& f = fibres[i];
      if (!f.started) start(f);
#if !defined(__x86_64__)
      current_for_entry = &f;
#endif
      to_fibre(f);
      if (ended) live = 0;
      if (ended || !error.empty()) break;
      if (f.done) {
        free_stacks.push_back(f.stack);
        live--;
        warp_live[i / 32]--;
        check(i, G4_SCOPE_WARP);
        check(i, G4_SCOPE_BLOCK);
      }
    }
  }
  running = nullptr;
}

BlockRunner::BlockRunner() : impl_(new Impl) {}
BlockRunner::~BlockRunner() = default;

std::string BlockRunner::run(const BlockLaunch& launch, const uint32_t block_idx[3]) {
  if (impl_->set_up(launch, block_idx)) impl_->run_ready();
  return impl_->error;
}

std::string BlockRunner::begin(const BlockLaunch& launch, const uint32_t block_idx[3]) {
  if (!impl_->set_up(launch, block_idx)) return impl_->error;
  impl_->holding = true;
  impl_->run_ready();
  return impl_->error;
}

std::string BlockRunner::finish() {
  impl_->holding = false;
  impl_->next_ready.insert(impl_->next_ready.end(), impl_->held.begin(), impl_->held.end());
  impl_->held.clear();
  impl_->run_ready();
  return impl_->error;
}

// ---- Faults of memory access ---------------------------------------------------------------------------------------

#if defined(__x86_64__)
namespace {

struct sigaction previous[NSIG];

// Where a faulting fibre continues, on its own stack emptied: nothing of its frames is needed any more.
void end_faulting_fibre() {
  BlockRunner::Impl* r = running;
  char text[96];
  std::snprintf(text, sizeof text, "trap: %s of %p%s in thread %u", r->fault_write ? "store" : "load", r->fault_address,
                r->holding ? " before griddepcontrol.wait" : "", r->current->thread.tid);
  r->fail(text);
  r->current->done = true;
  r->to_main(*r->current);
  abort();
}

void on_fault(int signal, siginfo_t* info, void* context) {
  BlockRunner::Impl* r = running;
  if (r && r->current) {
    greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    r->fault_address = info->si_addr;
    r->fault_write = registers[REG_ERR] & 2;
    uint8_t* top = r->stack_of(*r->current) + r->stack_stride - 16384;
    registers[REG_RSP] = (greg_t)(reinterpret_cast<uintptr_t>(top) / 16 * 16 - 8);
    registers[REG_RIP] = (greg_t) reinterpret_cast<uintptr_t>(&end_faulting_fibre);
    return;
  }
  const struct sigaction& old = previous[signal];
  if (old.sa_flags & SA_SIGINFO) old.sa_sigaction(signal, info, context);
  else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) old.sa_handler(signal);
  else sigaction(signal, &old, nullptr);  // back to the default: the instruction faults again and ends the process
}

}  // namespace

void catch_faults() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int signal : {SIGSEGV, SIGBUS}) sigaction(signal, &action, &previous[signal]);
    return true;
  }();
  (void)installed;
  // A fibre that overflows its stack has none left to handle the signal on.
  thread_local std::unique_ptr<uint8_t[]> stack;
  stack_t present = {};
  if (stack || (!sigaltstack(nullptr, &present) && !(present.ss_flags & SS_DISABLE))) return;
  constexpr size_t kBytes = 64 * 1024;
  stack.reset(new uint8_t[kBytes]);
  stack_t alternative = {};
  alternative.ss_sp = stack.get();
  alternative.ss_size = kBytes;
  sigaltstack(&alternative, nullptr);
}
#else
void catch_faults() {}
#endif

}  // namespace g4soft
