// The driver as these checks reach it: libcuda.so.1 opened at run time, every function resolved by
// cuGetProcAddress_v2 as a runtime does, or by dlsym with its exact name (--via=dlsym).
// `cu.cuMemAlloc(...)` is the version that driver.def names: cuda.h's macros do the rest.
#pragma once

#include <cuda.h>

namespace contract {

// Signatures that CUDA 13's cuda.h no longer declares.
using CtxCreateV2 = CUresult (*)(CUcontext*, unsigned, CUdevice);
using GetProcAddressV1 = CUresult (*)(const char*, void**, int, cuuint64_t);
using PrefetchV1 = CUresult (*)(CUdeviceptr, size_t, CUdevice, CUstream);
using AdviseV1 = CUresult (*)(CUdeviceptr, size_t, CUmem_advise, CUdevice);
using CtxCall = CUresult (*)(CUcontext);
using CtxOut = CUresult (*)(CUcontext*);
using CtxGetDevice = CUresult (*)(CUdevice*);
using CtxSynchronize = CUresult (*)();
// CUDA 12.8 to 12.9, and what CUDA 13 made of it.
using MemcpyBatchV1 = CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*,
                                   size_t*, size_t, size_t*, CUstream);
using MemcpyBatchV2 = CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*,
                                   size_t*, size_t, CUstream);
using Memcpy3DBatchV1 = CUresult (*)(size_t, CUDA_MEMCPY3D_BATCH_OP*, size_t*, unsigned long long,
                                     CUstream);
using Memcpy3DBatchV2 = CUresult (*)(size_t, CUDA_MEMCPY3D_BATCH_OP*, unsigned long long, CUstream);

struct Driver {
#define CONTRACT_FUNCTION(member, type, name, version, flags) type member = nullptr;
#include "driver.def"
#include "driver_newer.def"
#undef CONTRACT_FUNCTION
};

extern Driver cu;

void* driver_library();  // the dlopen handle, or null

// Fills `cu`. Returns what went wrong, or nullptr.
const char* resolve_driver(bool by_dlsym);

// What cuGetProcAddress_v2 and dlsym say of one name; null when absent.
void* by_version(const char* name, int version, cuuint64_t flags = 0);
void* by_name(const char* abi_name);

}  // namespace contract
