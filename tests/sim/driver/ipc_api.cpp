// Legacy IPC: a 64-byte handle names a native block; another process of the same user maps it.
#include <unistd.h>

#include <cstring>

#include "driver/call.h"

namespace {

using namespace sim;

struct IpcHandle {
  char magic[8];
  int pid;
  int fd;
  std::uint64_t chunk_offset;  // in the arena
  std::uint64_t chunk_size;
  std::uint64_t block_offset;  // in the chunk
  std::uint64_t bytes;
  std::uint64_t serial;
  unsigned slot;
  int device;
};
static_assert(sizeof(IpcHandle) <= sizeof(CUipcMemHandle));
constexpr char kMagic[8] = {'k', 'v', 's', 'i', 'm', 'i', 'p', 'c'};

bool give_serial(Block& block) {
  if (block.slot != 0) return true;
  std::uint64_t* slots = alive_slots();
  for (unsigned i = 1; i < kAliveSlots; ++i) {
    if (slots[i] != 0) continue;
    block.slot = i;
    block.serial = (static_cast<std::uint64_t>(getpid()) << 32) | state().next_id++;
    slots[i] = block.serial;
    return true;
  }
  return false;
}

std::shared_ptr<Block> opened_before(std::uint64_t serial) {
  for (const auto& [base, block] : state().blocks) {
    if (block->kind == BlockKind::ipc && block->serial == serial) return block;
  }
  return nullptr;
}

bool reaches(int from, int to) {
  const auto& row = state().p2p[static_cast<std::size_t>(from)];
  return to >= 0 && static_cast<std::size_t>(to) < row.size() && row[static_cast<std::size_t>(to)];
}

CUresult open(Api api, CUdeviceptr* out, const CUipcMemHandle& data, unsigned flags) {
  Call call(api);
  call.args("flags=%u", flags);
  // Before it looks at the context (measured on two H200: 1 in a broken one).
  if (out == nullptr) return call.run(0, [](Lock&) { return CUDA_ERROR_INVALID_VALUE; });
  return call.run(kContext, [&](Lock&) {
    IpcHandle handle;
    std::memcpy(&handle, &data, sizeof(handle));
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    if (std::memcmp(handle.magic, kMagic, sizeof(kMagic)) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (handle.pid == static_cast<int>(getpid())) return CUDA_ERROR_INVALID_CONTEXT;
    // Lazy peer access: the device that opens may use the memory of the one that has it.
    CUresult why = CUDA_SUCCESS;
    const int device = current_context(&why)->device;
    if (device != handle.device && !reaches(device, handle.device))
      return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (const auto known = opened_before(handle.serial)) {
      ++known->opens;
      known->opened_on.insert(device);
      *out = known->base;
      return CUDA_SUCCESS;
    }
    if (read_foreign_slot(handle.pid, handle.fd, handle.slot) != handle.serial)
      return CUDA_ERROR_INVALID_VALUE;
    auto backing = open_foreign_backing(handle.pid, handle.fd, handle.chunk_offset,
                                        handle.chunk_size, handle.device);
    if (backing == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Address chunk = reserve_addresses(handle.chunk_size, kPage);
    if (chunk == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto block = add_block(BlockKind::ipc, chunk + handle.block_offset, handle.bytes,
                                 current_context(&why), handle.device);
    block->memory = backing->bytes + handle.block_offset;
    block->backing = std::move(backing);
    block->taken = handle.chunk_size;
    block->serial = handle.serial;
    block->opens = 1;
    block->opened_on.insert(device);
    *out = block->base;
    return CUDA_SUCCESS;
  });
}

}  // namespace

KVSIM_API CUresult cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  Call call({"cuIpcGetMemHandle"});
  call.args("ptr=0x%llx", address);
  return call.run(kContext, [&](Lock&) {
    const auto block = find_block(address);
    if (out == nullptr || block == nullptr || block->kind != BlockKind::native)
      return CUDA_ERROR_INVALID_VALUE;
    if (!give_serial(*block)) return CUDA_ERROR_OUT_OF_MEMORY;
    IpcHandle handle{};
    std::memcpy(handle.magic, kMagic, sizeof(kMagic));
    handle.pid = static_cast<int>(getpid());
    handle.fd = arena_fd();
    handle.chunk_offset = block->backing->offset;
    handle.chunk_size = block->chunk->size;
    handle.block_offset = block->base - block->chunk->base;
    handle.bytes = block->bytes;
    handle.serial = block->serial;
    handle.slot = block->slot;
    handle.device = block->device;
    std::memset(out, 0, sizeof(*out));
    std::memcpy(out, &handle, sizeof(handle));
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  return open({"cuIpcOpenMemHandle"}, out, handle, flags);
}
KVSIM_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  return open({"cuIpcOpenMemHandle_v2"}, out, handle, flags);
}

KVSIM_API CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  Call call({"cuIpcCloseMemHandle"});
  call.args("ptr=0x%llx", address);
  return call.run(kContext, [&](Lock& lock) {
    const auto it = state().blocks.find(address);
    if (it == state().blocks.end() || it->second->kind != BlockKind::ipc)
      return CUDA_ERROR_INVALID_VALUE;
    const auto block = it->second;
    if (--block->opens > 0) return CUDA_SUCCESS;
    wait_context(lock, *block->owner);
    drop_block(block);
    return CUDA_SUCCESS;
  });
}
