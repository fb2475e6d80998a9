// Memory of one kind (device, pinned) as one reserved range of addresses, with a sub-allocator that helps to find
// bugs.
//
// Life of a byte: (1) free bytes hold the poison 0xFB, from the reservation on; (2) an allocation is taken where the
// last one ended (addresses come back late, so a stale pointer meets poison, not a newer tensor), with a guard zone of
// 0xFD before and after it; (3) the guards are checked at free and whenever asked; (4) a freed range is poisoned
// again, and the poison is checked when the range is next handed out: a write to free memory is found there.
#ifndef G4_SOFT_ARENA_H
#define G4_SOFT_ARENA_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace g4soft {

constexpr uint8_t kPoison = 0xFB;
constexpr uint8_t kGuard = 0xFD;
constexpr size_t kAlign = 512;  // what cuMemAlloc gives; also the granule sizes are rounded to
constexpr size_t kGuardBytes = 512;

struct Allocation {
  uintptr_t address = 0;
  size_t bytes = 0;          // as asked for
  const void* owner = nullptr;  // context
  unsigned flags = 0;        // of cuMemHostAlloc
  bool managed = false;
  bool live = true;          // false between cuMemFreeAsync and its turn in the stream

  size_t charged() const { return (bytes + kAlign - 1) / kAlign * kAlign; }
};

class Arena {
 public:
  Arena(const char* kind, size_t virtual_bytes);
  // Null when the addresses are exhausted; the caller keeps the budget.
  void* alloc(size_t bytes, const void* owner, unsigned flags, bool managed);
  // Checks the guards, poisons, forgets. False: no allocation starts there. broken: guard zones found broken.
  bool release(void* address, int* broken = nullptr);
  // The allocation that holds all of [p, p + bytes). False: none does. retired: one given to cuMemFreeAsync counts
  // too, as work queued before it may still use it.
  bool find(uintptr_t p, size_t bytes, Allocation* out = nullptr, bool retired = false) const;
  bool contains(uintptr_t p) const { return p >= base_ && p < base_ + virtual_bytes_; }
  bool retire(void* address);  // cuMemFreeAsync: no longer live, not yet free
  // Broken guard zones, each reported once and then repaired.
  int check_guards();
  // While one lives, nothing can be written here and nobody allocates. Does nothing while there is managed memory,
  // which the host may write at any time.
  class ReadOnly {
   public:
    explicit ReadOnly(Arena& arena);
    ~ReadOnly();

   private:
    Arena& arena_;
    std::unique_lock<std::mutex> lock_;
    bool on_ = false;
  };
  // Frees what a destroyed context owned.
  struct Released {
    uint64_t count = 0, bytes = 0, charged = 0;
  };
  Released release_owner(const void* owner);

 private:
  int check(const Allocation& a);
  void poison(uintptr_t begin, size_t bytes);
  uintptr_t take(size_t bytes);
  uintptr_t carve(std::map<uintptr_t, size_t>::iterator range, uintptr_t begin, size_t bytes);
  void give(uintptr_t begin, size_t bytes);

  const char* kind_;
  uintptr_t base_ = 0;
  size_t virtual_bytes_ = 0;
  int poison_file_ = -1;  // a file of poison, mapped copy-on-write: poisoned memory costs no pages until written
  mutable std::mutex mutex_;
  std::map<uintptr_t, Allocation> live_;
  std::map<uintptr_t, size_t> free_;
  uintptr_t cursor_ = 0;
  size_t managed_ = 0;  // live allocations of managed memory
};

}  // namespace g4soft

#endif
