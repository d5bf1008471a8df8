// See exporter.h.
#include "sharing/exporter.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "base/lock.h"
#include "base/log.h"
#include "base/options.h"
#include "base/pool.h"
#include "driver/contexts.h"
#include "driver/errors.h"
#include "driver/functions.h"
#include "memory/blocks/owner.h"
#include "memory/blocks/registry.h"
#include "sharing/ipc_handle.h"
#include "sharing/server.h"
#include "telemetry/counters.h"

namespace kvshim::sharing {

namespace {

// A mapping, of one block or a slab, that has blocks with a handle.
struct Share {
  CUdeviceptr base;
  CUmemGenericAllocationHandle memory;
  std::uint32_t type;
  KeptFd fd;  // as long as the share; none: fabric, or made when asked for
  unsigned char fabric[64];
  std::uint32_t blocks;
  Share* next;
};

// What only this process needs of a line of the board.
struct LineOwner {
  Share* share;
  std::uint32_t next_free;
};

constexpr unsigned kBuckets = 256;

// Never held while in the driver. What it protects is in use by the server thread too.
constinit Lock lock;
constinit Board board;
constinit LineOwner* line_owners = nullptr;
constinit std::uint32_t first_free = 0;  // a list through LineOwner::next_free; 0 ends it
constinit std::uint32_t never_used = 1;  // slot 0 means "no handle"
constinit Share* shares[kBuckets] = {};
constinit NodePool<sizeof(Share)> pool;
constinit log::Once said_managed;
constinit log::Once said_refused;

Share*& bucket_of(CUdeviceptr base) noexcept {
  return shares[(base >> 21) % kBuckets];
}

const vmm::Mapping& mapping_of(const Block& block) noexcept {
  return block.slab != nullptr ? SlabAllocator::mapping(*block.slab) : block.mapping;
}

bool prepare() noexcept {  // with the lock held
  if (line_owners == nullptr) {
    void* memory = mmap(nullptr, kLines * sizeof(LineOwner), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    line_owners = static_cast<LineOwner*>(memory);
  }
  return board.memory != nullptr || board.open(self().nonce);
}

Share* find_share(const vmm::Mapping& mapping) noexcept {  // with the lock held
  for (Share* share = bucket_of(mapping.base); share != nullptr; share = share->next) {
    if (share->base == mapping.base && share->memory == mapping.handle) return share;
  }
  return nullptr;
}

// One block of the share less. Returns the descriptor to close once the lock is released, if any.
KeptFd drop(Share* share) noexcept {  // with the lock held
  if (--share->blocks != 0) return {};
  Share** link = &bucket_of(share->base);
  while (*link != share) link = &(*link)->next;
  *link = share->next;
  const KeptFd fd = share->fd;
  pool.give(share);
  return fd;
}

// Exports the mapping the way it was created for.
CUresult export_mapping(const vmm::Mapping& mapping, Share* out) noexcept {
  CUmemAllocationProp prop{};
  CUresult code = driver::cuMemGetAllocationPropertiesFromHandle(&prop, mapping.handle);
  if (code != CUDA_SUCCESS) return code;
  out->base = mapping.base;
  out->memory = mapping.handle;
  out->type = static_cast<std::uint32_t>(prop.requestedHandleTypes);
  if ((out->type & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
    out->type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int fd = -1;
    code = driver::cuMemExportToShareableHandle(&fd, mapping.handle,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (code == CUDA_SUCCESS) out->fd = keep_fd(move_up(fd));
    return code;
  }
  if ((out->type & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
    out->type = CU_MEM_HANDLE_TYPE_FABRIC;
    return driver::cuMemExportToShareableHandle(out->fabric, mapping.handle,
                                                CU_MEM_HANDLE_TYPE_FABRIC, 0);
  }
  return CUDA_ERROR_NOT_SUPPORTED;  // KVSHIM_HANDLE=none, or a device that exports nothing
}

// The mapping's share with one block more; made where there is none.
CUresult hold_share(const vmm::Mapping& mapping, Share** out) noexcept {
  {
    const Guard guard(lock);
    if (!prepare()) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = find_share(mapping);
    if (*out != nullptr) {
      ++(*out)->blocks;
      return CUDA_SUCCESS;
    }
  }
  Share made{};
  const CUresult code = export_mapping(mapping, &made);
  if (code != CUDA_SUCCESS) return code;
  KeptFd surplus;
  {
    const Guard guard(lock);
    *out = find_share(mapping);
    void* node = *out == nullptr ? pool.take() : nullptr;
    if (*out != nullptr || node == nullptr) {
      surplus = made.fd;  // another thread was first, or there is no memory
    } else {
      Share*& bucket = bucket_of(mapping.base);
      made.next = bucket;
      *out = bucket = new (node) Share(made);
    }
    if (*out != nullptr) ++(*out)->blocks;
  }
  close_kept(surplus);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// A line of the board for the block; 0 when all are taken.
std::uint32_t write_line(const Block& block, const vmm::Mapping& mapping, Share* share) noexcept {
  const Guard guard(lock);
  std::uint32_t slot = first_free;
  if (slot != 0) {
    first_free = line_owners[slot].next_free;
  } else if (never_used < board.lines) {
    slot = never_used++;
  } else {
    return 0;
  }
  line_owners[slot].share = share;
  Line& line = board.line(slot);
  line.offer = {
      mapping.bytes, block.base - mapping.base, block.bytes, share->fd.fd, share->type, {}};
  memcpy(line.offer.fabric, share->fabric, sizeof(share->fabric));
  line.block.store(block.id, std::memory_order_release);
  return slot;
}

// The order of these two is what makes a line trustworthy (board.h).
void erase(std::uint32_t slot) noexcept {
  KeptFd fd;
  {
    const Guard guard(lock);
    board.line(slot).block.store(0, std::memory_order_seq_cst);
    fd = drop(line_owners[slot].share);
    line_owners[slot] = {nullptr, first_free};
    first_free = slot;
  }
  close_kept(fd);
}

// Puts the block on the board. On success *slot is its line, by whichever thread it was written.
CUresult publish(const Block& block, std::uint32_t* slot) noexcept {
  const vmm::Mapping mapping = mapping_of(block);
  Share* share = nullptr;
  const CUresult code = hold_share(mapping, &share);
  if (code != CUDA_SUCCESS) return code;
  const std::uint32_t written = write_line(block, mapping, share);
  if (written == 0) {
    KeptFd fd;
    {
      const Guard guard(lock);
      fd = drop(share);
    }
    close_kept(fd);
    log::warn("{} blocks have an IPC handle at once; there is no room for more", board.lines);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *slot = registry::mark_exported(block.base, block.id, written);
  if (*slot != written) erase(written);
  if (*slot == 0) return CUDA_ERROR_INVALID_VALUE;  // freed meanwhile
  if (*slot == written) telemetry::counters.ipc_exports.fetch_add(1, std::memory_order_relaxed);
  start_server();
  return CUDA_SUCCESS;
}

}  // namespace

bool get_handle(CUipcMemHandle* out, CUdeviceptr address, CUresult* result) noexcept {
  Block block;
  if (options().ipc == IpcPolicy::off || out == nullptr) return false;
  if (registry::find(address, &block) != Place::block || block.opened) return false;
  const bool pieces = block.kind == Kind::host && block.mapping.handle == 0;
  if ((pieces || block.kind == Kind::managed) && said_managed.first()) {
    const bool spills = options().spill != SpillPolicy::threshold;
    log::warn("a block of {} bytes is wanted over IPC, and {} has none. {}", block.bytes,
              pieces ? "host memory of several handles" : "managed memory",
              spills
                  ? "KVSHIM_LARGE=host keeps blocks that go to host memory shareable, up to 1 GiB"
                  : "KVSHIM_THRESHOLD over its size or KVSHIM_LARGE=vmm keeps such blocks "
                    "shareable");
  }
  if (pieces || !is_mapping(block.kind)) return false;
  *result = driver::current_context_state();
  if (*result != CUDA_SUCCESS) return true;
  std::uint32_t slot = block.export_slot;
  if (slot == 0) {
    if (block.slab != nullptr) block.owner->slabs().seal(block.slab);
    *result = publish(block, &slot);
  }
  if (*result != CUDA_SUCCESS) {
    if (said_refused.first()) {
      log::warn("a block of {} bytes cannot be shared over IPC: its export failed with {} {}",
                block.bytes, static_cast<int>(*result), driver::error_name(*result));
    }
    if (driver::Device::is_refusal(*result)) *result = CUDA_ERROR_INVALID_VALUE;
    return true;
  }
  IpcHandle handle = self();
  handle.block = block.id;
  handle.slot = slot;
  {
    const Guard guard(lock);
    handle.board = board.fd.fd;
  }
  seal(handle, out);
  return true;
}

bool lend(std::uint32_t slot, std::uint64_t block, Offer* offer, int* fd) noexcept {
  *fd = -1;
  CUmemGenericAllocationHandle memory = 0;
  {
    const Guard guard(lock);
    if (board.memory == nullptr || slot == 0 || slot >= board.lines || block == 0) {
      return false;
    }
    const Line& line = board.line(slot);
    if (line.block.load(std::memory_order_relaxed) != block) return false;
    *offer = line.offer;
    if (offer->type == CU_MEM_HANDLE_TYPE_FABRIC) return true;
    const Share& share = *line_owners[slot].share;
    if (is_kept(share.fd)) {
      *fd = copy_up(share.fd.fd);
      return *fd >= 0;
    }
    memory = share.memory;  // none was kept, or the program has closed it
  }
  if (driver::cuMemExportToShareableHandle(fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           0) != CUDA_SUCCESS) {
    return false;
  }
  // Still there: then `memory` was this block's all the time.
  {
    const Guard guard(lock);
    if (board.line(slot).block.load(std::memory_order_relaxed) == block) return true;
  }
  close(*fd);
  return false;
}

void withdraw(const Block& block) noexcept {
  erase(block.export_slot);
}

void forget_exports() noexcept {
  lock.renew();
  // The parent's memory must not live on in the child's descriptors.
  for (Share*& bucket : shares) {
    for (const Share* share = bucket; share != nullptr; share = share->next) close_kept(share->fd);
    bucket = nullptr;
  }
  board.close_inherited();
  if (line_owners != nullptr) munmap(line_owners, kLines * sizeof(LineOwner));
  line_owners = nullptr;
  first_free = 0;
  never_used = 1;
  new (&pool) NodePool<sizeof(Share)>;
}

}  // namespace kvshim::sharing
