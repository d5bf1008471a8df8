// A library of the host program that allocates by the CUDA runtime or by the driver: built under
// several names, so that rules can tell them apart.
#include <cuda.h>
#include <cuda_runtime_api.h>

extern "C" __attribute__((visibility("default"))) void* asker_by_runtime(std::size_t bytes) {
  void* block = nullptr;
  return cudaMalloc(&block, bytes) == cudaSuccess ? block : nullptr;
}

extern "C" __attribute__((visibility("default"))) CUdeviceptr asker_by_driver(std::size_t bytes) {
  CUdeviceptr block = 0;
  return cuMemAlloc(&block, bytes) == CUDA_SUCCESS ? block : 0;
}
