// cuMemcpyBatchAsync and cuMemcpy3DBatchAsync: copies in any order as one step of a stream. The
// forms of CUDA 12.8 also say which copy was at fault. All copies are checked before the first is
// made.
#include "driver/transfer.h"

namespace {

using namespace sim;

constexpr std::size_t kNone = ~std::size_t{0};

bool valid(CUmemcpySrcAccessOrder order) {
  return order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
         order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
         order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

bool is_managed(Address address) {
  const auto block = find_block(address);
  return block != nullptr && block->kind == BlockKind::managed;
}

// `bad`: the first copy that the arguments already show to be wrong.
CUresult batch(Api api, const std::vector<Copy>& copies, std::size_t bad, bool wait,
               std::size_t* failed, CUstream handle) {
  Call call(api);
  call.args("count=%zu stream=%p", copies.size(), static_cast<void*>(handle));
  return call.run(kInit, [&](Lock& lock) {
    const auto refuse = [&](std::size_t index) {
      if (failed != nullptr) *failed = index;
      return CUDA_ERROR_INVALID_VALUE;
    };
    if (handle == nullptr || handle == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_VALUE;
    // It names no copy, unless one is at fault (measured, driver 580, H200).
    if (failed != nullptr) *failed = kNone;
    if (copies.empty()) return refuse(kNone);
    if (bad != kNone) return refuse(bad);
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, handle, &why);
    if (stream == nullptr) return why;
    if (stream->capture != nullptr) {
      stream->capture->dead = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    std::vector<Range> ranges;
    bool pageable = false;
    bool managed = false;
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const Copy& what = copies[i];
      if (what.to.span() == 0 || !copy_fits(what, *stream->context)) return refuse(i);
      ranges.push_back({what.to.base, what.to.span()});
      ranges.push_back({what.from.base, what.from.span()});
      pageable = pageable || is_plain_host(what.to.base) || is_plain_host(what.from.base);
      managed = managed || is_managed(what.to.base) || is_managed(what.from.base);
    }
    const CUresult result = submit(
        lock, *stream, CU_GRAPH_NODE_TYPE_MEMCPY, ranges,
        [copies](Context& context) {
          for (const Copy& what : copies) {
            const CUresult code = do_copy(what, context);
            if (code != CUDA_SUCCESS) return code;
          }
          return CUDA_SUCCESS;
        },
        true);
    if (result != CUDA_SUCCESS) return result;
    // Measured (driver 580, H200): with managed memory in the batch the call returns before the
    // source was read, whatever access order was asked for.
    if ((wait || pageable) && !managed) wait_work(lock, stream->last);
    return stream->context->dead;
  });
}

CUresult linear(Api api, CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                CUmemcpyAttributes* attributes, size_t* firsts, size_t kinds, size_t* failed,
                CUstream stream) {
  std::vector<Copy> copies;
  bool wait = false;
  if (to == nullptr || from == nullptr || sizes == nullptr || attributes == nullptr ||
      firsts == nullptr || kinds == 0 || kinds > count || firsts[0] != 0)
    return batch(api, {}, kNone, false, failed, stream);
  for (std::size_t i = 0; i < kinds; ++i) {
    const bool order = i == 0 || (firsts[i] > firsts[i - 1] && firsts[i] < count);
    if (!order || !valid(attributes[i].srcAccessOrder))
      return batch(api, {}, kNone, false, failed, stream);
    wait |= attributes[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t n = sizes[i];
    copies.push_back({{to[i], n, n}, {from[i], n, n}, Side::any, Side::any, false});
  }
  return batch(api, copies, kNone, wait, failed, stream);
}

CUresult linear_v2(Api api, CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                   CUmemcpyAttributes* attributes, size_t* firsts, size_t kinds, CUstream stream) {
  return linear(api, to, from, sizes, count, attributes, firsts, kinds, nullptr, stream);
}

bool box_side(const CUmemcpy3DOperand& operand, const CUextent3D& extent, Rect* rect) {
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return false;
  const auto& p = operand.op.ptr;
  if ((p.rowLength != 0 && p.rowLength < extent.width) ||
      (p.layerHeight != 0 && p.layerHeight < extent.height))
    return false;
  const std::size_t pitch = p.rowLength != 0 ? p.rowLength : extent.width;
  const std::size_t rows = p.layerHeight != 0 ? p.layerHeight : extent.height;
  *rect = {p.ptr, pitch, extent.width, extent.height, pitch * rows, extent.depth};
  return true;
}

CUresult boxes(Api api, size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed,
               unsigned long long flags, CUstream stream) {
  std::vector<Copy> copies;
  bool wait = false;
  std::size_t bad = kNone;
  if (ops == nullptr || flags != 0) return batch(api, {}, kNone, false, failed, stream);
  for (std::size_t i = 0; i < count; ++i) {
    Copy what;
    const bool good = box_side(ops[i].dst, ops[i].extent, &what.to) &&
                      box_side(ops[i].src, ops[i].extent, &what.from) &&
                      valid(ops[i].srcAccessOrder);
    if (!good && bad == kNone) bad = i;
    wait |= ops[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    copies.push_back(what);
  }
  const CUresult code = batch(api, copies, bad, wait, failed, stream);
  // Of boxes past the end the driver names none (measured, driver 580).
  if (code == CUDA_ERROR_INVALID_VALUE && bad == kNone && failed != nullptr) *failed = kNone;
  return code;
}

CUresult boxes_v2(Api api, size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags,
                  CUstream stream) {
  return boxes(api, count, ops, nullptr, flags, stream);
}

}  // namespace

KVSIM_TWIN(cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz, linear,
           (CUdeviceptr * d, CUdeviceptr* s, size_t* n, size_t count, CUmemcpyAttributes* a,
            size_t* i, size_t kinds, size_t* failed, CUstream h),
           (d, s, n, count, a, i, kinds, failed, h))
KVSIM_TWIN(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz, linear_v2,
           (CUdeviceptr * d, CUdeviceptr* s, size_t* n, size_t count, CUmemcpyAttributes* a,
            size_t* i, size_t kinds, CUstream h),
           (d, s, n, count, a, i, kinds, h))
KVSIM_TWIN(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz, boxes,
           (size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed, unsigned long long flags,
            CUstream h),
           (count, ops, failed, flags, h))
KVSIM_TWIN(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz, boxes_v2,
           (size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags, CUstream h),
           (count, ops, flags, h))
