#include "arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "counters.h"
#include "faults.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define G4_FENCE(p, n) ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(p), n)
#define G4_UNFENCE(p, n) ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(p), n)
#else
#define G4_FENCE(p, n) (void)0
#define G4_UNFENCE(p, n) (void)0
#endif

namespace g4soft {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPieceBytes = 16 << 20;   // size of the poison file, and of one mapping of it
constexpr size_t kRemapBytes = 1 << 20;    // above this a freed range is mapped anew instead of filled
constexpr size_t kVerifyBytes = 16 << 20;  // of a range handed out, how much of its start must still be poison

// First byte of [p, p + n) that differs from value, or n. Reads fenced memory on purpose.
__attribute__((no_sanitize("address"))) size_t first_other(uintptr_t p, size_t n, uint8_t value) {
  const volatile uint8_t* bytes = reinterpret_cast<const volatile uint8_t*>(p);
  const uint64_t word = 0x0101010101010101ull * value;
  size_t i = 0;
  for (; i < n && (p + i) % 8; i++)
    if (bytes[i] != value) return i;
  for (; i + 8 <= n; i += 8)
    if (*reinterpret_cast<const volatile uint64_t*>(bytes + i) != word) break;
  for (; i < n; i++)
    if (bytes[i] != value) return i;
  return n;
}

}  // namespace

