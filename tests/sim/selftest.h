// What the simulation's in-process tests share: a start-up, a VMM block by hand, a kernel launch.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "sim.h"

inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr size_t kPage = 2 * kMiB;
inline const char* kPtx =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry kv_spin() .visible .entry kv_fill() .visible .entry kv_add()\n"
    ".visible .entry kv_copy() .visible .entry kv_sum() .visible .entry kv_flag()\n";

inline CUcontext g_context[2];
inline CUmodule g_module;

inline kvsim_counts counts() {
  kvsim_counts c;
  kvsim_get_counts(&c);
  return c;
}

template <typename Body>
void on_thread(Body body) {
  std::thread(body).join();
}

inline double seconds_of(auto body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline CUresult launch(const char* name, CUstream stream, uint64_t a, uint64_t b = 0,
                       uint64_t c = 0) {
  CUfunction function;
  OK(cuModuleGetFunction(&function, g_module, name));
  uint32_t word = static_cast<uint32_t>(c);
  const bool narrow = !std::strcmp(name, "kv_fill") || !std::strcmp(name, "kv_add");
  void* params[] = {&a, &b, narrow ? static_cast<void*>(&word) : &c};
  return cuLaunchKernel(function, 4, 1, 1, 128, 1, 1, 0, stream, params, nullptr);
}

inline CUmemAllocationProp vmm_prop(int device = 0, unsigned handles = 1) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handles);
  return prop;
}

// One VMM block, by hand.
struct Vmm {
  CUdeviceptr base = 0;
  size_t size;
  CUmemGenericAllocationHandle handle = 0;
  explicit Vmm(size_t bytes, int device = 0, bool access = true) : size(bytes) {
    const CUmemAllocationProp prop = vmm_prop(device);
    OK(cuMemCreate(&handle, size, &prop, 0));
    OK(cuMemAddressReserve(&base, size, 0, 0, 0));
    OK(cuMemMap(base, size, 0, handle, 0));
    if (access) allow(device);
  }
  void allow(int device) {
    const CUmemAccessDesc desc{{CU_MEM_LOCATION_TYPE_DEVICE, {device}},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemSetAccess(base, size, &desc, 1));
  }
  ~Vmm() {
    OK(cuMemUnmap(base, size));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(base, size));
  }
};

// The codes before cuInit and without a context; then device 0 is current.
inline void start() {
  CUdeviceptr p = 7;
  int n = 0;
  CODE(cuMemAlloc(&p, 256), 3);
  CODE(cuDeviceGetCount(&n), 3);
  CODE(cuMemFree(0), 3);
  OK(cuDriverGetVersion(&n));
  CHECK(n == 13000);
  CODE(cuInit(1), 1);
  OK(cuInit(0));
  OK(cuDeviceGetCount(&n));
  CHECK(n == 2);
  CODE(cuMemAlloc(&p, 256), 201);
  CHECK(p == 7);
  for (int i = 1; i >= 0; --i) {
    OK(cuDevicePrimaryCtxRetain(&g_context[i], i));
    OK(cuCtxSetCurrent(g_context[i]));
  }
  OK(cuModuleLoadData(&g_module, kPtx));
}
