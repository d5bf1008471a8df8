// What the driver says of a pointer. The rows are those measured on a real device for each kind.
#include "driver/call.h"
#include "driver/handles.h"

namespace {

using namespace sim;

// An address and what it belongs to: exactly one of the two is set.
struct Target {
  Address address = 0;
  std::shared_ptr<Block> block;
  Mapping* mapping = nullptr;
  explicit operator bool() const { return block != nullptr || mapping != nullptr; }
  bool is(BlockKind kind) const { return block != nullptr && block->kind == kind; }
  bool host_memory() const {
    return is(BlockKind::host) || is(BlockKind::registered) ||
           (mapping != nullptr && mapping->handle->backing->device == kHostMemory);
  }
};

// RANGE_*: the block, or the reservation that a mapping lies in.
Range range_of(const Target& t) {
  if (t.block != nullptr) return {t.block->base, t.block->bytes};
  const auto& reservation = std::prev(state().reservations.upper_bound(t.address))->second;
  return {reservation.base, reservation.size};
}

// MAPPING_*: the pages behind it.
Range mapping_of(const Target& t) {
  if (t.mapping != nullptr) return {t.mapping->base, t.mapping->size};
  if (t.block->chunk != nullptr) return {t.block->chunk->base, t.block->chunk->size};
  const bool own = t.is(BlockKind::registered);
  return {t.block->base, own ? t.block->bytes : round_up(t.block->bytes, kPage)};
}

// The tokens of the first GPUDirect interface. Asking for them makes memory operations synchronous.
CUresult p2p_tokens(const Target& t, void* data) {
  if (t.host_memory()) return CUDA_ERROR_INVALID_VALUE;
  if (t.block != nullptr) t.block->sync_memops = true;
  auto* tokens = static_cast<CUDA_POINTER_ATTRIBUTE_P2P_TOKENS*>(data);
  tokens->p2pToken = 1;
  tokens->vaSpaceToken = 1;
  return CUDA_SUCCESS;
}

Target look_up(Address address) {
  Target target;
  target.address = address;
  target.block = find_block(address);
  if (target.block == nullptr) target.mapping = find_mapping(address);
  return target;
}

template <typename T>
CUresult put(void* data, T value) {
  *static_cast<T*>(data) = value;
  return CUDA_SUCCESS;
}

CUresult device_ordinal(const Target& t, void* data) {
  if (t.block != nullptr) return put<int>(data, t.block->device);
  const int device = t.mapping->handle->backing->device;
  return put<int>(data, device == kHostMemory ? 0 : device);
}

CUresult host_pointer(const Target& t, void* data) {
  // Memory of a NUMA node has one once the CPU has access.
  if (t.mapping != nullptr && t.mapping->access.count(kHostMemory) != 0)
    return put<void*>(data, reinterpret_cast<void*>(t.address));
  if (!t.is(BlockKind::managed) && !t.is(BlockKind::host) && !t.is(BlockKind::registered))
    return CUDA_ERROR_INVALID_VALUE;
  return put<void*>(data, reinterpret_cast<void*>(t.address));
}

CUresult answer(const Target& t, CUpointer_attribute attribute, void* data) {
  const bool managed = t.is(BlockKind::managed);
  const Handle* handle = t.mapping != nullptr ? t.mapping->handle.get() : nullptr;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
      const bool none = t.block == nullptr || t.is(BlockKind::pool);
      return put<CUcontext>(data, none ? nullptr : to_handle(t.block->owner));
    }
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<unsigned>(data, t.host_memory() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put<CUdeviceptr>(data, t.address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return host_pointer(t, data);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put<int>(data, t.block != nullptr && t.block->sync_memops ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put<unsigned long long>(data, t.block != nullptr ? t.block->id : handle->id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put<int>(data, managed ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return device_ordinal(t, data);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<int>(data, t.is(BlockKind::native) ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put<CUdeviceptr>(data, range_of(t).base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put<std::size_t>(data, range_of(t).size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put<int>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put<unsigned long long>(
          data, handle != nullptr
                    ? static_cast<unsigned long long>(handle->prop.requestedHandleTypes)
                    : 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put<int>(data, handle != nullptr ? handle->prop.allocFlags.gpuDirectRDMACapable
                                              : t.is(BlockKind::native));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put<unsigned>(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put<CUmemoryPool>(
          data, t.is(BlockKind::pool) ? reinterpret_cast<CUmemoryPool>(t.block->pool) : nullptr);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put<std::size_t>(data, mapping_of(t).size);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put<CUdeviceptr>(data, mapping_of(t).base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put<unsigned long long>(data, t.block != nullptr ? t.block->id : handle->id);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return p2p_tokens(t, data);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put<int>(data, t.is(BlockKind::native) ? 1 : 0);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

std::size_t width_of(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return 8;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return 16;
    default:
      return 4;
  }
}

}  // namespace

KVSIM_API CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                         CUdeviceptr address) {
  Call call({"cuPointerGetAttribute"});
  call.args("attribute=%d ptr=0x%llx", static_cast<int>(attribute), address);
  return call.run(kInit, [&](Lock&) {
    const Target target = look_up(address);
    if (data == nullptr || !target) return CUDA_ERROR_INVALID_VALUE;
    return answer(target, attribute, data);
  });
}

KVSIM_API CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                          void** data, CUdeviceptr address) {
  Call call({"cuPointerGetAttributes"});
  call.args("count=%u ptr=0x%llx", count, address);
  return call.run(kInit, [&](Lock&) {
    if (attributes == nullptr || data == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    const Target target = look_up(address);
    for (unsigned i = 0; i < count; ++i) {
      // An attribute that a pointer lacks reads as zero here, where the single query fails.
      if (!target || answer(target, attributes[i], data[i]) != CUDA_SUCCESS) {
        __builtin_memset(data[i], 0, width_of(attributes[i]));
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
          *static_cast<int*>(data[i]) = CU_DEVICE_INVALID;
        // Memory that CUDA does not know may still be the program's own.
        if (!target && attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)
          *static_cast<CUdeviceptr*>(data[i]) = address;
      }
    }
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                         CUdeviceptr address) {
  Call call({"cuPointerSetAttribute"});
  call.args("attribute=%d ptr=0x%llx", static_cast<int>(attribute), address);
  return call.run(kInit, [&](Lock&) {
    const Target target = look_up(address);
    if (value == nullptr || !target || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
      return CUDA_ERROR_INVALID_VALUE;
    if (target.block == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    target.block->sync_memops = *static_cast<const int*>(value) != 0;
    return CUDA_SUCCESS;
  });
}
