// Page-locked host memory: allocated here, or the program's own and registered.
#include <sys/mman.h>

#include "driver/call.h"

namespace {

using namespace sim;

CUresult allocate(Api api, void** out, size_t bytes, unsigned flags) {
  Call call(api);
  call.args("bytes=%zu flags=%u", bytes, flags);
  return call.run(kContext | kUnsafe, [&](Lock&) {
    if (out == nullptr || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    if (bytes == 0) {
      *out = nullptr;
      return CUDA_SUCCESS;
    }
    if (bytes > (std::size_t{1} << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
    const std::size_t taken = round_up(bytes, 4096);
    void* p = mmap(nullptr, taken, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult why = CUDA_SUCCESS;
    Context* context = current_context(&why);
    const auto block =
        add_block(BlockKind::host, reinterpret_cast<Address>(p), bytes, context, context->device);
    block->memory = static_cast<char*>(p);
    block->taken = taken;
    block->host_flags = flags;
    *out = p;
    return CUDA_SUCCESS;
  });
}

CUresult enlist(Api api, void* p, size_t bytes, unsigned flags) {
  Call call(api);
  call.args("ptr=%p bytes=%zu flags=%u", p, bytes, flags);
  return call.run(kContext | kUnsafe, [&](Lock&) {
    const auto address = reinterpret_cast<Address>(p);
    if (p == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (const auto block = find_block(address)) {
      return block->kind == BlockKind::registered ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                                                  : CUDA_ERROR_INVALID_VALUE;
    }
    if (is_device_address(address)) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Context* context = current_context(&why);
    const auto block = add_block(BlockKind::registered, address, bytes, context, context->device);
    block->memory = static_cast<char*>(p);
    block->host_flags = flags;
    return CUDA_SUCCESS;
  });
}

std::shared_ptr<Block> at_base(void* p, BlockKind kind) {
  const auto it = state().blocks.find(reinterpret_cast<Address>(p));
  return it != state().blocks.end() && it->second->kind == kind ? it->second : nullptr;
}

}  // namespace

CUresult alloc_host_v1(void** out, unsigned bytes) KVSIM_SYMBOL("cuMemAllocHost")
    __attribute__((visibility("default")));
CUresult alloc_host_v1(void** out, unsigned bytes) {
  return allocate({"cuMemAllocHost"}, out, bytes, 0);
}
KVSIM_API CUresult cuMemAllocHost_v2(void** out, size_t bytes) {
  return allocate({"cuMemAllocHost_v2"}, out, bytes, 0);
}
KVSIM_API CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return allocate({"cuMemHostAlloc"}, out, bytes, flags);
}
KVSIM_API CUresult cuMemHostRegister(void* p, size_t bytes, unsigned flags) {
  return enlist({"cuMemHostRegister"}, p, bytes, flags);
}
KVSIM_API CUresult cuMemHostRegister_v2(void* p, size_t bytes, unsigned flags) {
  return enlist({"cuMemHostRegister_v2"}, p, bytes, flags);
}

KVSIM_API CUresult cuMemFreeHost(void* p) {
  Call call({"cuMemFreeHost"});
  call.args("ptr=%p", p);
  return call.run(kInit | kUnsafe, [&](Lock& lock) {
    if (p == nullptr) return CUDA_SUCCESS;
    auto block = at_base(p, BlockKind::host);
    if (block == nullptr) return CUDA_ERROR_INVALID_VALUE;
    wait_context(lock, *block->owner);
    check_in_flight(block->base, block->bytes, "freeing host memory");
    drop_block(block);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemHostUnregister(void* p) {
  Call call({"cuMemHostUnregister"});
  call.args("ptr=%p", p);
  return call.run(kInit | kUnsafe, [&](Lock& lock) {
    const auto block = at_base(p, BlockKind::registered);
    if (block == nullptr) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    wait_context(lock, *block->owner);
    drop_block(block);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* p, unsigned flags) {
  Call call({"cuMemHostGetDevicePointer_v2"});
  call.args("ptr=%p", p);
  return call.run(kContext, [&](Lock&) {
    if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto block = find_block(reinterpret_cast<Address>(p));
    // Of mapped VMM memory the driver gives the address itself (measured, driver 580).
    if (block == nullptr && find_mapping(reinterpret_cast<Address>(p)) != nullptr) {
      *out = reinterpret_cast<Address>(p);
      return CUDA_SUCCESS;
    }
    if (block == nullptr ||
        (block->kind != BlockKind::host && block->kind != BlockKind::registered))
      return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<Address>(p);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemHostGetFlags(unsigned* flags, void* p) {
  Call call({"cuMemHostGetFlags"});
  return call.run(kContext, [&](Lock&) {
    const auto block = find_block(reinterpret_cast<Address>(p));
    if (flags == nullptr || block == nullptr || block->kind != BlockKind::host)
      return CUDA_ERROR_INVALID_VALUE;
    *flags = block->host_flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  });
}
