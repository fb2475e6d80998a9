// Modules (a kernel image given by its address) and functions.
#ifndef G4_SOFT_MODULE_H
#define G4_SOFT_MODULE_H

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "abi.h"
#include "world.h"

namespace g4soft {

constexpr uint32_t kSharedDefault = 48 * 1024;   // dynamic shared memory a kernel may use without asking
constexpr uint32_t kSharedOptIn = 227 * 1024;    // after CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

struct Function {
  const G4SoftKernel* kernel = nullptr;
  CUmodule module = nullptr;
  std::atomic<uint32_t> shared_max{kSharedDefault};
  std::atomic<bool> loaded{false};   // lazy loading: by cuFuncLoad, an attribute call or a launch outside of capture
  std::atomic<bool> unloaded{false};  // its module is gone
};

struct Module {
  std::shared_ptr<Context> ctx;
  const G4SoftImage* image = nullptr;
  std::map<std::string, std::shared_ptr<Function>> functions;  // handles given out, under the world's mutex
};

}  // namespace g4soft

#endif
