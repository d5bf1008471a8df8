// See host_memory.h.
#include "driver/host_memory.h"

#include <new>

#include "base/lock.h"
#include "base/log.h"
#include "base/sizes.h"
#include "driver/errors.h"
#include "driver/functions.h"

namespace kvshim::driver {

namespace {

constinit HostMemory records[kMaxDevices];
constinit Lock publish_lock;

HandleStep next(HandleStep step) noexcept {
  if (step == HandleStep::fabric) return HandleStep::posix;
  return step == HandleStep::posix ? HandleStep::none : HandleStep::unsupported;
}

// Where the device's own memory is exported, that of the host is tried in the same way.
HandleStep first(HandleStep device_step) noexcept {
  return device_step == HandleStep::posix_rdma ? HandleStep::posix : device_step;
}

}  // namespace

CUmemAllocationProp HostMemory::properties(HandleStep step) const noexcept {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  prop.location.id = facts_.node;
  if (step == HandleStep::fabric) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  if (step == HandleStep::posix) {
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  return prop;
}

void HostMemory::step_down(HandleStep step, const char* function, CUresult code) noexcept {
  HandleStep expected = step;
  const HandleStep lower = next(step);
  if (lower == HandleStep::unsupported) {
    refuse(function, code);
  } else if (step_.compare_exchange_strong(expected, lower, std::memory_order_relaxed)) {
    log::info("device {}: {} of host memory with a {} answers {} {}; from now on: {}",
              facts_.device, function, handle_step_name(step), static_cast<int>(code),
              error_name(code), handle_step_name(lower));
  }
}

void HostMemory::refuse(const char* function, CUresult code) noexcept {
  if (step_.exchange(HandleStep::unsupported, std::memory_order_relaxed) ==
      HandleStep::unsupported) {
    return;
  }
  log::warn(
      "device {}: {} answers {} {} for memory of host NUMA node {}; from now on blocks meant to be "
      "host memory become managed there",
      facts_.device, function, static_cast<int>(code), error_name(code), facts_.node);
}

void HostMemory::refuse_cpu_access(CUresult code) noexcept {
  if (!cpu_access_.exchange(false, std::memory_order_relaxed)) return;
  log::info("device {}: the CPU gets no access to host memory ({} {}): the device zeroes it",
            facts_.device, static_cast<int>(code), error_name(code));
}

void HostMemory::ask(const Device& device) noexcept {
  facts_.device = device.ordinal();
  facts_.node = device.numa_node() < 0 ? 0 : device.numa_node();
  int supported = 0;
  const CUresult code = cuDeviceGetAttribute(
      &supported, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
      device.ordinal());
  if (code != CUDA_SUCCESS || supported == 0 || !device.vmm()) {
    log::warn(
        "device {} has no virtual memory management for host memory: blocks meant to be host "
        "memory become managed there",
        device.ordinal());
    return;
  }
  const HandleStep step = first(device.step());
  step_.store(step, std::memory_order_relaxed);
  const CUmemAllocationProp prop = properties(step);
  std::size_t granularity = 0;
  if (cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
      CUDA_SUCCESS) {
    granularity = 0;
  }
  // A fabric handle may need larger pages than the kind it steps down to: the largest fits all.
  if (granularity < device.granularity()) granularity = device.granularity();
  facts_.granularity = round_up(granularity, 2 * kMiB);
}

HostMemory& host_memory(const Device& device) noexcept {
  HostMemory& slot = records[device.ordinal()];
  if (slot.ready_.load(std::memory_order_acquire)) [[likely]]
    return slot;
  // As in device(): two threads may both ask, the first one is kept.
  HostMemory asked;
  asked.ask(device);
  const Guard guard(publish_lock);
  if (!slot.ready_.load(std::memory_order_relaxed)) {
    slot.facts_ = asked.facts_;
    slot.step_.store(asked.step(), std::memory_order_relaxed);
    slot.ready_.store(true, std::memory_order_release);
  }
  return slot;
}

const HostMemory* used_host_memory(int ordinal) noexcept {
  if (ordinal < 0 || ordinal >= kMaxDevices) return nullptr;
  const HostMemory& slot = records[ordinal];
  return slot.ready_.load(std::memory_order_acquire) ? &slot : nullptr;
}

void forget_host_memory() noexcept {
  publish_lock.renew();
  for (HostMemory& slot : records) new (&slot) HostMemory{};
}

}  // namespace kvshim::driver
