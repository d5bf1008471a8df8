// A program that knows the runtime only. Built twice: with the shared runtime, and with the static
// one as nvcc links it by default. The cases about it are in runtime.cpp.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <thread>

#include "cases.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

void* allocate(std::size_t bytes) {
  void* p = nullptr;
  OK(cudaMalloc(&p, bytes));
  EXPECT(p != nullptr);
  return p;
}

cudaMemoryType type_of(void* p) {
  cudaPointerAttributes attributes{};
  OK(cudaPointerGetAttributes(&attributes, p));
  return attributes.type;
}

}  // namespace

SCENE(split) {
  void* const small = allocate(4096);
  void* const medium = allocate(6 * kMiB);
  void* const large = allocate(64 * kMiB);
  void* const larger = allocate(70 * kMiB);
  OK(cudaMemset(large, 5, 64 * kMiB));
  unsigned char last = 0;
  OK(cudaMemcpy(&last, static_cast<char*>(large) + 64 * kMiB - 1, 1, cudaMemcpyDeviceToHost));
  EXPECT(last == 5);
  OK(cudaFree(small));
  OK(cudaFree(large));
  std::printf("%d %d %d\n", type_of(small), type_of(medium), type_of(larger));
  return 0;
}

SCENE(works_after_fallback) {
  void* const block = allocate(64 * kMiB);
  void* const small = allocate(6912);
  CODE(cudaPeekAtLastError(), 0);
  CODE(cudaGetLastError(), 0);
  OK(cudaFree(block));
  OK(cudaFree(small));
  CODE(cudaGetLastError(), 0);
  return 0;
}

SCENE(error_pending) {
  void* p = nullptr;
  CODE(cudaMalloc(&p, std::size_t{1} << 50), cudaErrorMemoryAllocation);
  void* const block = allocate(64 * kMiB);
  CODE(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  OK(cudaFree(block));
  CODE(cudaGetLastError(), cudaErrorMemoryAllocation);
  CODE(cudaGetLastError(), 0);
  return 0;
}

SCENE(fresh_thread) {
  for (const int device : {0, 1}) {
    std::thread([device] {
      if (device != 0) OK(cudaSetDevice(device));
      for (const std::size_t bytes : {std::size_t{512}, 3 * kMiB, 64 * kMiB}) {
        void* const p = allocate(bytes);
        cudaPointerAttributes attributes{};
        OK(cudaPointerGetAttributes(&attributes, p));
        EXPECT(attributes.device == device);
        OK(cudaMemset(p, 1, bytes));
        OK(cudaFree(p));
      }
    }).join();
  }
  return 0;
}

SCENE(pitch) {
  std::size_t pitch = 0;
  void* p = nullptr;
  OK(cudaMallocPitch(&p, &pitch, 1000, 100));
  std::printf("small pitch %zu type %d\n", pitch, type_of(p));
  OK(cudaFree(p));
  OK(cudaMallocPitch(&p, &pitch, 1000, 64 * kMiB / 1024));
  std::printf("large pitch %zu type %d\n", pitch, type_of(p));
  OK(cudaFree(p));
  cudaPitchedPtr volume{};
  OK(cudaMalloc3D(&volume, {500, 64, 2048}));
  std::printf("volume pitch %zu type %d\n", volume.pitch, type_of(volume.ptr));
  OK(cudaFree(volume.ptr));
  CODE(cudaFree(volume.ptr), cudaErrorInvalidValue);
  return 0;
}

SCENE(nothing) {
  void* p = &p;
  OK(cudaMalloc(&p, 0));
  std::printf("left %d\n", p == &p ? 1 : p == nullptr ? 0 : 2);
  OK(cudaFree(nullptr));
  void* const block = allocate(64 * kMiB);
  OK(cudaMemset(block, 1, 0));
  OK(cudaFree(block));
  return 0;
}

SCENE(streams) {
  void* p = nullptr;
  OK(cudaMallocAsync(&p, 64 * kMiB, nullptr));
  OK(cudaMemsetAsync(p, 2, 64 * kMiB, nullptr));
  OK(cudaFreeAsync(p, nullptr));
  OK(cudaMallocAsync(&p, 4096, nullptr));
  OK(cudaFree(p));
  void* const plain = allocate(64 * kMiB);
  OK(cudaFreeAsync(plain, nullptr));
  OK(cudaDeviceSynchronize());
  return 0;
}

SCENE(entry_points) {
  OK(cudaFree(nullptr));
  for (const char* const name : {"cuMemAlloc", "cuMemFree", "cuMemsetD8", "cuGetProcAddress"}) {
    void* plain = nullptr;
    void* by_version = nullptr;
    cudaDriverEntryPointQueryResult status{};
    OK(cudaGetDriverEntryPointByVersion(name, &by_version, 12000, cudaEnableDefault, &status));
    Dl_info info{};
    EXPECT(dladdr(by_version, &info) != 0);
    const std::string object = info.dli_fname == nullptr ? "" : info.dli_fname;
    std::printf("%s %s\n", name, object.substr(object.rfind('/') + 1).c_str());
#if CUDART_VERSION < 13000
    OK(cudaGetDriverEntryPoint(name, &plain, cudaEnableDefault, &status));
    EXPECT(plain == by_version);
#endif
    (void)plain;
  }
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &found, 12000, cudaEnableDefault, &status));
  CUdeviceptr block = 0;
  OK(reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t)>(found)(&block, 64 * kMiB));
  OK(cudaFree(reinterpret_cast<void*>(block)));
  return 0;
}
