// All forms of cuMemset: {D8, D16, D32} x {1D, 2D} x {blocking, Async} x {legacy, per-thread}.
// One engine call says what they mean; what is not for the engine goes to the exact twin.
#include "hooks/hook.h"

using namespace kvshim;
using driver::StreamZero;

namespace {

template <typename Real>
CUresult set(const engine::Memset& request, Real real) {
  const Reentry guard;
  CUresult result = CUDA_SUCCESS;
  if (pass_through(guard)) return real();
  if (engine::memset(request, &result)) return result;
  return real();
}

template <typename Value>
engine::Memset request(CUdeviceptr dst, std::size_t pitch, Value value, std::size_t width,
                       std::size_t height, CUstream stream, StreamZero zero, bool wait) {
  return {dst, pitch, width, height, {value, sizeof(Value)}, driver::resolve_stream(stream, zero),
          wait};
}

}  // namespace

// The eight forms of one element type.
#define KVSHIM_MEMSETS(D, D2, Value)                                                               \
  KVSHIM_HOOK_DEF CUresult cuMemset##D##_v2(CUdeviceptr dst, Value value, std::size_t count) {     \
    return set(request(dst, 0, value, count, 1, nullptr, StreamZero::legacy, true),                \
               [&] { return real::cuMemset##D##_v2(dst, value, count); });                         \
  }                                                                                                \
  KVSHIM_HOOK_DEF CUresult cuMemset##D##_v2_ptds(CUdeviceptr dst, Value value,                     \
                                                 std::size_t count) {                              \
    return set(request(dst, 0, value, count, 1, nullptr, StreamZero::per_thread, true),            \
               [&] { return real::cuMemset##D##_v2_ptds(dst, value, count); });                    \
  }                                                                                                \
  KVSHIM_HOOK_DEF CUresult cuMemset##D##Async(CUdeviceptr dst, Value value, std::size_t count,     \
                                              CUstream stream) {                                   \
    return set(request(dst, 0, value, count, 1, stream, StreamZero::legacy, false),                \
               [&] { return real::cuMemset##D##Async(dst, value, count, stream); });               \
  }                                                                                                \
  KVSHIM_HOOK_DEF CUresult cuMemset##D##Async_ptsz(CUdeviceptr dst, Value value,                   \
                                                   std::size_t count, CUstream stream) {           \
    return set(request(dst, 0, value, count, 1, stream, StreamZero::per_thread, false),            \
               [&] { return real::cuMemset##D##Async_ptsz(dst, value, count, stream); });          \
  }                                                                                                \
  KVSHIM_HOOK_DEF CUresult cuMemset##D2##_v2(CUdeviceptr dst, std::size_t pitch, Value value,      \
                                             std::size_t width, std::size_t height) {              \
    return set(request(dst, pitch, value, width, height, nullptr, StreamZero::legacy, true),       \
               [&] { return real::cuMemset##D2##_v2(dst, pitch, value, width, height); });         \
  }                                                                                                \
  KVSHIM_HOOK_DEF CUresult cuMemset##D2##_v2_ptds(CUdeviceptr dst, std::size_t pitch, Value value, \
                                                  std::size_t width, std::size_t height) {         \
    return set(request(dst, pitch, value, width, height, nullptr, StreamZero::per_thread, true),   \
               [&] { return real::cuMemset##D2##_v2_ptds(dst, pitch, value, width, height); });    \
  }                                                                                                \
  KVSHIM_HOOK_DEF CUresult cuMemset##D2##Async(CUdeviceptr dst, std::size_t pitch, Value value,    \
                                               std::size_t width, std::size_t height,              \
                                               CUstream stream) {                                  \
    return set(request(dst, pitch, value, width, height, stream, StreamZero::legacy, false), [&] { \
      return real::cuMemset##D2##Async(dst, pitch, value, width, height, stream);                  \
    });                                                                                            \
  }                                                                                                \
  KVSHIM_HOOK_DEF CUresult cuMemset##D2##Async_ptsz(CUdeviceptr dst, std::size_t pitch,            \
                                                    Value value, std::size_t width,                \
                                                    std::size_t height, CUstream stream) {         \
    return set(                                                                                    \
        request(dst, pitch, value, width, height, stream, StreamZero::per_thread, false),          \
        [&] { return real::cuMemset##D2##Async_ptsz(dst, pitch, value, width, height, stream); }); \
  }

KVSHIM_MEMSETS(D8, D2D8, unsigned char)
KVSHIM_MEMSETS(D16, D2D16, unsigned short)
KVSHIM_MEMSETS(D32, D2D32, unsigned)
