// The driver back end of the harness (-DG4_TEST_DRIVER): kernels go through cuModuleLoadData and cuLaunchKernel,
// buffers are device memory. Included by harness.h.
//
// The driver is the software device when that is linked in (its objects beside the test's), else a library:
// G4_TEST_LIBCUDA, or libcuda.so.1. For a GPU, G4_TEST_FATBINS lists the fat binaries, separated by colons; a test
// whose kernel stands in none of them is skipped.
#ifndef G4_TEST_HARNESS_DRIVER_H
#define G4_TEST_HARNESS_DRIVER_H

#include <dlfcn.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>

#include "../soft/control.h"
#include "../soft/cuda_types.h"

extern "C" {
__attribute__((weak)) CUresult cuGetProcAddress_v2(const char*, void**, int, uint64_t, int*);
__attribute__((weak)) int g4soft_set(const char*, uint64_t);
__attribute__((weak)) size_t g4soft_last_report(char*, size_t);
__attribute__((weak)) extern const G4SoftImage g4_kernel_image;  // present where csrc/kernels is linked in
}

namespace g4test {

struct Skip {
  std::string why;
};

namespace driver {

#define G4_DRIVER_CALLS(X)                                                                                        \
  X(cuInit, (unsigned))                                                                                           \
  X(cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice))                                                             \
  X(cuDevicePrimaryCtxReset, (CUdevice))                                                                          \
  X(cuCtxSetCurrent, (CUcontext))                                                                                 \
  X(cuStreamCreate, (CUstream*, unsigned))                                                                        \
  X(cuStreamSynchronize, (CUstream))                                                                              \
  X(cuMemAlloc, (CUdeviceptr*, size_t))                                                                           \
  X(cuMemFree, (CUdeviceptr))                                                                                     \
  X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                              \
  X(cuMemcpyHtoDAsync, (CUdeviceptr, const void*, size_t, CUstream))                                              \
  X(cuMemcpyDtoHAsync, (void*, CUdeviceptr, size_t, CUstream))                                                    \
  X(cuModuleLoadData, (CUmodule*, const void*))                                                                   \
  X(cuModuleGetFunction, (CUfunction*, CUmodule, const char*))                                                    \
  X(cuFuncSetAttribute, (CUfunction, int, int))                                                                   \
  X(cuDeviceGetName, (char*, int, CUdevice))                                                                      \
  X(cuDeviceGetAttribute, (int*, int, CUdevice))                                                                  \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int*, CUfunction, int, size_t))                                 \
  X(cuMemcpyDtoDAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                              \
  X(cuEventCreate, (CUevent*, unsigned))                                                                          \
  X(cuEventRecord, (CUevent, CUstream))                                                                           \
  X(cuEventElapsedTime, (float*, CUevent, CUevent))                                                               \
  X(cuStreamBeginCapture, (CUstream, CUstreamCaptureMode))                                                        \
  X(cuStreamEndCapture, (CUstream, CUgraph*))                                                                     \
  X(cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long))                                     \
  X(cuGraphLaunch, (CUgraphExec, CUstream))                                                                       \
  X(cuGraphExecDestroy, (CUgraphExec))                                                                            \
  X(cuGraphDestroy, (CUgraph))                                                                                    \
  X(cuLaunchKernelEx, (const CUlaunchConfig*, CUfunction, void**, void**))                                        \
  X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
                     void**, void**))

// One context and one stream for all tests. A sticky error ends them: the next use makes new ones, and what was
// allocated before is gone.
class Session {
 public:
  static Session& get() {
    static Session* session = new Session;
    if (session->broken_) session->start();
    return *session;
  }

#define X(name, arguments) CUresult(*name) arguments = nullptr;
  G4_DRIVER_CALLS(X)
#undef X
  CUstream stream = nullptr;

  uint64_t generation() const { return generation_; }
  bool soft() const { return set_ != nullptr; }
  void seed(uint64_t value) {
    if (set_) set_("seed", value);
  }
  void check(CUresult error, const char* what) {
    if (!error) return;
    broken_ = true;
    char text[512] = "";
    if (report_) report_(text, sizeof text);
    fail(std::string(what) + ": driver error " + std::to_string((int)error) + " " + text);
  }

