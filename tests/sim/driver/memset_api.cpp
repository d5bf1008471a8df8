// cuMemset*, every form and twin. The v1 forms are in legacy_api.cpp.
#include "driver/transfer.h"

namespace {

using namespace sim;

template <unsigned kUnit>
CUresult line(Api api, Address p, std::uint32_t value, size_t n) {
  return fill(api, {p, n * kUnit, n * kUnit, 1}, value, kUnit, nullptr, false);
}
template <unsigned kUnit>
CUresult line_async(Api api, Address p, std::uint32_t value, size_t n, CUstream s) {
  return fill(api, {p, n * kUnit, n * kUnit, 1}, value, kUnit, s, true);
}
template <unsigned kUnit>
CUresult rect(Api api, Address p, size_t pitch, std::uint32_t value, size_t width, size_t height) {
  return fill(api, {p, pitch, width * kUnit, height}, value, kUnit, nullptr, false);
}
template <unsigned kUnit>
CUresult rect_async(Api api, Address p, size_t pitch, std::uint32_t value, size_t width,
                    size_t height, CUstream s) {
  return fill(api, {p, pitch, width * kUnit, height}, value, kUnit, s, true);
}

}  // namespace

#define KVSIM_MEMSET(bits, type)                                                             \
  KVSIM_TWIN(cuMemsetD##bits##_v2, cuMemsetD##bits##_v2_ptds, line<bits / 8>,                \
             (CUdeviceptr p, type v, size_t n), (p, v, n))                                   \
  KVSIM_TWIN(cuMemsetD##bits##Async, cuMemsetD##bits##Async_ptsz, line_async<bits / 8>,      \
             (CUdeviceptr p, type v, size_t n, CUstream s), (p, v, n, s))                    \
  KVSIM_TWIN(cuMemsetD2D##bits##_v2, cuMemsetD2D##bits##_v2_ptds, rect<bits / 8>,            \
             (CUdeviceptr p, size_t pitch, type v, size_t w, size_t h), (p, pitch, v, w, h)) \
  KVSIM_TWIN(cuMemsetD2D##bits##Async, cuMemsetD2D##bits##Async_ptsz, rect_async<bits / 8>,  \
             (CUdeviceptr p, size_t pitch, type v, size_t w, size_t h, CUstream s),          \
             (p, pitch, v, w, h, s))

KVSIM_MEMSET(8, unsigned char)
KVSIM_MEMSET(16, unsigned short)
KVSIM_MEMSET(32, unsigned int)
