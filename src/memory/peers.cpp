// See peers.h.
#include "memory/peers.h"

#include <atomic>
#include <bit>
#include <cstdint>

#include "base/log.h"
#include "base/options.h"
#include "base/sizes.h"
#include "driver/device.h"
#include "driver/errors.h"
#include "driver/functions.h"
#include "driver/peers.h"
#include "memory/kinds/vmm.h"
#include "memory/routing/route.h"

namespace kvshim::peers {

namespace {

using Devices = std::uint64_t;  // a bit for each ordinal
static_assert(driver::kMaxDevices <= 64);

constexpr Devices bit(CUdevice device) noexcept {
  return 1ull << device;
}
bool in_range(CUdevice device) noexcept {
  return device >= 0 && device < driver::kMaxDevices;
}

constinit std::atomic<Devices> used{0};
constinit std::atomic<Devices> settled{0};  // used, and everything that lives is shared with them
constinit std::atomic<Devices> adopted{0};  // whose memory was opened by IPC, in use here or not
// For memory of each device: who is to have access, whom the driver has given it to some vmm
// memory, whom it has refused it, and who has been offered all memory that was there when it began
// to be wanted. Until then a second thread that asks for the same walks itself: it must not go on
// to use memory that the first one has not come to, and no lock is held while in the driver.
constinit std::atomic<Devices> wanted[driver::kMaxDevices] = {};
constinit std::atomic<Devices> given[driver::kMaxDevices] = {};
constinit std::atomic<Devices> refused[driver::kMaxDevices] = {};
constinit std::atomic<Devices> walked[driver::kMaxDevices] = {};

CUresult set_access(const MappedRange& range, Devices devices) noexcept {
  CUmemAccessDesc access[driver::kMaxDevices] = {};
  std::size_t count = 0;
  for (; devices != 0; devices &= devices - 1) {
    access[count].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access[count].location.id = std::countr_zero(devices);
    access[count++].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return driver::cuMemSetAccess(range.base, range.bytes, access, count);
}

bool has(const std::atomic<Devices>& devices, CUdevice device) noexcept {
  return (devices.load(std::memory_order_relaxed) & bit(device)) != 0;
}

// The driver's no is final for this pair of devices, except when memory was short.
void note_refusal(CUdevice owner, CUdevice device, CUresult code) noexcept {
  if (code == CUDA_ERROR_OUT_OF_MEMORY) return;
  wanted[owner].fetch_and(~bit(device), std::memory_order_relaxed);
  if ((refused[owner].fetch_or(bit(device), std::memory_order_relaxed) & bit(device)) != 0) return;
  log::warn(
      "device {} gets no access to vmm blocks of device {}: cuMemSetAccess answers {} {}; copies "
      "between the two still work, kernels of device {} cannot use those blocks, and "
      "cuCtxEnablePeerAccess answers 217. KVSHIM_SMALL=native keeps such blocks native",
      device, owner, static_cast<int>(code), driver::error_name(code), device);
}

void note_given(CUdevice owner, Devices devices) noexcept {
  if ((given[owner].load(std::memory_order_relaxed) & devices) == devices) return;
  given[owner].fetch_or(devices, std::memory_order_relaxed);
}

void grant(const MappedRange& range, Devices devices) noexcept {
  devices &= wanted[range.device].load(std::memory_order_relaxed);
  if (devices == 0) return;
  if (set_access(range, devices) == CUDA_SUCCESS) return note_given(range.device, devices);
  for (; devices != 0; devices &= devices - 1) {
    const CUdevice device = std::countr_zero(devices);
    const CUresult code = set_access(range, bit(device));
    if (code == CUDA_SUCCESS) {
      note_given(range.device, bit(device));
    } else if (registry::is_mapped(range)) {  // else it vanished while the driver was asked
      note_refusal(range.device, device, code);
    }
  }
}

// Calls `visit` for every live mapping, outside the lock. One that is freed meanwhile makes its
// cuMemSetAccess fail; one that is made meanwhile is shared by whoever makes it.
template <typename Visit>
void for_each_mapping(Visit visit) noexcept {
  constexpr unsigned kBatch = 64;
  MappedRange batch[kBatch];
  CUdeviceptr after = 0;
  for (;;) {
    const unsigned count = registry::mappings_after(after, batch, kBatch);
    for (unsigned index = 0; index < count; ++index) visit(batch[index]);
    if (count < kBatch) return;
    after = batch[count - 1].base;
  }
}

// From now on `device` is to have access to memory of `owner`. False when it is refused.
bool want(CUdevice device, CUdevice owner) noexcept {
  if (has(refused[owner], device)) return false;
  wanted[owner].fetch_or(bit(device), std::memory_order_seq_cst);
  return true;
}

bool is_walked(CUdevice device, CUdevice owner) noexcept {
  return (walked[owner].load(std::memory_order_acquire) & bit(device)) != 0;
}

[[gnu::noinline, gnu::cold]] bool use_first(CUdevice device) noexcept {
  const Devices others = used.fetch_or(bit(device), std::memory_order_seq_cst) & ~bit(device);
  const Devices theirs = others | adopted.load(std::memory_order_seq_cst);
  Devices reached = 0;     // whose memory it gets
  Devices reached_by = 0;  // who get its own
  for (Devices rest = theirs; rest != 0; rest &= rest - 1) {
    const CUdevice other = std::countr_zero(rest);
    if (driver::can_access_peer(device, other) && want(device, other)) reached |= bit(other);
    if ((others & bit(other)) != 0 && driver::can_access_peer(other, device) &&
        want(other, device)) {
      reached_by |= bit(other);
    }
  }
  const bool more = (reached | reached_by) != 0;
  if (more) {
    for_each_mapping([&](const MappedRange& range) {
      grant(range, range.device == device ? reached_by : bit(device));
    });
    for (Devices rest = reached; rest != 0; rest &= rest - 1) {
      walked[std::countr_zero(rest)].fetch_or(bit(device), std::memory_order_release);
    }
    walked[device].fetch_or(reached_by, std::memory_order_release);
    log::debug("device {} came into use: it shares vmm blocks with those in use before", device);
  }
  settled.fetch_or(bit(device), std::memory_order_release);
  return more;
}

// No block of `owner` has shown yet whether `device` may use it: one that lives for a moment does.
[[gnu::noinline, gnu::cold]] void try_pair(CUdevice device, CUdevice owner) noexcept {
  driver::Device* memory = driver::device(owner);
  vmm::Mapping mapping;
  if (memory == nullptr || !memory->vmm() || vmm::create(*memory, 1, &mapping) != CUDA_SUCCESS) {
    return;
  }
  const CUresult code = set_access({mapping.base, mapping.bytes, owner}, bit(device));
  vmm::destroy(mapping);
  if (code == CUDA_SUCCESS) {
    note_given(owner, bit(device));
  } else {
    note_refusal(owner, device, code);
  }
}

bool makes_vmm_blocks() noexcept {
  return reachable(Kind::vmm, options());
}

}  // namespace

bool use(CUdevice device) noexcept {
  if (!in_range(device) || options().peers != PeerPolicy::automatic) return false;
  if ((settled.load(std::memory_order_acquire) & bit(device)) != 0) [[likely]]
    return false;
  return use_first(device);
}

bool enable(CUdevice device, CUdevice owner) noexcept {
  if (!in_range(device) || !in_range(owner) || device == owner) return true;
  if (options().peers == PeerPolicy::off) return true;
  use(device);
  if (want(device, owner) && !is_walked(device, owner)) {
    for_each_mapping([&](const MappedRange& range) {
      if (range.device == owner) grant(range, bit(device));
    });
    walked[owner].fetch_or(bit(device), std::memory_order_release);
  }
  if (!makes_vmm_blocks()) return true;
  if (!has(given[owner], device) && !has(refused[owner], device)) try_pair(device, owner);
  return !has(refused[owner], device);
}

void adopt(CUdevice home) noexcept {
  if (!in_range(home) || options().peers != PeerPolicy::automatic) return;
  adopted.fetch_or(bit(home), std::memory_order_seq_cst);
  for (Devices rest = used.load(std::memory_order_seq_cst); rest != 0; rest &= rest - 1) {
    const CUdevice device = std::countr_zero(rest);
    if (driver::can_access_peer(device, home)) want(device, home);
  }
}

void share(const MappedRange& range) noexcept {
  if (!in_range(range.device)) return;
  const Devices devices = wanted[range.device].load(std::memory_order_seq_cst);
  if (devices != 0) [[unlikely]]
    grant(range, devices);
}

void forget() noexcept {
  used.store(0, std::memory_order_relaxed);
  settled.store(0, std::memory_order_relaxed);
  adopted.store(0, std::memory_order_relaxed);
  for (int device = 0; device < driver::kMaxDevices; ++device) {
    wanted[device].store(0, std::memory_order_relaxed);
    given[device].store(0, std::memory_order_relaxed);
    refused[device].store(0, std::memory_order_relaxed);
    walked[device].store(0, std::memory_order_relaxed);
  }
}

}  // namespace kvshim::peers
