// Stream-ordered allocation: pools, cuMemAllocAsync and cuMemFreeAsync. Memory is there at once and
// goes back when the stream reaches the free.
#include "driver/call.h"

namespace {

using namespace sim;

Pool* find_pool(CUmemoryPool handle) {
  auto* wanted = reinterpret_cast<Pool*>(handle);
  for (Device& d : state().devices) {
    if (&d.default_pool == wanted) return wanted;
  }
  for (const auto& pool : state().pools) {
    if (pool.get() == wanted && !pool->destroyed) return wanted;
  }
  return nullptr;
}

Device* find_device(CUdevice ordinal) {
  State& s = state();
  const auto i = static_cast<std::size_t>(ordinal);
  return ordinal >= 0 && i < s.devices.size() ? &s.devices[i] : nullptr;
}

CUmemoryPool to_handle(Pool* pool) {
  return reinterpret_cast<CUmemoryPool>(pool);
}

CUresult allocate(CUdeviceptr* out, std::size_t bytes, Pool* pool, Stream& stream, Lock& lock) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (stream.capture == nullptr) {
    CUresult refused = refuse_legacy_use(stream);
    if (refused == CUDA_SUCCESS) refused = refuse_unsafe_call();
    if (refused != CUDA_SUCCESS) return refused;
  }
  if (bytes == 0) {
    *out = 0;
    return CUDA_SUCCESS;
  }
  if (pool == nullptr) pool = find_device(stream.context->device)->pool;
  Context* owner =
      stream.context->device == pool->device ? stream.context : primary_context(pool->device);
  const auto block = allocate_native(*owner, bytes, BlockKind::pool);
  if (block == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  block->pool = pool;
  pool->used += block->taken;
  if (pool->used > pool->used_high) pool->used_high = pool->used;
  *out = block->base;
  if (stream.capture == nullptr) return CUDA_SUCCESS;
  return submit(
      lock, stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, {}, [](Context&) { return CUDA_SUCCESS; }, true);
}

CUresult alloc_async(Api api, CUdeviceptr* out, size_t bytes, CUstream stream_handle) {
  Call call(api);
  call.args("bytes=%zu stream=%p", bytes, static_cast<void*>(stream_handle));
  return call.run(kInit, [&](Lock& lock) {
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, stream_handle, &why);
    if (stream == nullptr) return why;
    return allocate(out, bytes, nullptr, *stream, lock);
  });
}

CUresult alloc_from_pool(Api api, CUdeviceptr* out, size_t bytes, CUmemoryPool pool_handle,
                         CUstream stream_handle) {
  Call call(api);
  call.args("bytes=%zu pool=%p stream=%p", bytes, static_cast<void*>(pool_handle),
            static_cast<void*>(stream_handle));
  return call.run(kInit, [&](Lock& lock) {
    Pool* pool = find_pool(pool_handle);
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, stream_handle, &why);
    if (stream == nullptr) return why;
    return allocate(out, bytes, pool, *stream, lock);
  });
}

CUresult free_async(Api api, CUdeviceptr address, CUstream stream_handle) {
  Call call(api);
  call.args("ptr=0x%llx stream=%p", address, static_cast<void*>(stream_handle));
  return call.run(kInit, [&](Lock& lock) {
    State& s = state();
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, stream_handle, &why);
    if (stream == nullptr) return why;
    if (address == 0) return CUDA_SUCCESS;
    const auto it = s.blocks.find(address);
    if (it == s.blocks.end()) return CUDA_ERROR_INVALID_VALUE;
    const auto block = it->second;
    if (block->kind == BlockKind::managed) return CUDA_ERROR_NOT_SUPPORTED;
    const bool freeable = block->kind == BlockKind::pool || block->kind == BlockKind::native;
    if (!freeable || block->free_queued) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture != nullptr) {
      // Memory of cuMemAlloc cannot become a node (measured: 1, and the capture lives).
      if (block->kind == BlockKind::native) return CUDA_ERROR_INVALID_VALUE;
      // A graph owns memory that its capture allocated: it stays for the replays.
      return submit(
          lock, *stream, CU_GRAPH_NODE_TYPE_MEM_FREE, {}, [](Context&) { return CUDA_SUCCESS; },
          true);
    }
    block->free_queued = true;
    return submit(
        lock, *stream, CU_GRAPH_NODE_TYPE_MEM_FREE, {},
        [address](Context&) {
          const Lock inner(state().mutex);
          const auto found = state().blocks.find(address);
          if (found == state().blocks.end()) return CUDA_SUCCESS;
          const auto freed = found->second;
          check_in_flight(freed->base, freed->bytes, "stream-ordered free");
          drop_block(freed);
          return CUDA_SUCCESS;
        },
        true);
  });
}

