// Managed memory: real host memory that the CPU may touch, with a note per 2 MiB page which device
// has it (residency.h).
#include <sys/mman.h>

#include "driver/attributes.h"
#include "driver/call.h"

namespace {

using namespace sim;

constexpr int kNowhere = -2;

// The ordinal a location means: -1 the CPU. False: no such place.
bool place(CUmemLocation location, int* where) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      *where = location.id;
      return location.id == CU_DEVICE_CPU || primary_context(location.id) != nullptr;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      *where = CU_DEVICE_CPU;
      return true;
    default:
      return false;
  }
}

std::shared_ptr<Block> managed_range(Address address, std::size_t size) {
  const auto block = find_block(address);
  if (block == nullptr || block->kind != BlockKind::managed) return nullptr;
  return size <= block->base + block->bytes - address ? block : nullptr;
}

CUresult advise(Api api, Address address, std::size_t size, CUmem_advise advice,
                CUmemLocation location) {
  Call call(api);
  call.args("ptr=0x%llx bytes=%zu advice=%d location=%d:%d",
            static_cast<unsigned long long>(address), size, static_cast<int>(advice),
            static_cast<int>(location.type), location.id);
  return call.run(kContext | kUnsafe, [&](Lock&) {
    const auto block = managed_range(address, size);
    if (block == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    int where = kNowhere;
    const bool needs_place = advice != CU_MEM_ADVISE_SET_READ_MOSTLY &&
                             advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY &&
                             advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    if (needs_place && !place(location, &where)) return CUDA_ERROR_INVALID_VALUE;
    if (needs_place && where >= 0 &&
        device_attribute(where, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == 0)
      return CUDA_ERROR_INVALID_DEVICE;
    switch (advice) {
      case CU_MEM_ADVISE_SET_READ_MOSTLY:
        block->read_mostly = true;
        break;
      case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        block->read_mostly = false;
        break;
      case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        block->preferred = where;
        break;
      case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        block->preferred = kNowhere;
        break;
      case CU_MEM_ADVISE_SET_ACCESSED_BY:
        block->accessed_by.insert(where);
        break;
      case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        block->accessed_by.erase(where);
        break;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

CUresult prefetch(Api api, Address address, std::size_t size, CUmemLocation location,
                  unsigned flags, CUstream stream_handle) {
  Call call(api);
  call.args("ptr=0x%llx bytes=%zu location=%d:%d stream=%p",
            static_cast<unsigned long long>(address), size, static_cast<int>(location.type),
            location.id, static_cast<void*>(stream_handle));
  return call.run(kContext, [&](Lock& lock) {
    const auto block = managed_range(address, size);
    if (block == nullptr || size == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    int where = kNowhere;
    if (!place(location, &where)) return CUDA_ERROR_INVALID_DEVICE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, stream_handle, &why);
    if (stream == nullptr) return why;
    if (device_attribute(stream->context->device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) ==
        0)
      return CUDA_ERROR_INVALID_DEVICE;
    if (stream->capture != nullptr) {
      stream->capture->dead = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return submit(
        lock, *stream, CU_GRAPH_NODE_TYPE_EMPTY, {{address, size}},
        [=](Context&) {
          const Lock inner(state().mutex);
          move_pages(*block, address, size, where);
          block->last_prefetch = where;
          return CUDA_SUCCESS;
        },
        true);
  });
}

CUresult prefetch_v1(Api api, CUdeviceptr p, size_t n, CUdevice device, CUstream s) {
  return prefetch(api, p, n, {CU_MEM_LOCATION_TYPE_DEVICE, {device}}, 0, s);
}

CUresult range_attribute(const Block& block, CUmem_range_attribute attribute, void* data,
                         std::size_t size) {
  const auto one = [&](int value) {
    if (size != 4) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<int*>(data) = value;
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      return one(block.read_mostly ? 1 : 0);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      return one(block.preferred);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return one(block.last_prefetch);
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      if (size == 0 || size % 4 != 0) return CUDA_ERROR_INVALID_VALUE;
      auto it = block.accessed_by.begin();
      for (std::size_t i = 0; i < size / 4; ++i) {
        static_cast<int*>(data)[i] = it != block.accessed_by.end() ? *it++ : kNowhere;
      }
      return CUDA_SUCCESS;
    }
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: {
      const int where = attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE
                            ? block.preferred
                            : block.last_prefetch;
      return one(where == kNowhere ? CU_MEM_LOCATION_TYPE_INVALID
                 : where < 0       ? CU_MEM_LOCATION_TYPE_HOST
                                   : CU_MEM_LOCATION_TYPE_DEVICE);
    }
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      return one(block.preferred);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return one(block.last_prefetch);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

KVSIM_API CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  Call call({"cuMemAllocManaged"});
  call.args("bytes=%zu flags=%u", bytes, flags);
  return call.run(kContext | kUnsafe, [&](Lock&) {
    if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
      return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Context* context = current_context(&why);
    if (device_attribute(context->device, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) == 0)
      return CUDA_ERROR_NOT_SUPPORTED;
    if (bytes > (std::size_t{1} << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
    const std::size_t taken = round_up(bytes, kPage);
    const Address base = reserve_addresses(taken, kPage);
    if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    void* memory = reinterpret_cast<void*>(base);
    if (mprotect(memory, taken, PROT_READ | PROT_WRITE) != 0) {
      return_addresses(base, taken);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const auto block = add_block(BlockKind::managed, base, bytes, context, context->device);
    block->memory = static_cast<char*>(memory);
    block->taken = taken;
    block->pages.resize(taken / kPage);
    block->sync_memops = true;
    *out = base;
    return CUDA_SUCCESS;
  });
}

CUresult advise_v1(CUdeviceptr p, size_t n, CUmem_advise advice, CUdevice device)
    KVSIM_SYMBOL("cuMemAdvise") __attribute__((visibility("default")));
CUresult advise_v1(CUdeviceptr p, size_t n, CUmem_advise advice, CUdevice device) {
  return advise({"cuMemAdvise"}, p, n, advice, {CU_MEM_LOCATION_TYPE_DEVICE, {device}});
}
KVSIM_API CUresult cuMemAdvise_v2(CUdeviceptr p, size_t n, CUmem_advise advice,
                                  CUmemLocation location) {
  return advise({"cuMemAdvise_v2"}, p, n, advice, location);
}
KVSIM_TWIN(cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz, prefetch_v1,
           (CUdeviceptr p, size_t n, CUdevice d, CUstream s), (p, n, d, s))
KVSIM_TWIN(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz, prefetch,
           (CUdeviceptr p, size_t n, CUmemLocation l, unsigned f, CUstream s), (p, n, l, f, s))

KVSIM_API CUresult cuMemRangeGetAttribute(void* data, size_t size, CUmem_range_attribute attribute,
                                          CUdeviceptr p, size_t n) {
  Call call({"cuMemRangeGetAttribute"});
  call.args("attribute=%d ptr=0x%llx bytes=%zu", static_cast<int>(attribute), p, n);
  return call.run(kContext, [&](Lock&) {
    const auto block = managed_range(p, n);
    if (data == nullptr || block == nullptr || n == 0) return CUDA_ERROR_INVALID_VALUE;
    return range_attribute(*block, attribute, data, size);
  });
}

KVSIM_API CUresult cuMemRangeGetAttributes(void** data, size_t* sizes,
                                           CUmem_range_attribute* attributes, size_t count,
                                           CUdeviceptr p, size_t n) {
  Call call({"cuMemRangeGetAttributes"});
  call.args("count=%zu ptr=0x%llx bytes=%zu", count, p, n);
  return call.run(kContext, [&](Lock&) {
    const auto block = managed_range(p, n);
    if (data == nullptr || sizes == nullptr || attributes == nullptr || block == nullptr)
      return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      const CUresult result = range_attribute(*block, attributes[i], data[i], sizes[i]);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}
