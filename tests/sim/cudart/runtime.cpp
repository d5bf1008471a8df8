// Finding the driver, contexts per thread, and the last error.
#include "cudart/runtime.h"

#include <dlfcn.h>

#include <mutex>

namespace cudart {
namespace {

constexpr int kRuntimeVersion = 13000;
constexpr cuuint64_t kDefault = 0;
constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

thread_local int t_device = 0;
thread_local cudaError_t t_last = cudaSuccess;

template <typename Function>
void ask(Driver& d, const char* name, int version, cuuint64_t flags, Function* out) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (d.get_proc_address(name, &found, version, flags, &status) != CUDA_SUCCESS) found = nullptr;
  *out = reinterpret_cast<Function>(found);
}

void load(Driver& d) {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY);
  if (library == nullptr) {
    d.error = cudaErrorInsufficientDriver;
    return;
  }
  d.get_proc_address =
      reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
  if (d.get_proc_address == nullptr) {
    d.error = cudaErrorInsufficientDriver;
    return;
  }
  ask(d, "cuGetProcAddress", 11030, kDefault, &d.resolver_11030);
  ask(d, "cuGetProcAddress", 12000, kDefault, &d.resolver_12000);
#define DRIVER(base, version) ask(d, #base, version, kDefault, &d.base##_);
#define DRIVER_TWICE(base, version, twin_version, twin) \
  ask(d, #base, version, kDefault, &d.base##_);         \
  ask(d, #base, twin_version, kPerThread, &d.base##_##twin##_);
#include "cudart/driver.def"
  if (d.cuInit_ == nullptr || d.cuDevicePrimaryCtxRetain_ == nullptr)
    d.error = cudaErrorInsufficientDriver;
}

}  // namespace

Driver& driver() {
  static Driver* const d = [] {
    auto* loaded = new Driver;  // never destroyed: programs call the runtime from their destructors
    load(*loaded);
    return loaded;
  }();
  return *d;
}

cudaError_t initialise() {
  Driver& d = driver();
  if (d.error != cudaSuccess) return d.error;
  return static_cast<cudaError_t>(d.cuInit_(0));
}

cudaError_t with_context() {
  if (const cudaError_t error = initialise(); error != cudaSuccess) return error;
  Driver& d = driver();
  CUcontext context = nullptr;
  CUresult result = d.cuCtxGetCurrent_(&context);
  if (result != CUDA_SUCCESS || context != nullptr) return static_cast<cudaError_t>(result);
  static std::mutex mutex;
  static CUcontext retained[64] = {};
  const int device = t_device;
  {
    const std::lock_guard lock(mutex);
    if (retained[device] == nullptr) {
      result = d.cuDevicePrimaryCtxRetain_(&retained[device], device);
      if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
    }
    context = retained[device];
  }
  result = d.cuCtxSetCurrent_(context);
  if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {  // somebody reset the device
    result = d.cuDevicePrimaryCtxRetain_(&context, device);
    if (result == CUDA_SUCCESS) result = d.cuCtxSetCurrent_(context);
  }
  return static_cast<cudaError_t>(result);
}

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) t_last = error;
  return error;
}

cudaError_t last_error(bool clear) {
  const cudaError_t error = t_last;
  if (clear) t_last = cudaSuccess;
  return error;
}

int current_device() {
  return t_device;
}
void set_current_device(int device) {
  t_device = device;
}

}  // namespace cudart

CUDART_API cudaError_t cudaGetLastError(void) {
  return cudart::last_error(true);
}
CUDART_API cudaError_t cudaPeekAtLastError(void) {
  return cudart::last_error(false);
}

CUDART_API const char* cudaGetErrorString(cudaError_t error) {
  const char* text = nullptr;
  auto& d = cudart::driver();
  if (d.cuGetErrorString_ != nullptr) d.cuGetErrorString_(static_cast<CUresult>(error), &text);
  return text != nullptr ? text : "unrecognized error code";
}

CUDART_API const char* cudaGetErrorName(cudaError_t error) {
  const char* text = nullptr;
  auto& d = cudart::driver();
  if (d.cuGetErrorName_ != nullptr) d.cuGetErrorName_(static_cast<CUresult>(error), &text);
  return text != nullptr ? text : "unrecognized error code";
}

CUDART_API cudaError_t cudaDriverGetVersion(int* version) {
  auto& d = cudart::driver();
  if (d.error != cudaSuccess) {
    if (version != nullptr) *version = 0;
    return cudaSuccess;
  }
  return cudart::note(d.cuDriverGetVersion_(version));
}

CUDART_API cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return cudart::note(cudaErrorInvalidValue);
  *version = cudart::kRuntimeVersion;
  return cudaSuccess;
}

CUDART_API cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                        unsigned version, unsigned long long flags,
                                                        cudaDriverEntryPointQueryResult* status) {
  if (const cudaError_t error = cudart::initialise(); error != cudaSuccess)
    return cudart::note(error);
  CUdriverProcAddressQueryResult found{};
  const CUresult result =
      cudart::driver().get_proc_address(symbol, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return cudart::note(result);
}

CUDART_API cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function,
                                               unsigned long long flags,
                                               cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, cudart::kRuntimeVersion, flags, status);
}
