// cuMemAlloc, cuMemFree and their kin, in the 64-bit ABI.
#include "driver/call.h"

namespace {

using namespace sim;

std::shared_ptr<Block> block_at_base(Address address) {
  const auto it = state().blocks.find(address);
  return it == state().blocks.end() ? nullptr : it->second;
}

bool freed_by_cuMemFree(const Block& block) {
  return block.kind == BlockKind::native || block.kind == BlockKind::managed ||
         block.kind == BlockKind::pool;
}

}  // namespace

KVSIM_API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  Call call({"cuMemAlloc_v2"});
  call.args("bytes=%zu", bytes);
  return call.run(kContext | kUnsafe, [&](Lock&) {
    if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    const auto block = allocate_native(*current_context(&why), bytes, BlockKind::native);
    if (block == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = block->base;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                                      unsigned element) {
  Call call({"cuMemAllocPitch_v2"});
  call.args("width=%zu height=%zu element=%u", width, height, element);
  return call.run(kContext | kUnsafe, [&](Lock&) {
    if (out == nullptr || pitch == nullptr || width == 0 || height == 0)
      return CUDA_ERROR_INVALID_VALUE;
    if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t row = round_up(width, kSmall);
    if (row < width || height > ~std::size_t{0} / row) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult why = CUDA_SUCCESS;
    const auto block = allocate_native(*current_context(&why), row * height, BlockKind::native);
    if (block == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = block->base;
    *pitch = row;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemFree_v2(CUdeviceptr address) {
  Call call({"cuMemFree_v2"});
  call.args("ptr=0x%llx", address);
  return call.run(kInit | kUnsafe, [&](Lock& lock) {
    // No context is fine; a current one that is dead or destroyed is not.
    CUresult why = CUDA_SUCCESS;
    if (current_context(&why) == nullptr && why != CUDA_ERROR_INVALID_CONTEXT) return why;
    if (address == 0) return CUDA_SUCCESS;
    auto block = block_at_base(address);
    if (block == nullptr || !freed_by_cuMemFree(*block)) return CUDA_ERROR_INVALID_VALUE;
    Context* owner = block->owner;
    if (owner->dead != CUDA_SUCCESS) return owner->dead;
    wait_context(lock, *owner);  // all work of the owner, on every stream; no other context's
    if (owner->dead != CUDA_SUCCESS) return owner->dead;
    block = block_at_base(address);
    if (block == nullptr) return CUDA_ERROR_INVALID_VALUE;
    check_in_flight(block->base, block->bytes, "free");
    drop_block(block);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  Call call({"cuMemGetInfo_v2"});
  return call.run(kContext, [&](Lock&) {
    CUresult why = CUDA_SUCCESS;
    const int ordinal = current_context(&why)->device;
    const Device& device = state().devices[static_cast<std::size_t>(ordinal)];
    const std::size_t used = device.used + managed_on_device(ordinal);
    if (free != nullptr) *free = used < device.memory ? device.memory - used : 0;
    if (total != nullptr) *total = device.memory;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  Call call({"cuMemGetAddressRange_v2"});
  call.args("ptr=0x%llx", address);
  return call.run(kContext, [&](Lock&) {
    if (const auto block = find_block(address)) {
      if (base != nullptr) *base = block->base;
      if (size != nullptr) *size = block->bytes;
      return CUDA_SUCCESS;
    }
    const Mapping* mapping = find_mapping(address);
    if (mapping == nullptr) return CUDA_ERROR_NOT_FOUND;
    // Memory in a host NUMA node: the right size, but base 0.
    const bool host = mapping->handle->backing->device == kHostMemory;
    if (base != nullptr) *base = host ? 0 : mapping->base;
    if (size != nullptr) *size = mapping->size;
    return CUDA_SUCCESS;
  });
}