Arena::Arena(const char* kind, size_t virtual_bytes) : kind_(kind) {
  virtual_bytes_ = (virtual_bytes + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
  void* range =
      mmap(nullptr, virtual_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    report("cannot reserve %zu bytes of addresses for %s memory", virtual_bytes_, kind);
    abort();
  }
  base_ = reinterpret_cast<uintptr_t>(range);
  poison_file_ = memfd_create("soft-device-poison", MFD_CLOEXEC);
  const std::vector<uint8_t> piece(kPieceBytes, kPoison);
  if (poison_file_ < 0 || write(poison_file_, piece.data(), kPieceBytes) != (ssize_t)kPieceBytes) {
    report("cannot make the poison file");
    abort();
  }
  for (uintptr_t p = base_; p < base_ + virtual_bytes_; p += kPieceBytes)
    if (mmap(reinterpret_cast<void*>(p), kPieceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
             poison_file_, 0) == MAP_FAILED) {
      report("cannot map the poison file");
      abort();
    }
  free_[base_] = virtual_bytes_;
  cursor_ = base_;
}

void Arena::poison(uintptr_t begin, size_t bytes) {
  G4_UNFENCE(begin, bytes);
  uintptr_t end = begin + bytes;
  if (bytes >= kRemapBytes) {
    // Whole pages go back to the file, offset by offset, so that neighbouring mappings merge again.
    const uintptr_t first = (begin + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
    for (uintptr_t p = first; p < last;) {
      const size_t offset = (p - base_) % kPieceBytes;
      const size_t n = std::min<size_t>(kPieceBytes - offset, last - p);
      if (mmap(reinterpret_cast<void*>(p), n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
               poison_file_, (off_t)offset) == MAP_FAILED)
        std::memset(reinterpret_cast<void*>(p), kPoison, n);
      p += n;
    }
    std::memset(reinterpret_cast<void*>(begin), kPoison, first - begin);
    std::memset(reinterpret_cast<void*>(last), kPoison, end - last);
  } else {
    std::memset(reinterpret_cast<void*>(begin), kPoison, bytes);
  }
  G4_FENCE(begin, bytes);
}

// Next fit: from the cursor (inside the free range that holds it, if one does) to the end, then from the start.
uintptr_t Arena::take(size_t bytes) {
  auto it = free_.upper_bound(cursor_);
  if (it != free_.begin()) {
    auto around = std::prev(it);
    const uintptr_t end = around->first + around->second;
    if (end > cursor_ && end - cursor_ >= bytes) return carve(around, cursor_, bytes);
  }
  for (; it != free_.end(); ++it)
    if (it->second >= bytes) return carve(it, it->first, bytes);
  for (it = free_.begin(); it != free_.end(); ++it)
    if (it->second >= bytes) return carve(it, it->first, bytes);
  return 0;
}

// Takes [begin, begin + bytes) out of a free range.
uintptr_t Arena::carve(std::map<uintptr_t, size_t>::iterator range, uintptr_t begin, size_t bytes) {
  const uintptr_t first = range->first, end = first + range->second;
  if (begin > first) range->second = begin - first;
  else free_.erase(range);
  if (begin + bytes < end) free_[begin + bytes] = end - (begin + bytes);
  cursor_ = begin + bytes;
  return begin;
}

void Arena::give(uintptr_t begin, size_t bytes) {
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_[begin] = bytes;
}

void* Arena::alloc(size_t bytes, const void* owner, unsigned flags, bool managed) {
  Allocation a;
  a.bytes = bytes;
  a.owner = owner;
  a.flags = flags;
  a.managed = managed;
  const size_t whole = a.charged() + 2 * kGuardBytes;
  std::lock_guard<std::mutex> lock(mutex_);
  const uintptr_t begin = take(whole);
  if (!begin) return nullptr;
  const size_t checked = std::min(whole, kVerifyBytes), clean = first_other(begin, checked, kPoison);
  if (clean != checked) {
    G4_COUNT(guard_errors);
    report("write to free %s memory at %p", kind_, reinterpret_cast<void*>(begin + clean));
  }
  a.address = begin + kGuardBytes;
  const uintptr_t tail = a.address + bytes;
  G4_UNFENCE(begin, whole);
  std::memset(reinterpret_cast<void*>(begin), kGuard, kGuardBytes);
  std::memset(reinterpret_cast<void*>(tail), kGuard, begin + whole - tail);
  if (clean != checked) std::memset(reinterpret_cast<void*>(a.address), kPoison, bytes);
  G4_FENCE(begin, kGuardBytes);
  G4_FENCE(tail, begin + whole - tail);
  live_[a.address] = a;
  if (managed) managed_++;
  return reinterpret_cast<void*>(a.address);
}

int Arena::check(const Allocation& a) {
  const uintptr_t begin = a.address - kGuardBytes, tail = a.address + a.bytes;
  const uintptr_t end = a.address + a.charged() + kGuardBytes;
  int broken = 0;
  const size_t before = first_other(begin, kGuardBytes, kGuard);
  if (before != kGuardBytes) {
    report("%s memory written %zu bytes before the allocation of %zu bytes at %p", kind_, kGuardBytes - before, a.bytes,
           reinterpret_cast<void*>(a.address));
    broken++;
  }
  const size_t after = first_other(tail, end - tail, kGuard);
  if (after != end - tail) {
    report("%s memory written at byte %zu past the end of the allocation of %zu bytes at %p", kind_, after, a.bytes,
           reinterpret_cast<void*>(a.address));
    broken++;
  }
  if (!broken) return 0;
  G4_COUNT(guard_errors, broken);
  G4_UNFENCE(begin, kGuardBytes);
  G4_UNFENCE(tail, end - tail);
  std::memset(reinterpret_cast<void*>(begin), kGuard, kGuardBytes);
  std::memset(reinterpret_cast<void*>(tail), kGuard, end - tail);
  G4_FENCE(begin, kGuardBytes);
  G4_FENCE(tail, end - tail);
  return broken;
}

bool Arena::release(void* address, int* broken) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = live_.find(reinterpret_cast<uintptr_t>(address));
  if (it == live_.end()) return false;
  const int found = check(it->second);
  if (broken) *broken = found;
  const uintptr_t begin = it->second.address - kGuardBytes;
  const size_t whole = it->second.charged() + 2 * kGuardBytes;
  if (it->second.managed) managed_--;
  live_.erase(it);
  poison(begin, whole);
  give(begin, whole);
  return true;
}

bool Arena::find(uintptr_t p, size_t bytes, Allocation* out, bool retired) const {
  if (!contains(p)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = live_.upper_bound(p);
  if (it == live_.begin()) return false;
  const Allocation& a = std::prev(it)->second;
  if (p - a.address > a.bytes || a.bytes - (p - a.address) < bytes || (!a.live && !retired)) return false;
  if (p == a.address + a.bytes) return false;  // one past the end belongs to nothing
  if (out) *out = a;
  return true;
}

bool Arena::retire(void* address) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = live_.find(reinterpret_cast<uintptr_t>(address));
  if (it == live_.end() || !it->second.live) return false;
  it->second.live = false;
  return true;
}

int Arena::check_guards() {
  std::lock_guard<std::mutex> lock(mutex_);
  int broken = 0;
  for (const auto& entry : live_) broken += check(entry.second);
  return broken;
}

Arena::ReadOnly::ReadOnly(Arena& arena) : arena_(arena), lock_(arena.mutex_) {
  on_ = !arena.managed_ && !mprotect(reinterpret_cast<void*>(arena.base_), arena.virtual_bytes_, PROT_READ);
}

Arena::ReadOnly::~ReadOnly() {
  if (on_) mprotect(reinterpret_cast<void*>(arena_.base_), arena_.virtual_bytes_, PROT_READ | PROT_WRITE);
}

Arena::Released Arena::release_owner(const void* owner) {
  std::vector<void*> addresses;
  Released sum;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& entry : live_) {
      if (entry.second.owner != owner) continue;
      addresses.push_back(reinterpret_cast<void*>(entry.first));
      sum.count++;
      sum.bytes += entry.second.bytes;
      sum.charged += entry.second.charged();
    }
  }
  for (void* address : addresses) release(address);
  return sum;
}

}  // namespace g4soft
