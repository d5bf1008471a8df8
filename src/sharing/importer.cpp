// See importer.h.
#include "sharing/importer.h"

#include <unistd.h>

#include <new>

#include "base/lock.h"
#include "base/log.h"
#include "base/pool.h"
#include "driver/capture.h"
#include "driver/contexts.h"
#include "driver/errors.h"
#include "driver/functions.h"
#include "memory/blocks/registry.h"
#include "memory/kinds/vmm.h"
#include "memory/peers.h"
#include "sharing/channel.h"
#include "telemetry/counters.h"

namespace kvshim::sharing {

namespace {

struct Opened {
  std::uint64_t nonce;  // of the exporter
  std::uint64_t id;     // the exporter's of the block
  Block block;          // as in the registry
  std::uint64_t count;
  Opened* next;
};

constinit Lock lock;
constinit NodePool<sizeof(Opened)> pool;
constinit Opened* head = nullptr;
constinit log::Once said_blocked;

// Gives `device` access. A device that cannot reach the memory's answers 1, 217 or 801.
CUresult give_access(const vmm::Mapping& mapping, CUdevice device) noexcept {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return driver::cuMemSetAccess(mapping.base, mapping.bytes, &access, 1);
}

CUresult import_memory(const Offer& offer, int fd, CUmemGenericAllocationHandle* out) noexcept {
  Offer copy = offer;
  const bool fabric = offer.type == CU_MEM_HANDLE_TYPE_FABRIC;
  void* shared = fabric ? static_cast<void*>(copy.fabric)
                        : reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  return driver::cuMemImportFromShareableHandle(out, shared,
                                                static_cast<CUmemAllocationHandleType>(offer.type));
}

// An address for imported memory, for the current device and the one the memory is on. *home is
// the latter, -1 where this process does not see it. On failure everything is undone but the
// handle.
CUresult attach(CUdevice current, vmm::Mapping* mapping, CUdevice* home) noexcept {
  CUmemAllocationProp prop{};
  // Memory of the host is on no device.
  const bool known =
      driver::cuMemGetAllocationPropertiesFromHandle(&prop, mapping->handle) == CUDA_SUCCESS &&
      prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  *home = known ? prop.location.id : current;
  CUresult code = driver::cuMemAddressReserve(&mapping->base, mapping->bytes, 0, 0, 0);
  if (code != CUDA_SUCCESS) return code;
  code = driver::cuMemMap(mapping->base, mapping->bytes, 0, mapping->handle, 0);
  bool address_free = true;
  if (code == CUDA_SUCCESS) {
    code = give_access(*mapping, current);
    if (code == CUDA_SUCCESS) {
      if (*home != current && give_access(*mapping, *home) != CUDA_SUCCESS) *home = -1;
      return CUDA_SUCCESS;
    }
    const bool refused = code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_NOT_SUPPORTED ||
                         code == CUDA_ERROR_INVALID_DEVICE;
    if (*home != current && refused) code = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    address_free = driver::cuMemUnmap(mapping->base, mapping->bytes) == CUDA_SUCCESS;
  }
  if (address_free) driver::cuMemAddressFree(mapping->base, mapping->bytes);
  return code;
}

CUresult map_offer(const Offer& offer, int fd, CUdevice current, Block* block) noexcept {
  if (offer.bytes > offer.mapping_bytes || offer.offset > offer.mapping_bytes - offer.bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  vmm::Mapping mapping;
  mapping.bytes = offer.mapping_bytes;
  CUresult code = import_memory(offer, fd, &mapping.handle);
  if (code != CUDA_SUCCESS) return code;
  code = attach(current, &mapping, &block->home);
  if (code != CUDA_SUCCESS) {
    driver::cuMemRelease(mapping.handle);
    return code;
  }
  block->base = mapping.base + offer.offset;
  block->bytes = offer.bytes;
  block->kind = Kind::vmm;
  block->mapping = mapping;
  block->opened = true;
  return CUDA_SUCCESS;
}

Opened* find_opened(const IpcHandle& handle) noexcept {  // with the lock held
  Opened* opened = head;
  while (opened != nullptr && (opened->nonce != handle.nonce || opened->id != handle.block)) {
    opened = opened->next;
  }
  return opened;
}

// Opens what is open already once more. False: it is not.
bool open_again(const IpcHandle& handle, Block* block) noexcept {
  const Guard guard(lock);
  Opened* opened = find_opened(handle);
  if (opened == nullptr) return false;
  ++opened->count;
  *block = opened->block;
  return true;
}

// Keeps a new one, unless another thread was first: then *block is that one, counted. False: no
// memory for the record.
bool keep(const IpcHandle& handle, Block* block) noexcept {
  if (!registry::reserve()) return false;
  const Guard guard(lock);
  if (Opened* opened = find_opened(handle)) {
    ++opened->count;
    *block = opened->block;
    return true;
  }
  void* node = pool.take();
  if (node == nullptr) return false;
  registry::insert_opened(*block);
  head = new (node) Opened{handle.nonce, handle.block, *block, 1, head};
  return true;
}

// A peer's block, by a new mapping.
CUresult open_first(const IpcHandle& handle, Owner& owner, Block* block) noexcept {
  Offer offer{};
  int fd = -1;
  const char* why = "";
  const Fetched fetched = fetch(handle, &offer, &fd, &why);
  if (fetched != Fetched::ok) {
    const bool loud = fetched == Fetched::blocked && said_blocked.first();
    log::print(loud ? LogLevel::warn : LogLevel::info,
               "the IPC handle of process {} cannot be opened: {}{}", handle.pid, why,
               fetched == Fetched::gone
                   ? ""
                   : "; processes that share memory need one pid namespace with "
                     "ptrace allowed (pidfd_getfd), or one network namespace");
    return fetched == Fetched::gone ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_PERMITTED;
  }
  const CUresult code = map_offer(offer, fd, owner.device().ordinal(), block);
  if (fd >= 0) close(fd);
  if (code != CUDA_SUCCESS) {
    log::info("the IPC handle of process {} cannot be opened: {} {}", handle.pid,
              static_cast<int>(code), driver::error_name(code));
    return code;
  }
  block->owner = &owner;
  const vmm::Mapping made = block->mapping;
  const bool kept = keep(handle, block);
  if (!kept || block->mapping.base != made.base) vmm::destroy(made);
  if (!kept) return CUDA_ERROR_OUT_OF_MEMORY;
  // It is in the registry: a device that comes into use meanwhile finds it there.
  peers::use(owner.device().ordinal());
  peers::adopt(block->home);
  peers::share({block->mapping.base, block->mapping.bytes, block->home});
  {
    const driver::RelaxedCapture relaxed;  // a native block, which a capture might forbid
    owner.stock_spare();                   // the last close waits
  }
  telemetry::counters.ipc_imports.fetch_add(1, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult open_current(const IpcHandle* handle, unsigned flags, CUdeviceptr* out) noexcept {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;  // whatever the context (measured)
  Owner* owner = nullptr;
  CUresult code = driver::current_context_state();
  if (code == CUDA_SUCCESS) code = owners.current(&owner);
  if (code != CUDA_SUCCESS) return code;
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || handle == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const IpcHandle me = self();
  if (handle->boot != me.boot) {
    log::info("an IPC handle of another host, or from before a reboot, cannot be opened");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (handle->nonce == me.nonce) return CUDA_ERROR_INVALID_CONTEXT;
  Block block;
  if (!open_again(*handle, &block)) {
    code = open_first(*handle, *owner, &block);
    if (code != CUDA_SUCCESS) return code;
  } else if (&block.owner->device() != &owner->device() &&
             give_access(block.mapping, owner->device().ordinal()) != CUDA_SUCCESS) {
    close_opened(block.base, &code);
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  *out = block.base;
  return CUDA_SUCCESS;
}

// Takes the first record that `matches` out of the list. NULL: there is none.
template <typename Matches>
Opened* unlink_first(Matches matches) noexcept {
  for (Opened** link = &head; *link != nullptr; link = &(*link)->next) {
    if (!matches(**link)) continue;
    Opened* opened = *link;
    *link = opened->next;
    return opened;
  }
  return nullptr;
}

void finish(Opened* opened) noexcept {
  registry::remove_opened(opened->block);
  vmm::destroy(opened->block.mapping);
  const Guard guard(lock);
  pool.give(opened);
}

}  // namespace

CUresult open_handle(CUdeviceptr* out, const IpcHandle* handle, unsigned flags) noexcept {
  const CUresult code = open_current(handle, flags, out);
  if (code != CUDA_SUCCESS) telemetry::counters.ipc_refused.fetch_add(1, std::memory_order_relaxed);
  return code;
}

bool close_opened(CUdeviceptr address, CUresult* result) noexcept {
  *result = driver::current_context_state();
  if (*result != CUDA_SUCCESS) return true;
  const auto is_it = [&](const Opened& opened) { return opened.block.base == address; };
  Opened* last = nullptr;
  {
    const Guard guard(lock);
    last = unlink_first(is_it);
    if (last == nullptr) return false;
    if (last->count > 1) {
      --last->count;
      last->next = head;
      head = last;
      return true;
    }
  }
  bool gone = false;
  const CUresult code = last->block.owner->wait_idle(&gone);
  if (code == CUDA_SUCCESS || gone) {
    finish(last);
    return true;
  }
  *result = code;  // refused, as while a capture forbids it: it stays open
  const Guard guard(lock);
  last->next = head;
  head = last;
  return true;
}

void close_all_of(const Owner& owner) noexcept {
  for (;;) {
    Opened* opened = nullptr;
    {
      const Guard guard(lock);
      opened = unlink_first([&](const Opened& one) { return one.block.owner == &owner; });
    }
    if (opened == nullptr) return;
    finish(opened);
  }
}

void forget_imports() noexcept {
  lock.renew();
  new (&pool) NodePool<sizeof(Opened)>;
  head = nullptr;
}

}  // namespace kvshim::sharing
