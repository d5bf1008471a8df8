// cudaMalloc and its kin, memset, memcpy, pointer attributes.
#include "cudart/runtime.h"

using cudart::address_of;
using cudart::note;

namespace {

CUdeviceptr* out(void** p) {
  return reinterpret_cast<CUdeviceptr*>(p);
}

enum class Direction { to_device, to_host, unified };
Direction direction(cudaMemcpyKind kind) {
  if (kind == cudaMemcpyHostToDevice) return Direction::to_device;
  return kind == cudaMemcpyDeviceToHost ? Direction::to_host : Direction::unified;
}

bool known(cudaMemcpyKind kind) {
  return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

}  // namespace

// 0 bytes: success, NULL, and the driver is not asked.
CUDART_API cudaError_t cudaMalloc(void** p, size_t bytes) {
  if (p == nullptr) return note(cudaErrorInvalidValue);
  if (bytes == 0) {
    *p = nullptr;
    return note(cudart::with_context());
  }
  RETURN_DRIVER(cuMemAlloc_(out(p), bytes));
}

CUDART_API cudaError_t cudaFree(void* p) {
  if (p == nullptr) return note(cudart::with_context());
  RETURN_DRIVER(cuMemFree_(address_of(p)));
}

CUDART_API cudaError_t cudaMallocPitch(void** p, size_t* pitch, size_t width, size_t height) {
  if (p == nullptr || pitch == nullptr) return note(cudaErrorInvalidValue);
  if (width == 0 || height == 0) {
    *p = nullptr;
    *pitch = 0;
    return note(cudart::with_context());
  }
  RETURN_DRIVER(cuMemAllocPitch_(out(p), pitch, width, height, 4));
}

CUDART_API cudaError_t cudaMalloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  if (pitched == nullptr) return note(cudaErrorInvalidValue);
  pitched->xsize = extent.width;
  pitched->ysize = extent.height;
  return cudaMallocPitch(&pitched->ptr, &pitched->pitch, extent.width,
                         extent.height * extent.depth);
}

CUDART_API cudaError_t cudaMallocManaged(void** p, size_t bytes, unsigned flags) {
  RETURN_DRIVER(cuMemAllocManaged_(out(p), bytes, flags));
}

CUDART_API cudaError_t cudaMallocHost(void** p, size_t bytes) {
  RETURN_DRIVER(cuMemHostAlloc_(p, bytes, 0));
}
CUDART_API cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned flags) {
  RETURN_DRIVER(cuMemHostAlloc_(p, bytes, flags));
}
CUDART_API cudaError_t cudaFreeHost(void* p) {
  if (p == nullptr) return cudaSuccess;
  RETURN_DRIVER(cuMemFreeHost_(p));
}
CUDART_API cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned flags) {
  RETURN_DRIVER(cuMemHostRegister_(p, bytes, flags));
}
CUDART_API cudaError_t cudaHostUnregister(void* p) {
  RETURN_DRIVER(cuMemHostUnregister_(p));
}

CUDART_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  RETURN_DRIVER(cuMemGetInfo_(free, total));
}

