// Batched copies, in the forms of CUDA 12.8 (which say which copy failed) and of CUDA 13. The
// driver does the work; see memory/transfers/batches.h.
#include "memory/transfers/batches.h"
#include "hooks/hook.h"

using namespace kvshim;
using copies::BoxBatch;
using copies::LinearBatch;
using copies::Verdict;
using driver::StreamZero;

namespace {

// `failed`: where the program wants to know which copy failed, or NULL; `real` takes it. Of a batch
// that succeeds the driver names none.
template <typename Batch, typename Real>
CUresult run(const Batch& batch, std::size_t* failed, Real real) {
  const Reentry guard;
  if (pass_through(guard)) return real(failed);
  std::size_t which = 0;
  CUresult code = CUDA_ERROR_INVALID_VALUE;
  switch (copies::judge(batch, &which)) {
    case Verdict::forward:
      code = real(failed);
      return code == CUDA_SUCCESS ? copies::read_in_call(batch) : code;
    case Verdict::refused:
      break;
    case Verdict::ours:
      code = real(failed);
      if (code == CUDA_ERROR_INVALID_VALUE && copies::one_by_one(batch, &which, &code)) break;
      return code == CUDA_SUCCESS ? copies::read_in_call(batch) : code;
  }
  if (failed != nullptr) *failed = code == CUDA_SUCCESS ? copies::kNoCopy : which;
  return code;
}

}  // namespace

// Both forms for one reading of stream 0.
#define KVSHIM_BATCH(twin, zero)                                                                  \
  KVSHIM_HOOK_DEF CUresult cuMemcpyBatchAsync##twin(                                              \
      CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,                  \
      CUmemcpyAttributes* attributes, std::size_t* first, std::size_t kinds, std::size_t* failed, \
      CUstream stream) {                                                                          \
    return run(LinearBatch{to, from, bytes, count, attributes, first, kinds,                      \
                           driver::resolve_stream(stream, zero)},                                 \
               failed, [&](std::size_t* where) {                                                  \
                 return real::cuMemcpyBatchAsync##twin(to, from, bytes, count, attributes, first, \
                                                       kinds, where, stream);                     \
               });                                                                                \
  }                                                                                               \
  KVSHIM_HOOK_DEF CUresult cuMemcpyBatchAsync_v2##twin(                                           \
      CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,                  \
      CUmemcpyAttributes* attributes, std::size_t* first, std::size_t kinds, CUstream stream) {   \
    return run(LinearBatch{to, from, bytes, count, attributes, first, kinds,                      \
                           driver::resolve_stream(stream, zero)},                                 \
               nullptr, [&](std::size_t*) {                                                       \
                 return real::cuMemcpyBatchAsync_v2##twin(to, from, bytes, count, attributes,     \
                                                          first, kinds, stream);                  \
               });                                                                                \
  }                                                                                               \
  KVSHIM_HOOK_DEF CUresult cuMemcpy3DBatchAsync##twin(                                            \
      std::size_t count, CUDA_MEMCPY3D_BATCH_OP* boxes, std::size_t* failed,                      \
      unsigned long long flags, CUstream stream) {                                                \
    return run(BoxBatch{boxes, count, flags, driver::resolve_stream(stream, zero)}, failed,       \
               [&](std::size_t* where) {                                                          \
                 return real::cuMemcpy3DBatchAsync##twin(count, boxes, where, flags, stream);     \
               });                                                                                \
  }                                                                                               \
  KVSHIM_HOOK_DEF CUresult cuMemcpy3DBatchAsync_v2##twin(                                         \
      std::size_t count, CUDA_MEMCPY3D_BATCH_OP* boxes, unsigned long long flags,                 \
      CUstream stream) {                                                                          \
    return run(BoxBatch{boxes, count, flags, driver::resolve_stream(stream, zero)}, nullptr,      \
               [&](std::size_t*) {                                                                \
                 return real::cuMemcpy3DBatchAsync_v2##twin(count, boxes, flags, stream);         \
               });                                                                                \
  }

KVSHIM_BATCH(, StreamZero::legacy)
KVSHIM_BATCH(_ptsz, StreamZero::per_thread)