// Calls about one pool.
template <typename Body>
CUresult with_pool(const char* name, CUmemoryPool handle, Body body, unsigned needs = kNothing) {
  Call call({name});
  call.args("pool=%p", static_cast<void*>(handle));
  return call.run(kInit | needs, [&](Lock&) {
    Pool* pool = find_pool(handle);
    return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : body(*pool);
  });
}

CUresult get_pool(const char* name, CUmemoryPool* out, CUdevice ordinal, bool current) {
  Call call({name});
  call.args("device=%d", ordinal);
  return call.run(kInit, [&](Lock&) {
    Device* device = find_device(ordinal);
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *out = to_handle(current ? device->pool : &device->default_pool);
    return CUDA_SUCCESS;
  });
}

}  // namespace

KVSIM_TWIN(cuMemAllocAsync, cuMemAllocAsync_ptsz, alloc_async,
           (CUdeviceptr * p, size_t n, CUstream s), (p, n, s))
KVSIM_TWIN(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, alloc_from_pool,
           (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream s), (p, n, pool, s))
KVSIM_TWIN(cuMemFreeAsync, cuMemFreeAsync_ptsz, free_async, (CUdeviceptr p, CUstream s), (p, s))

KVSIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  return get_pool("cuDeviceGetDefaultMemPool", out, device, false);
}
KVSIM_API CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  return get_pool("cuDeviceGetMemPool", out, device, true);
}
KVSIM_API CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  return with_pool("cuDeviceSetMemPool", handle, [&](Pool& pool) {
    Device* device = find_device(ordinal);
    if (device == nullptr || pool.device != ordinal) return CUDA_ERROR_INVALID_VALUE;
    device->pool = &pool;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  Call call({"cuMemPoolCreate"});
  return call.run(kInit | kUnsafe, [&](Lock&) {
    if (out == nullptr || props == nullptr || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
      return CUDA_ERROR_INVALID_VALUE;
    if (find_device(props->location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    auto pool = std::make_unique<Pool>();
    pool->device = props->location.id;
    pool->props = *props;
    pool->access.insert(pool->device);
    *out = to_handle(pool.get());
    state().pools.push_back(std::move(pool));
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return with_pool("cuMemPoolDestroy", handle, [](Pool& pool) {
    if (pool.is_default) return CUDA_ERROR_INVALID_VALUE;
    Device* device = find_device(pool.device);
    if (device->pool == &pool) device->pool = &device->default_pool;
    pool.destroyed = true;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t) {
  return with_pool(
      "cuMemPoolTrimTo", handle, [](Pool&) { return CUDA_SUCCESS; }, kUnsafe);
}

KVSIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                         void* value) {
  return with_pool("cuMemPoolSetAttribute", handle, [&](Pool& pool) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
      pool.release_threshold = *static_cast<cuuint64_t*>(value);
    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool.used_high = pool.used;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                         void* value) {
  return with_pool("cuMemPoolGetAttribute", handle, [&](Pool& pool) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *static_cast<int*>(value) = 1;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *static_cast<cuuint64_t*>(value) = pool.release_threshold;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *static_cast<cuuint64_t*>(value) = pool.used;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *static_cast<cuuint64_t*>(value) = pool.used_high;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

KVSIM_API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map,
                                      size_t count) {
  return with_pool("cuMemPoolSetAccess", handle, [&](Pool& pool) {
    if (map == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      if (find_device(map[i].location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
      if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        pool.access.erase(map[i].location.id);
      } else {
        pool.access.insert(map[i].location.id);
      }
    }
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                      CUmemLocation* location) {
  return with_pool("cuMemPoolGetAccess", handle, [&](Pool& pool) {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = pool.access.count(location->id) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                  : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  });
}