  // The kernel by its host function: by name in the kernels' image or the fat binaries, else in an image of its own.
  CUfunction function(G4SoftKernelFn fn, const char* name, size_t param_bytes) {
    CUfunction& f = functions_[fn];
    if (f) return f;
    const G4SoftKernel* kernel = table_entry(fn);
    if (kernel) name = kernel->name;
    if (!soft()) {
      for (CUmodule m : modules_)
        if (!cuModuleGetFunction(&f, m, name)) return f;
      throw Skip{std::string(name) + " is in none of the fat binaries"};
    }
    CUmodule m;
    if (!kernel) {
      own_.push_back(std::make_unique<Own>());
      Own& own = *own_.back();
      own.name = name;
      own.kernel = {own.name.c_str(), fn, (uint32_t)param_bytes, 1024};
      own.image = {G4_SOFT_IMAGE_MAGIC, 1, 1, &own.kernel};
      check(cuModuleLoadData(&m, &own.image), name);
    } else {
      check(cuModuleLoadData(&m, &g4_kernel_image), name);
    }
    check(cuModuleGetFunction(&f, m, name), name);
    return f;
  }

 private:
  struct Own {
    std::string name;
    G4SoftKernel kernel;
    G4SoftImage image;
  };

  Session() {
    void* library = nullptr;
    if (!cuGetProcAddress_v2) {
      const char* path = std::getenv("G4_TEST_LIBCUDA");
      library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);
      if (!library) fail(std::string("no driver: ") + dlerror());
      set_ = reinterpret_cast<decltype(set_)>(dlsym(library, "g4soft_set"));
      report_ = reinterpret_cast<decltype(report_)>(dlsym(library, "g4soft_last_report"));
    } else {
      set_ = g4soft_set;
      report_ = g4soft_last_report;
    }
    auto* resolve = &cuGetProcAddress_v2;
    if (library) resolve = reinterpret_cast<decltype(resolve)>(dlsym(library, "cuGetProcAddress_v2"));
    if (!resolve) fail("no cuGetProcAddress_v2");
#define X(name, arguments)                                                          \
  {                                                                                 \
    void* address = nullptr;                                                        \
    int status = 0;                                                                 \
    if (resolve(#name, &address, 13000, 0, &status) || !address) fail("no " #name); \
    name = reinterpret_cast<CUresult(*) arguments>(address);                        \
  }
    G4_DRIVER_CALLS(X)
#undef X
    check(cuInit(0), "cuInit");
    start();
  }

  void start() {
    if (generation_++) check(cuDevicePrimaryCtxReset(0), "cuDevicePrimaryCtxReset");
    broken_ = false;
    functions_.clear();
    modules_.clear();
    CUcontext ctx;
    check(cuDevicePrimaryCtxRetain(&ctx, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (soft()) return;
    const char* list = std::getenv("G4_TEST_FATBINS");
    std::string paths = list ? list : "";
    while (!paths.empty()) {
      const std::string path = paths.substr(0, paths.find(':'));
      paths.erase(0, path.size() + 1);
      std::ifstream file(path, std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(file)), {});
      if (bytes.empty()) fail("cannot read " + path);
      modules_.push_back(nullptr);
      check(cuModuleLoadData(&modules_.back(), bytes.data()), path.c_str());
    }
  }

  static const G4SoftKernel* table_entry(G4SoftKernelFn fn) {
    const G4SoftImage* image = &g4_kernel_image;
    for (uint32_t i = 0; image && i < image->kernel_count; i++)
      if (image->kernels[i].fn == fn) return &image->kernels[i];
    return nullptr;
  }

  int (*set_)(const char*, uint64_t) = nullptr;
  size_t (*report_)(char*, size_t) = nullptr;
  bool broken_ = false;
  uint64_t generation_ = 0;
  std::vector<CUmodule> modules_;
  std::map<G4SoftKernelFn, CUfunction> functions_;
  std::vector<std::unique_ptr<Own>> own_;
};

}  // namespace driver

namespace driver {

// `cluster` consecutive blocks of x share their shared memory (a GPU of compute capability 9 or later).
// `dependent`: its blocks may start before the kernel before it has ended.
inline CUresult enqueue(CUfunction f, Dim grid, uint32_t threads, uint32_t shared, const void* params,
                        uint32_t cluster, bool dependent) {
  Session& s = Session::get();
  CUlaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (dependent) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[count++].value.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    auto& dim = attributes[count++].value.clusterDim;
    dim.x = cluster, dim.y = dim.z = 1;
  }
  const CUlaunchConfig config = {grid.x, grid.y, grid.z, threads, 1, 1, shared, s.stream, attributes, count};
  void* args[] = {const_cast<void*>(params)};
  return s.cuLaunchKernelEx(&config, f, args, nullptr);
}

}  // namespace driver

