// The driver API as the tests of the software device call it, and what several of them need: a context of one's own, a
// gate that holds a stream, kernels.
#ifndef G4_TEST_DRIVER_API_H
#define G4_TEST_DRIVER_API_H

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "../common/cta.h"
#include "../soft/control.h"
#include "../soft/cuda_types.h"
#include "harness.h"

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDriverGetVersion(int*);
CUresult cuDeviceGetAttribute(int*, int, CUdevice);
CUresult cuDeviceGetName(char*, int, CUdevice);
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned*, int*);
CUresult cuCtxCreate_v4(CUcontext*, void*, unsigned, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxGetCurrent(CUcontext*);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxPushCurrent_v2(CUcontext);
CUresult cuCtxPopCurrent_v2(CUcontext*);
CUresult cuCtxSynchronize(void);
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t);
CUresult cuMemAllocAsync(CUdeviceptr*, size_t, CUstream);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemGetInfo_v2(size_t*, size_t*);
CUresult cuMemHostAlloc(void**, size_t, unsigned);
CUresult cuMemFreeHost(void*);
CUresult cuMemHostRegister_v2(void*, size_t, unsigned);
CUresult cuMemHostUnregister(void*);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void*, size_t);
CUresult cuMemcpyDtoH_v2(void*, CUdeviceptr, size_t);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void*, size_t, CUstream);
CUresult cuMemcpyDtoHAsync_v2(void*, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpyDtoD_v2(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream);
CUresult cuStreamCreate(CUstream*, unsigned);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamQuery(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned);
CUresult cuStreamAddCallback(CUstream, CUstreamCallback, void*, unsigned);
CUresult cuLaunchHostFunc(CUstream, CUhostFn, void*);
CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
CUresult cuStreamEndCapture(CUstream, CUgraph*);
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus*);
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*);
CUresult cuEventCreate(CUevent*, unsigned);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventRecordWithFlags(CUevent, CUstream, unsigned);
CUresult cuEventQuery(CUevent);
CUresult cuEventSynchronize(CUevent);
CUresult cuEventElapsedTime_v2(float*, CUevent, CUevent);
CUresult cuModuleLoadData(CUmodule*, const void*);
CUresult cuModuleUnload(CUmodule);
CUresult cuModuleGetFunction(CUfunction*, CUmodule, const char*);
CUresult cuFuncLoad(CUfunction);
CUresult cuFuncGetAttribute(int*, int, CUfunction);
CUresult cuFuncSetAttribute(CUfunction, int, int);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int*, CUfunction, int, size_t);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void**, void**);
CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**);
CUresult cuGraphInstantiateWithFlags(CUgraphExec*, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphUpload(CUgraphExec, CUstream);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuGraphDestroy(CUgraph);
CUresult cuGraphGetNodes(CUgraph, CUgraphNode*, size_t*);
CUresult cuGraphNodeGetType(CUgraphNode, CUgraphNodeType*);
CUresult cuGraphGetEdges_v2(CUgraph, CUgraphNode*, CUgraphNode*, CUgraphEdgeData*, size_t*);
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
CUresult cuGetProcAddress_v2(const char*, void**, int, uint64_t, int*);
CUresult cuGetErrorName(CUresult, const char**);
CUresult cuArrayCreate_v2(void*, void*);
}

