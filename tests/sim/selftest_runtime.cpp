// The stand-in runtime on the simulated driver; built once against the shared and once against the
// static form.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>
#include <thread>

#include "check.h"

int main() {
  void* p = reinterpret_cast<void*>(8);
  void* q = nullptr;
  size_t pitch = 0;
  int count = 0;
  OK(cudaGetDeviceCount(&count));
  CHECK(count == 2);
  OK(cudaMalloc(&p, 0));
  CHECK(p == nullptr);
  OK(cudaFree(nullptr));
  OK(cudaMalloc(&p, 1 << 20));
  CODE(cudaMalloc(&q, size_t{1} << 50), 2);
  CODE(cudaPeekAtLastError(), 2);
  CODE(cudaGetLastError(), 2);
  OK(cudaGetLastError());
  CHECK(!std::strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));
  cudaPointerAttributes attributes;
  OK(cudaPointerGetAttributes(&attributes, p));
  CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
  OK(cudaPointerGetAttributes(&attributes, &count));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  std::thread([&] {
    OK(cudaSetDevice(1));
    void* r;
    OK(cudaMalloc(&r, 256));
    OK(cudaPointerGetAttributes(&attributes, r));
    CHECK(attributes.device == 1);
    OK(cudaMemcpy(r, p, 256, cudaMemcpyDefault));
    OK(cudaFree(r));
  }).join();
  OK(cudaMemset(p, 3, 100));
  unsigned char bytes[100];
  OK(cudaMemcpy(bytes, p, 100, cudaMemcpyDeviceToHost));
  CHECK(bytes[99] == 3);
  OK(cudaMallocAsync(&q, 1000, nullptr));
  OK(cudaFree(q));
  OK(cudaMallocManaged(&q, 1000, cudaMemAttachGlobal));
  OK(cudaPointerGetAttributes(&attributes, q));
  CHECK(attributes.type == cudaMemoryTypeManaged);
  OK(cudaFree(q));
  OK(cudaMallocPitch(&q, &pitch, 100, 3));
  CHECK(pitch == 512);
  OK(cudaFreeAsync(q, nullptr));
  cudaStream_t s;
  cudaGraph_t graph;
  OK(cudaStreamCreate(&s));
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  CODE(cudaMalloc(&q, 16), 900);
  CODE(cudaStreamEndCapture(s, &graph), 901);
  cudaIpcMemHandle_t handle;
  OK(cudaIpcGetMemHandle(&handle, p));
  CODE(cudaIpcOpenMemHandle(&q, handle, cudaIpcMemLazyEnablePeerAccess), 201);
  OK(cudaDeviceEnablePeerAccess(1, 0));
  CODE(cudaDeviceEnablePeerAccess(1, 0), 704);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &entry, 12000, 0, &found));
  CHECK(entry == dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemAlloc_v2"));
  OK(cudaFree(p));
  CODE(cudaFree(p), 1);
  return report("selftest_runtime");
}