// Each function of a default stream comes twice: with the legacy stream, and with the per-thread
// one under the name that cuda_runtime_api.h gives it.
#define MEMORY_CALLS(sync_suffix, async_suffix, sync_member, async_member)                         \
  CUDART_API cudaError_t cudaMallocAsync##async_suffix(void** p, size_t bytes, cudaStream_t s) {   \
    if (p == nullptr) return note(cudaErrorInvalidValue);                                          \
    if (bytes == 0) {                                                                              \
      *p = nullptr;                                                                                \
      return note(cudart::with_context());                                                         \
    }                                                                                              \
    RETURN_DRIVER(cuMemAllocAsync_##async_member(out(p), bytes, s));                               \
  }                                                                                                \
  CUDART_API cudaError_t cudaMallocFromPoolAsync##async_suffix(                                    \
      void** p, size_t bytes, cudaMemPool_t pool, cudaStream_t s) {                                \
    RETURN_DRIVER(cuMemAllocFromPoolAsync_##async_member(out(p), bytes, pool, s));                 \
  }                                                                                                \
  CUDART_API cudaError_t cudaFreeAsync##async_suffix(void* p, cudaStream_t s) {                    \
    RETURN_DRIVER(cuMemFreeAsync_##async_member(address_of(p), s));                                \
  }                                                                                                \
  CUDART_API cudaError_t cudaMemset##sync_suffix(void* p, int value, size_t bytes) {               \
    RETURN_DRIVER(                                                                                 \
        cuMemsetD8_##sync_member(address_of(p), static_cast<unsigned char>(value), bytes));        \
  }                                                                                                \
  CUDART_API cudaError_t cudaMemsetAsync##async_suffix(void* p, int value, size_t bytes,           \
                                                       cudaStream_t s) {                           \
    RETURN_DRIVER(cuMemsetD8Async_##async_member(address_of(p), static_cast<unsigned char>(value), \
                                                 bytes, s));                                       \
  }                                                                                                \
  CUDART_API cudaError_t cudaMemcpy##sync_suffix(void* to, const void* from, size_t bytes,         \
                                                 cudaMemcpyKind kind) {                            \
    if (!known(kind)) return note(cudaErrorInvalidMemcpyDirection);                                \
    switch (direction(kind)) {                                                                     \
      case Direction::to_device:                                                                   \
        RETURN_DRIVER(cuMemcpyHtoD_##sync_member(address_of(to), from, bytes));                    \
      case Direction::to_host:                                                                     \
        RETURN_DRIVER(cuMemcpyDtoH_##sync_member(to, address_of(from), bytes));                    \
      case Direction::unified:                                                                     \
        break;                                                                                     \
    }                                                                                              \
    RETURN_DRIVER(cuMemcpy_##sync_member(address_of(to), address_of(from), bytes));                \
  }                                                                                                \
  CUDART_API cudaError_t cudaMemcpyAsync##async_suffix(void* to, const void* from, size_t bytes,   \
                                                       cudaMemcpyKind kind, cudaStream_t s) {      \
    if (!known(kind)) return note(cudaErrorInvalidMemcpyDirection);                                \
    switch (direction(kind)) {                                                                     \
      case Direction::to_device:                                                                   \
        RETURN_DRIVER(cuMemcpyHtoDAsync_##async_member(address_of(to), from, bytes, s));           \
      case Direction::to_host:                                                                     \
        RETURN_DRIVER(cuMemcpyDtoHAsync_##async_member(to, address_of(from), bytes, s));           \
      case Direction::unified:                                                                     \
        break;                                                                                     \
    }                                                                                              \
    if (kind == cudaMemcpyDeviceToDevice)                                                          \
      RETURN_DRIVER(cuMemcpyDtoDAsync_##async_member(address_of(to), address_of(from), bytes, s)); \
    RETURN_DRIVER(cuMemcpyAsync_##async_member(address_of(to), address_of(from), bytes, s));       \
  }

MEMORY_CALLS(, , , )
MEMORY_CALLS(_ptds, _ptsz, _ptds_, _ptsz_)

CUDART_API cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                                      size_t bytes) {
  if (const cudaError_t error = cudart::with_context(); error != cudaSuccess) return note(error);
  CUcontext to_context = nullptr;
  CUcontext from_context = nullptr;
  auto& d = cudart::driver();
  CUresult result = d.cuDevicePrimaryCtxRetain_(&to_context, to_device);
  if (result == CUDA_SUCCESS) result = d.cuDevicePrimaryCtxRetain_(&from_context, from_device);
  if (result != CUDA_SUCCESS) return note(result);
  return note(d.cuMemcpyPeer_(address_of(to), to_context, address_of(from), from_context, bytes));
}

CUDART_API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (const cudaError_t error = cudart::initialise(); error != cudaSuccess) return note(error);
  return note(cudart::driver().cuDeviceGetDefaultMemPool_(pool, device));
}

CUDART_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  if (attributes == nullptr) return note(cudaErrorInvalidValue);
  if (const cudaError_t error = cudart::with_context(); error != cudaSuccess) return note(error);
  unsigned type = 0;
  unsigned managed = 0;
  int ordinal = -1;
  CUdeviceptr device = 0;
  void* host = nullptr;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                 CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void* data[] = {&type, &managed, &ordinal, &device, &host};
  const CUresult result = cudart::driver().cuPointerGetAttributes_(5, asked, data, address_of(p));
  if (result != CUDA_SUCCESS) return note(result);
  *attributes = {};
  if (type == 0) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    attributes->hostPointer = const_cast<void*>(p);
    return cudaSuccess;
  }
  attributes->type = managed != 0                 ? cudaMemoryTypeManaged
                     : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                                  : cudaMemoryTypeDevice;
  attributes->device = ordinal;
  attributes->devicePointer = reinterpret_cast<void*>(device);
  attributes->hostPointer = host;
  return cudaSuccess;
}
