// The driver functions that the engine itself calls. Exact ABI names, so that a header's macros can
// never choose another version than the one whose behaviour was measured (docs/driver-notes.md).
#pragma once

#include <cstddef>

#include "driver/function.h"
#include "driver/newer_types.h"

namespace kvshim::driver {

#define KVSHIM_DRIVER_FUNCTION(name, ...)                 \
  inline constinit Function<CUresult(__VA_ARGS__)> name { \
#name                                                 \
  }

KVSHIM_DRIVER_FUNCTION(cuCtxSynchronize);
KVSHIM_DRIVER_FUNCTION(cuCtxDisablePeerAccess, CUcontext);
KVSHIM_DRIVER_FUNCTION(cuCtxFromGreenCtx, CUcontext*, CUgreenCtx);
KVSHIM_DRIVER_FUNCTION(cuCtxGetCurrent, CUcontext*);
KVSHIM_DRIVER_FUNCTION(cuCtxGetDevice, CUdevice*);
KVSHIM_DRIVER_FUNCTION(cuCtxGetId, CUcontext, unsigned long long*);
KVSHIM_DRIVER_FUNCTION(cuCtxSetCurrent, CUcontext);
KVSHIM_DRIVER_FUNCTION(cuCtxPushCurrent_v2, CUcontext);
KVSHIM_DRIVER_FUNCTION(cuCtxPopCurrent_v2, CUcontext*);
KVSHIM_DRIVER_FUNCTION(cuInit, unsigned);
KVSHIM_DRIVER_FUNCTION(cuDeviceCanAccessPeer, int*, CUdevice, CUdevice);
KVSHIM_DRIVER_FUNCTION(cuDeviceGetByPCIBusId, CUdevice*, const char*);
KVSHIM_DRIVER_FUNCTION(cuDeviceGetCount, int*);
KVSHIM_DRIVER_FUNCTION(cuDeviceGetAttribute, int*, CUdevice_attribute, CUdevice);
KVSHIM_DRIVER_FUNCTION(cuDevicePrimaryCtxGetState, CUdevice, unsigned*, int*);
KVSHIM_DRIVER_FUNCTION(cuDevicePrimaryCtxRelease_v2, CUdevice);
KVSHIM_DRIVER_FUNCTION(cuDevicePrimaryCtxRetain, CUcontext*, CUdevice);
KVSHIM_DRIVER_FUNCTION(cuDeviceTotalMem_v2, std::size_t*, CUdevice);
KVSHIM_DRIVER_FUNCTION(cuDeviceGetPCIBusId, char*, int, CUdevice);
KVSHIM_DRIVER_FUNCTION(cuEventCreate, CUevent*, unsigned);
KVSHIM_DRIVER_FUNCTION(cuEventDestroy_v2, CUevent);
KVSHIM_DRIVER_FUNCTION(cuEventQuery, CUevent);
KVSHIM_DRIVER_FUNCTION(cuEventRecord, CUevent, CUstream);
KVSHIM_DRIVER_FUNCTION(cuGetErrorName, CUresult, const char**);
KVSHIM_DRIVER_FUNCTION(cuLaunchHostFunc, CUstream, CUhostFn, void*);
KVSHIM_DRIVER_FUNCTION(cuMemAlloc_v2, CUdeviceptr*, std::size_t);
KVSHIM_DRIVER_FUNCTION(cuMemFree_v2, CUdeviceptr);
KVSHIM_DRIVER_FUNCTION(cuMemFreeAsync, CUdeviceptr, CUstream);
KVSHIM_DRIVER_FUNCTION(cuMemGetInfo_v2, std::size_t*, std::size_t*);
KVSHIM_DRIVER_FUNCTION(cuMemAllocManaged, CUdeviceptr*, std::size_t, unsigned);
KVSHIM_DRIVER_FUNCTION(cuMemGetAllocationGranularity, std::size_t*, const CUmemAllocationProp*,
                       CUmemAllocationGranularity_flags);
KVSHIM_DRIVER_FUNCTION(cuMemCreate, CUmemGenericAllocationHandle*, std::size_t,
                       const CUmemAllocationProp*, unsigned long long);
KVSHIM_DRIVER_FUNCTION(cuMemRelease, CUmemGenericAllocationHandle);
KVSHIM_DRIVER_FUNCTION(cuMemAddressReserve, CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr,
                       unsigned long long);
KVSHIM_DRIVER_FUNCTION(cuMemAddressFree, CUdeviceptr, std::size_t);
KVSHIM_DRIVER_FUNCTION(cuMemMap, CUdeviceptr, std::size_t, std::size_t,
                       CUmemGenericAllocationHandle, unsigned long long);
KVSHIM_DRIVER_FUNCTION(cuMemUnmap, CUdeviceptr, std::size_t);
KVSHIM_DRIVER_FUNCTION(cuMemSetAccess, CUdeviceptr, std::size_t, const CUmemAccessDesc*,
                       std::size_t);
KVSHIM_DRIVER_FUNCTION(cuMemExportToShareableHandle, void*, CUmemGenericAllocationHandle,
                       CUmemAllocationHandleType, unsigned long long);
KVSHIM_DRIVER_FUNCTION(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle*, void*,
                       CUmemAllocationHandleType);
KVSHIM_DRIVER_FUNCTION(cuMemGetAllocationPropertiesFromHandle, CUmemAllocationProp*,
                       CUmemGenericAllocationHandle);
KVSHIM_DRIVER_FUNCTION(cuMemsetD8Async, CUdeviceptr, unsigned char, std::size_t, CUstream);
KVSHIM_DRIVER_FUNCTION(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, std::size_t, CUstream);
KVSHIM_DRIVER_FUNCTION(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void*, std::size_t, CUstream);
KVSHIM_DRIVER_FUNCTION(cuMemcpyDtoHAsync_v2, void*, CUdeviceptr, std::size_t, CUstream);
KVSHIM_DRIVER_FUNCTION(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, std::size_t, CUstream);
KVSHIM_DRIVER_FUNCTION(cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D*, CUstream);
KVSHIM_DRIVER_FUNCTION(cuMemcpy3DAsync_v2, const CUDA_MEMCPY3D*, CUstream);
KVSHIM_DRIVER_FUNCTION(cuMemcpy3DPeerAsync, const CUDA_MEMCPY3D_PEER*, CUstream);
KVSHIM_DRIVER_FUNCTION(cuMemcpyPeerAsync, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext,
                       std::size_t, CUstream);
KVSHIM_DRIVER_FUNCTION(cuPointerGetAttribute, void*, CUpointer_attribute, CUdeviceptr);
KVSHIM_DRIVER_FUNCTION(cuStreamCreate, CUstream*, unsigned);
KVSHIM_DRIVER_FUNCTION(cuStreamDestroy_v2, CUstream);
KVSHIM_DRIVER_FUNCTION(cuStreamGetCtx, CUstream, CUcontext*);
KVSHIM_DRIVER_FUNCTION(cuStreamIsCapturing, CUstream, CUstreamCaptureStatus*);
KVSHIM_DRIVER_FUNCTION(cuStreamQuery, CUstream);
KVSHIM_DRIVER_FUNCTION(cuStreamSynchronize, CUstream);
KVSHIM_DRIVER_FUNCTION(cuStreamWaitEvent, CUstream, CUevent, unsigned);
KVSHIM_DRIVER_FUNCTION(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode*);

#undef KVSHIM_DRIVER_FUNCTION

// What a stream argument means: the per-thread twins (`_ptds`, `_ptsz`) read 0 as the calling
// thread's stream, the others as the legacy one. The result names it explicitly for every function.
enum class StreamZero : bool { legacy, per_thread };
inline CUstream resolve_stream(CUstream stream, StreamZero zero) noexcept {
  if (stream != nullptr) return stream;
  return zero == StreamZero::per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

}  // namespace kvshim::driver