// A GPU rounds the sum of a product's sixteen terms in an order of its own and has its own exp: tests that ask the host
// for the bits of the rule ask a GPU for a bound against exact arithmetic, and for bits between its own kernels.
// G4_TEST_AS_GPU=1 asks the software device the same way: a rehearsal.
inline bool on_gpu() { return !driver::Session::get().soft() || std::getenv("G4_TEST_AS_GPU"); }
// Whether instructions of sm_90a run: elsewhere kernels with them compile to nothing.
inline bool on_hopper() {
  driver::Session& s = driver::Session::get();
  int major = 0;
  s.check(s.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0), "compute capability");
  return !s.soft() && major == 9;
}

template <class Params>
void launch(G4SoftKernelFn fn, const char* name, const Params* params, Dim grid, uint32_t threads, uint32_t shared,
            uint64_t seed = 0, uint32_t cluster = 1) {
  driver::Session& s = driver::Session::get();
  CUfunction f = s.function(fn, name, sizeof(Params));
  if (shared > 48 * 1024)
    s.check(s.cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared), name);
  s.seed(seed);
  const CUresult launched = driver::enqueue(f, grid, threads, shared, params, cluster, false);
  const CUresult ended = launched ? launched : s.cuStreamSynchronize(s.stream);
  s.seed(0);
  if (launched) fail(std::string(name) + ": launch refused, driver error " + std::to_string((int)launched));
  s.check(ended, name);
}

// Device memory of n elements, poisoned; the size is exact, and the device guards both ends.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t n) : n_(n) {
    driver::Session& s = driver::Session::get();
    generation_ = s.generation();
    s.check(s.cuMemAlloc(&p_, bytes() ? bytes() : 1), "cuMemAlloc");
    if (bytes()) s.check(s.cuMemsetD8Async(p_, 0xFB, bytes(), s.stream), "cuMemsetD8Async");
    s.check(s.cuStreamSynchronize(s.stream), "cuStreamSynchronize");
  }
  explicit Buffer(const std::vector<T>& host) : Buffer(host.size()) { upload(host); }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    driver::Session& s = driver::Session::get();
    if (s.generation() == generation_) s.cuMemFree(p_);
  }
  T* ptr() const { return reinterpret_cast<T*>(p_); }
  size_t size() const { return n_; }
  void upload(const std::vector<T>& host) {
    driver::Session& s = driver::Session::get();
    if (host.empty()) return;
    s.check(s.cuMemcpyHtoDAsync(p_, host.data(), host.size() * sizeof(T), s.stream), "cuMemcpyHtoDAsync");
    s.check(s.cuStreamSynchronize(s.stream), "upload");
  }
  std::vector<T> download() const {
    driver::Session& s = driver::Session::get();
    std::vector<T> host(n_);
    if (n_) s.check(s.cuMemcpyDtoHAsync(host.data(), p_, bytes(), s.stream), "cuMemcpyDtoHAsync");
    s.check(s.cuStreamSynchronize(s.stream), "download");
    return host;
  }

 private:
  size_t bytes() const { return n_ * sizeof(T); }
  size_t n_;
  CUdeviceptr p_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace g4test

#endif
