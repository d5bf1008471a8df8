// The inside of the stand-in runtime: the driver's functions as it found them, and the frame that
// every cuda* function shares. A real runtime refuses to run on a simulated driver, so programs
// under test link with this one instead.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#define CUDART_API extern "C" __attribute__((visibility("default")))

namespace cudart {

struct Driver {
#define DRIVER(base, version) PFN_##base##_v##version base##_ = nullptr;
#define DRIVER_TWICE(base, version, twin_version, twin) \
  PFN_##base##_v##version base##_ = nullptr;            \
  PFN_##base##_v##twin_version##twin base##_##twin##_ = nullptr;
#include "cudart/driver.def"
#undef DRIVER
#undef DRIVER_TWICE
  PFN_cuGetProcAddress_v12000 get_proc_address = nullptr;
  // What the driver answers for its own resolver, in both forms.
  PFN_cuGetProcAddress_v11030 resolver_11030 = nullptr;
  PFN_cuGetProcAddress_v12000 resolver_12000 = nullptr;
  cudaError_t error = cudaSuccess;  // why there is no driver
};

// Finds the driver at the first call: dlopen("libcuda.so.1"), dlsym("cuGetProcAddress_v2"), and
// that function for every other name, before cuInit.
Driver& driver();

// Driver initialised (no context).
cudaError_t initialise();
// And a context current: the thread's own, or the primary context of the thread's device.
cudaError_t with_context();

// Notes an error as the thread's last one and returns it.
cudaError_t note(cudaError_t error);
inline cudaError_t note(CUresult result) {
  return note(static_cast<cudaError_t>(result));
}
cudaError_t last_error(bool clear);

int current_device();
void set_current_device(int device);

inline CUdeviceptr address_of(const void* p) {
  return reinterpret_cast<CUdeviceptr>(p);
}

}  // namespace cudart

// Runs a driver call with a context current: RETURN_DRIVER(cuMemFree_(p)).
#define RETURN_DRIVER(call)                                                                       \
  do {                                                                                            \
    if (const cudaError_t error = cudart::with_context(); error != 0) return cudart::note(error); \
    return cudart::note(cudart::driver().call);                                                   \
  } while (0)
