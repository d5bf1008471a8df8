// See peers.h.
#include "memory/peers.h"

#include <atomic>
#include <bit>
#include <cstdint>

#include "base/log.h"
#include "base/options.h"
#include "driver/device.h"
#include "driver/errors.h"
#include "driver/functions.h"
#include "driver/peers.h"

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
// For memory of each device: who is to have access, and whom the driver has refused it.
constinit std::atomic<Devices> wanted[driver::kMaxDevices] = {};
constinit std::atomic<Devices> refused[driver::kMaxDevices] = {};

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

// The driver's no is final for this pair of devices, except when memory was short or the mapping
// vanished while it was asked.
void note_refusal(const MappedRange& range, CUdevice device, CUresult code) noexcept {
  if (code == CUDA_ERROR_OUT_OF_MEMORY || !registry::is_mapped(range)) return;
  wanted[range.device].fetch_and(~bit(device), std::memory_order_relaxed);
  if ((refused[range.device].fetch_or(bit(device), std::memory_order_relaxed) & bit(device)) != 0) {
    return;
  }
  log::warn(
      "device {} gets no access to vmm blocks of device {}: cuMemSetAccess answers {} {}; copies "
      "between the two still work, kernels of device {} cannot use those blocks",
      device, range.device, static_cast<int>(code), driver::error_name(code), device);
}

void grant(const MappedRange& range, Devices devices) noexcept {
  devices &= wanted[range.device].load(std::memory_order_relaxed);
  if (devices == 0 || set_access(range, devices) == CUDA_SUCCESS) return;
  for (; devices != 0; devices &= devices - 1) {
    const CUdevice device = std::countr_zero(devices);
    const CUresult code = set_access(range, bit(device));
    if (code != CUDA_SUCCESS) note_refusal(range, device, code);
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

// From now on `device` is to have access to memory of `owner`. False when it has or cannot.
bool want(CUdevice device, CUdevice owner) noexcept {
  if ((refused[owner].load(std::memory_order_relaxed) & bit(device)) != 0) return false;
  return (wanted[owner].fetch_or(bit(device), std::memory_order_seq_cst) & bit(device)) == 0;
}

[[gnu::noinline, gnu::cold]] bool use_first(CUdevice device) noexcept {
  const Devices others = used.fetch_or(bit(device), std::memory_order_seq_cst);
  if ((others & bit(device)) != 0) return false;
  bool more = false;
  for (Devices rest = others; rest != 0; rest &= rest - 1) {
    const CUdevice other = std::countr_zero(rest);
    if (driver::can_access_peer(device, other)) more |= want(device, other);
    if (driver::can_access_peer(other, device)) more |= want(other, device);
  }
  if (!more) return false;
  for_each_mapping([&](const MappedRange& range) {
    grant(range, range.device == device ? others : bit(device));
  });
  log::debug("device {} came into use: it shares vmm blocks with those in use before", device);
  return true;
}

}  // namespace

bool use(CUdevice device) noexcept {
  if (!in_range(device) || options().peers != PeerPolicy::automatic) return false;
  if ((used.load(std::memory_order_relaxed) & bit(device)) != 0) [[likely]]
    return false;
  return use_first(device);
}

void enable(CUdevice device, CUdevice owner) noexcept {
  if (!in_range(device) || !in_range(owner) || device == owner) return;
  if (options().peers == PeerPolicy::off) return;
  use(device);
  if (!want(device, owner)) return;
  for_each_mapping([&](const MappedRange& range) {
    if (range.device == owner) grant(range, bit(device));
  });
}

void share(const MappedRange& range) noexcept {
  if (!in_range(range.device)) return;
  const Devices devices = wanted[range.device].load(std::memory_order_seq_cst);
  if (devices != 0) [[unlikely]]
    grant(range, devices);
}

void forget() noexcept {
  used.store(0, std::memory_order_relaxed);
  for (int device = 0; device < driver::kMaxDevices; ++device) {
    wanted[device].store(0, std::memory_order_relaxed);
    refused[device].store(0, std::memory_order_relaxed);
  }
}

}  // namespace kvshim::peers
