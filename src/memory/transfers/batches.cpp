// See batches.h.
#include "memory/transfers/batches.h"

#include "driver/capture.h"
#include "memory/blocks/registry.h"

namespace kvshim::copies {

// Headers of CUDA 12.0 to 12.7 do not say what is in a batch: the driver alone decides.
#if CUDA_VERSION < 12080

Verdict judge(const LinearBatch&, std::size_t*) noexcept {
  return Verdict::forward;
}
Verdict judge(const BoxBatch&, std::size_t*) noexcept {
  return Verdict::forward;
}
bool one_by_one(const LinearBatch&, std::size_t*, CUresult*) noexcept {
  return false;
}
bool one_by_one(const BoxBatch&, std::size_t*, CUresult*) noexcept {
  return false;
}
CUresult read_in_call(const LinearBatch&) noexcept {
  return CUDA_SUCCESS;
}
CUresult read_in_call(const BoxBatch&) noexcept {
  return CUDA_SUCCESS;
}

#else

namespace {

// A box of a batch in the form that a single copy has.
struct BatchBox {
  CUDA_MEMCPY3D what{};
  bool linear = false;  // no CUDA array in it

  explicit BatchBox(const CUDA_MEMCPY3D_BATCH_OP& op) noexcept {
    linear = op.src.type == CU_MEMCPY_OPERAND_TYPE_POINTER &&
             op.dst.type == CU_MEMCPY_OPERAND_TYPE_POINTER;
    if (!linear) return;
    const auto& from = op.src.op.ptr;
    const auto& to = op.dst.op.ptr;
    what.srcMemoryType = what.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    what.srcDevice = from.ptr;
    what.dstDevice = to.ptr;
    what.WidthInBytes = op.extent.width;
    what.Height = op.extent.height;
    what.Depth = op.extent.depth;
    // Zero means packed. Elements of copies between pointers are bytes.
    what.srcPitch = from.rowLength != 0 ? from.rowLength : op.extent.width;
    what.dstPitch = to.rowLength != 0 ? to.rowLength : op.extent.width;
    what.srcHeight = from.layerHeight != 0 ? from.layerHeight : op.extent.height;
    what.dstHeight = to.layerHeight != 0 ? to.layerHeight : op.extent.height;
  }
};

CUresult plainly(const Linear& copy) noexcept {
  return driver::cuMemcpyAsync(copy.to, copy.from, copy.bytes, copy.stream);
}
CUresult plainly(const Box& copy) noexcept {
  return driver::cuMemcpy3DAsync_v2(copy.what, copy.stream);
}

CUresult single(const auto& copy) noexcept {
  CUresult code = plainly(copy);
  while (code == CUDA_ERROR_INVALID_VALUE && retry(copy, &code) == Retry::again) {
    code = plainly(copy);
  }
  return code;
}

// Calls `use` with copy `index` of the batch and gives its answer back.
auto with(const LinearBatch& batch, std::size_t index, auto use) noexcept {
  return use(Linear{batch.to[index], batch.from[index], batch.bytes[index], batch.stream, false});
}
auto with(const BoxBatch& batch, std::size_t index, auto use) noexcept {
  const BatchBox box(batch.boxes[index]);
  return use(Box{&box.what, batch.stream, false});
}

bool complete(const LinearBatch& batch) noexcept {
  return batch.to != nullptr && batch.from != nullptr && batch.bytes != nullptr;
}
bool complete(const BoxBatch& batch) noexcept {
  return batch.boxes != nullptr;
}

bool is_order(CUmemcpySrcAccessOrder order) noexcept {
  return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

// False where the driver refuses for these alone. *wait: sources must be read before the return.
bool understood(const LinearBatch& batch, bool* wait) noexcept {
  if (batch.stream == CU_STREAM_LEGACY) return false;  // it takes no batch
  if (batch.attributes == nullptr || batch.first == nullptr || batch.kinds == 0 ||
      batch.kinds > batch.count || batch.first[0] != 0) {
    return false;
  }
  for (std::size_t index = 0; index < batch.kinds; ++index) {
    if (index > 0 &&
        (batch.first[index] <= batch.first[index - 1] || batch.first[index] >= batch.count)) {
      return false;
    }
    const CUmemcpySrcAccessOrder order = batch.attributes[index].srcAccessOrder;
    if (!is_order(order)) return false;
    if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) *wait = true;
  }
  for (std::size_t index = 0; index < batch.count; ++index) {
    if (batch.bytes[index] == 0) return false;
  }
  return true;
}
bool understood(const BoxBatch& batch, bool* wait) noexcept {
  if (batch.stream == CU_STREAM_LEGACY || batch.flags != 0) return false;
  for (std::size_t index = 0; index < batch.count; ++index) {
    const CUmemcpySrcAccessOrder order = batch.boxes[index].srcAccessOrder;
    const BatchBox box(batch.boxes[index]);
    const bool empty = box.what.WidthInBytes == 0 || box.what.Height == 0 || box.what.Depth == 0;
    if (!is_order(order) || !box.linear || empty) return false;
    if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) *wait = true;
  }
  return true;
}

Verdict judge_all(const auto& batch, std::size_t* which) noexcept {
  Verdict worst = Verdict::forward;
  if (!complete(batch)) return worst;
  for (std::size_t index = 0; index < batch.count; ++index) {
    const Verdict verdict = with(batch, index, [](const auto& copy) { return judge(copy); });
    if (verdict > worst) worst = verdict;
    if (verdict != Verdict::refused) continue;
    // What is wrong with the batch as a whole comes first, and the driver says what.
    bool wait = false;
    if (!understood(batch, &wait)) return Verdict::forward;
    *which = index;
    break;
  }
  return worst;
}

CUresult wait_for(CUstream stream) noexcept {
  const driver::RelaxedCapture relaxed;
  return driver::cuStreamSynchronize(stream);
}

bool is_managed(CUdeviceptr address) noexcept {
  Block block;
  return registry::find(address, &block) == Place::block && block.kind == Kind::managed;
}
bool has_managed(const LinearBatch& batch, std::size_t index) noexcept {
  return is_managed(batch.to[index]) || is_managed(batch.from[index]);
}
bool has_managed(const BoxBatch& batch, std::size_t index) noexcept {
  const BatchBox box(batch.boxes[index]);
  return box.linear && (is_managed(box.what.dstDevice) || is_managed(box.what.srcDevice));
}

CUresult wait_where_managed(const auto& batch) noexcept {
  bool wait = false;
  if (!complete(batch) || !understood(batch, &wait) || !wait) return CUDA_SUCCESS;
  for (std::size_t index = 0; index < batch.count; ++index) {
    if (has_managed(batch, index)) return wait_for(batch.stream);
  }
  return CUDA_SUCCESS;
}

bool make_all(const auto& batch, std::size_t* which, CUresult* result) noexcept {
  bool crossing = false;
  bool wait = false;
  for (std::size_t index = 0; index < batch.count && !crossing; ++index) {
    crossing = with(batch, index, [](const auto& copy) { return crosses(copy); });
  }
  if (!crossing || !understood(batch, &wait)) return false;
  *result = CUDA_SUCCESS;
  for (std::size_t index = 0; index < batch.count && *result == CUDA_SUCCESS; ++index) {
    *which = index;
    *result = with(batch, index, [](const auto& copy) { return single(copy); });
  }
  if (wait && *result == CUDA_SUCCESS) *result = wait_for(batch.stream);
  return true;
}

}  // namespace

Verdict judge(const LinearBatch& batch, std::size_t* which) noexcept {
  return judge_all(batch, which);
}
Verdict judge(const BoxBatch& batch, std::size_t* which) noexcept {
  const Verdict verdict = judge_all(batch, which);
  *which = kNoCopy;
  return verdict;
}
bool one_by_one(const LinearBatch& batch, std::size_t* which, CUresult* result) noexcept {
  return make_all(batch, which, result);
}
bool one_by_one(const BoxBatch& batch, std::size_t* which, CUresult* result) noexcept {
  return make_all(batch, which, result);
}
CUresult read_in_call(const LinearBatch& batch) noexcept {
  return wait_where_managed(batch);
}
CUresult read_in_call(const BoxBatch& batch) noexcept {
  return wait_where_managed(batch);
}

#endif

}  // namespace kvshim::copies
