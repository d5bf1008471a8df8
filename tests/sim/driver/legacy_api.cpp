// The unversioned 32-bit ABI. These symbols still exist beside the _v2 ones and take 32-bit device
// pointers and sizes; a device pointer of a 64-bit process does not fit, so allocation fails.
#include <algorithm>

#include "driver/transfer.h"

namespace {

using namespace sim;

using Address32 = unsigned int;

CUresult refuse(const char* name, unsigned needs, const void* out, size_t size) {
  Call call({name});
  call.args("bytes=%zu abi=32", size);
  return call.run(needs, [&](Lock&) {
    return out == nullptr || size == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
  });
}

CUresult unknown_address(const char* name, Address32 p, unsigned needs = kInit) {
  Call call({name});
  call.args("ptr=0x%x abi=32", p);
  return call.run(needs, [&](Lock&) { return p == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
}

}  // namespace

#define KVSIM_V1(name) KVSIM_SYMBOL(#name) __attribute__((visibility("default")))

CUresult v1_mem_alloc(Address32* p, unsigned bytes) KVSIM_V1(cuMemAlloc);
CUresult v1_mem_alloc(Address32* p, unsigned bytes) {
  return refuse("cuMemAlloc", kContext, p, bytes);
}
CUresult v1_mem_alloc_pitch(Address32* p, unsigned* pitch, unsigned width, unsigned height,
                            unsigned element) KVSIM_V1(cuMemAllocPitch);
CUresult v1_mem_alloc_pitch(Address32* p, unsigned*, unsigned width, unsigned height, unsigned) {
  return refuse("cuMemAllocPitch", kContext, p, std::size_t{width} * height);
}
CUresult v1_mem_free(Address32 p) KVSIM_V1(cuMemFree);
CUresult v1_mem_free(Address32 p) {
  return unknown_address("cuMemFree", p);
}

CUresult v1_mem_get_info(unsigned* free, unsigned* total) KVSIM_V1(cuMemGetInfo);
CUresult v1_mem_get_info(unsigned* free, unsigned* total) {
  Call call({"cuMemGetInfo"});
  return call.run(kContext, [&](Lock&) {
    CUresult why = CUDA_SUCCESS;
    const auto ordinal = static_cast<std::size_t>(current_context(&why)->device);
    const Device& device = state().devices[ordinal];
    const auto clamp = [](std::size_t n) {
      return static_cast<unsigned>(std::min<std::size_t>(n, ~0u));
    };
    if (free != nullptr) *free = clamp(device.memory - device.used);
    if (total != nullptr) *total = clamp(device.memory);
    return CUDA_SUCCESS;
  });
}
CUresult v1_mem_get_address_range(Address32*, unsigned*, Address32 p)
    KVSIM_V1(cuMemGetAddressRange);
CUresult v1_mem_get_address_range(Address32*, unsigned*, Address32 p) {
  return unknown_address("cuMemGetAddressRange", p | 1);
}
CUresult v1_mem_host_get_device_pointer(Address32* p, void* host, unsigned flags)
    KVSIM_V1(cuMemHostGetDevicePointer);
CUresult v1_mem_host_get_device_pointer(Address32* p, void* host, unsigned) {
  return refuse("cuMemHostGetDevicePointer", kContext, p, host != nullptr);
}
CUresult v1_device_total_mem(unsigned* bytes, CUdevice device) KVSIM_V1(cuDeviceTotalMem);
CUresult v1_device_total_mem(unsigned* bytes, CUdevice device) {
  Call call({"cuDeviceTotalMem"});
  call.args("device=%d abi=32", device);
  return call.run(kInit, [&](Lock&) {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (primary_context(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = static_cast<unsigned>(
        std::min<std::size_t>(state().devices[static_cast<std::size_t>(device)].memory, ~0u));
    return CUDA_SUCCESS;
  });
}

#define KVSIM_V1_MEMSET(bits, type)                                                   \
  CUresult v1_memset_d##bits(Address32 p, type, unsigned) KVSIM_V1(cuMemsetD##bits);  \
  CUresult v1_memset_d##bits(Address32 p, type, unsigned n) {                         \
    return unknown_address("cuMemsetD" #bits, n == 0 ? 0 : p | 1, kContext);          \
  }                                                                                   \
  CUresult v1_memset_d2d##bits(Address32 p, unsigned, type, unsigned, unsigned)       \
      KVSIM_V1(cuMemsetD2D##bits);                                                    \
  CUresult v1_memset_d2d##bits(Address32 p, unsigned, type, unsigned w, unsigned h) { \
    return unknown_address("cuMemsetD2D" #bits, w * h == 0 ? 0 : p | 1, kContext);    \
  }
KVSIM_V1_MEMSET(8, unsigned char)
KVSIM_V1_MEMSET(16, unsigned short)
KVSIM_V1_MEMSET(32, unsigned int)

CUresult v1_memcpy_to_device(Address32 to, const void*, unsigned) KVSIM_V1(cuMemcpyHtoD);
CUresult v1_memcpy_to_device(Address32 to, const void*, unsigned n) {
  return unknown_address("cuMemcpyHtoD", n == 0 ? 0 : to | 1, kContext);
}
CUresult v1_memcpy_to_host(void*, Address32 from, unsigned) KVSIM_V1(cuMemcpyDtoH);
CUresult v1_memcpy_to_host(void*, Address32 from, unsigned n) {
  return unknown_address("cuMemcpyDtoH", n == 0 ? 0 : from | 1, kContext);
}
CUresult v1_memcpy_on_device(Address32 to, Address32, unsigned) KVSIM_V1(cuMemcpyDtoD);
CUresult v1_memcpy_on_device(Address32 to, Address32, unsigned n) {
  return unknown_address("cuMemcpyDtoD", n == 0 ? 0 : to | 1, kContext);
}

CUresult v1_memcpy_to_device_async(Address32 to, const void*, unsigned, CUstream)
    KVSIM_V1(cuMemcpyHtoDAsync);
CUresult v1_memcpy_to_device_async(Address32 to, const void*, unsigned n, CUstream) {
  return unknown_address("cuMemcpyHtoDAsync", n == 0 ? 0 : to | 1, kContext);
}
CUresult v1_memcpy_to_host_async(void*, Address32 from, unsigned, CUstream)
    KVSIM_V1(cuMemcpyDtoHAsync);
CUresult v1_memcpy_to_host_async(void*, Address32 from, unsigned n, CUstream) {
  return unknown_address("cuMemcpyDtoHAsync", n == 0 ? 0 : from | 1, kContext);
}
CUresult v1_memcpy_on_device_async(Address32 to, Address32, unsigned, CUstream)
    KVSIM_V1(cuMemcpyDtoDAsync);
CUresult v1_memcpy_on_device_async(Address32 to, Address32, unsigned n, CUstream) {
  return unknown_address("cuMemcpyDtoDAsync", n == 0 ? 0 : to | 1, kContext);
}
