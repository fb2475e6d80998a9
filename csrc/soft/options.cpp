#include "options.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "faults.h"

namespace g4soft {
namespace {

// "2G", "512M", "64k" or a plain number.
bool parse(const char* text, uint64_t* value) {
  char* end = nullptr;
  *value = std::strtoull(text, &end, 0);
  if (end == text) return false;
  switch (std::tolower(*end)) {
    case 'k': *value <<= 10; break;
    case 'm': *value <<= 20; break;
    case 'g': *value <<= 30; break;
    default: return *end == 0 || *end == ':';
  }
  return true;
}

const char* environment(const char* option, std::string& name) {
  name = "GEMMA4_SOFT_";
  for (const char* c = option; *c; c++) name += (char)std::toupper(*c);
  return std::getenv(name.c_str());
}

}  // namespace

Options::Options() {
  memory_bytes = 2ull << 30;
  pinned_bytes = 1ull << 30;
  workers = std::max(1u, std::thread::hardware_concurrency());
  sms = 8;
  check_guards = 1;
  lazy_loading = 1;
  early_blocks = 2;
  early_trap = 64;  // making memory read-only costs about half a millisecond
  bool delay_given = false;
  std::string name;
#define X(option)                                                                             \
  if (const char* text = environment(#option, name)) {                                        \
    uint64_t value;                                                                           \
    if (parse(text, &value)) {                                                                \
      option = value;                                                                         \
      if (!std::strcmp(#option, "delay_us")) delay_given = true;                              \
    } else {                                                                                  \
      report("%s=%s is not a number", name.c_str(), text);                                    \
    }                                                                                         \
  }
  G4SOFT_OPTIONS(X)
#undef X
  // Delays make orders that are merely unlikely happen; a seed without them would explore little.
  if (seed && !delay_given) delay_us = 200;
  if (!workers) workers = 1;
}

Options& options() {
  static Options* all = new Options;  // never destroyed: stream threads outlive static destruction
  return *all;
}

}  // namespace g4soft

using namespace g4soft;

#define G4_CONTROL extern "C" __attribute__((visibility("default")))

G4_CONTROL int g4soft_set(const char* option, uint64_t value) {
#define X(name) \
  if (!std::strcmp(option, #name)) return options().name = value, 0;
  G4SOFT_OPTIONS(X)
#undef X
  return -1;
}

G4_CONTROL int g4soft_get(const char* option, uint64_t* value) {
#define X(name) \
  if (!std::strcmp(option, #name)) return *value = options().name, 0;
  G4SOFT_OPTIONS(X)
#undef X
  return -1;
}

G4_CONTROL int g4soft_version(void) { return 1; }