namespace g4test {

// The call returns what it should; the text names both codes.
#define G4_IS(expected, call)                                                                  \
  do {                                                                                         \
    const int g4_got = (int)(call);                                                            \
    G4_CHECK(g4_got == (int)(expected), "returned %d, not %d", g4_got, (int)(expected));       \
  } while (0)
#define G4_OK(call) G4_IS(CUDA_SUCCESS, call)

// ---- Kernels: each block adds its part of the work to global memory ------------------------------------------------

struct FillParams {
  int32_t* x;      // [count]
  int32_t value;
  int32_t count;
};
struct AppendParams {
  int32_t* log;    // [0] the count, then what was appended
  int32_t value;
};
struct CopyParams {
  int32_t* to;
  const int32_t* from;
  int32_t count;
};
struct EarlyParams {
  int32_t* input;      // read before the wait: must not be the predecessor's
  int32_t* out;        // [grid]
  int32_t store_early;
};
extern const G4SoftImage kTestImage;

// A context of its own and a stream of its own, whose end leaves nothing behind: options and faults are put back.
class Driver {
 public:
  explicit Driver(uint64_t seed = 0) {
    g4soft_set("seed", seed);
    g4soft_set("delay_us", seed ? 200 : 0);
    G4_OK(cuInit(0));
    G4_OK(cuCtxCreate_v4(&ctx, nullptr, 0, 0));
    G4_OK(cuModuleLoadData(&module, &kTestImage));
    G4_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    fill_ = loaded("test_fill");
    append_ = loaded("test_append");
    g4soft_counters_reset();
  }
  ~Driver() {
    g4soft_fail_call(0, 0);
    g4soft_fail_named("", 0, 0);
    g4soft_fail_launch(0, 0);
    g4soft_release();
    g4soft_disarm();
    cuCtxDestroy_v2(ctx);
    g4soft_set("seed", 0);
    g4soft_set("delay_us", 0);
    g4soft_set("memory_bytes", 2ull << 30);
    g4soft_set("skip_kernels", 0);
    g4soft_set("check_guards", 1);
    g4soft_set("lazy_loading", 1);
    g4soft_set("workers", 2);
    g4soft_set("early_blocks", 2);
    g4soft_set("early_trap", 64);
  }
  CUdeviceptr alloc(size_t bytes) {
    CUdeviceptr p = 0;
    G4_OK(cuMemAlloc_v2(&p, bytes));
    return p;
  }
  template <class T>
  T* pinned(size_t n) {
    void* p = nullptr;
    G4_OK(cuMemHostAlloc(&p, n * sizeof(T), 0));
    return static_cast<T*>(p);
  }
  CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream s = nullptr;
    G4_OK(cuStreamCreate(&s, flags));
    return s;
  }
  CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent e = nullptr;
    G4_OK(cuEventCreate(&e, flags));
    return e;
  }
  CUfunction function(const char* name) {
    CUfunction f = nullptr;
    G4_OK(cuModuleGetFunction(&f, module, name));
    return f;
  }
  // A loaded function, as capture wants it.
  CUfunction loaded(const char* name) {
    CUfunction f = function(name);
    G4_OK(cuFuncLoad(f));
    return f;
  }
  CUresult fill(CUdeviceptr x, int value, int count, CUstream s) {
    FillParams p = {reinterpret_cast<int32_t*>(x), value, count};
    void* args[] = {&p};
    return cuLaunchKernel(fill_, (unsigned)(count + 63) / 64, 1, 1, 64, 1, 1, 0, s, args, nullptr);
  }
  CUresult append(CUdeviceptr log, int value, CUstream s) {
    AppendParams p = {reinterpret_cast<int32_t*>(log), value};
    void* args[] = {&p};
    return cuLaunchKernel(append_, 1, 1, 1, 1, 1, 1, 0, s, args, nullptr);
  }
  std::vector<int32_t> read(CUdeviceptr x, size_t n) {
    std::vector<int32_t> host(n);
    G4_OK(cuMemcpyDtoH_v2(host.data(), x, n * 4));
    return host;
  }
  CUgraphExec instantiate(CUgraph g) {
    CUgraphExec e = nullptr;
    G4_OK(cuGraphInstantiateWithFlags(&e, g, 0));
    return e;
  }

  CUcontext ctx = nullptr;
  CUmodule module = nullptr;
  CUstream stream = nullptr;

 private:
  CUfunction fill_ = nullptr, append_ = nullptr;
};

// Holds a stream at a host function until opened.
class Gate {
 public:
  explicit Gate(CUstream s) : state_(new State) {
    auto* shared = new std::shared_ptr<State>(state_);
    if (cuLaunchHostFunc(s, &wait, shared)) fail("cannot put a gate into the stream");
  }
  ~Gate() { open(); }
  void open() { state_->open = true; }
  bool reached() const { return state_->reached; }
  void wait_until_reached() const {
    while (!state_->reached) std::this_thread::yield();
  }

 private:
  struct State {
    std::atomic<bool> open{false}, reached{false};
  };
  static void wait(void* p) {
    std::unique_ptr<std::shared_ptr<State>> shared(static_cast<std::shared_ptr<State>*>(p));
    (*shared)->reached = true;
    while (!(*shared)->open) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  std::shared_ptr<State> state_;
};

inline void nap(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace g4test

#endif
