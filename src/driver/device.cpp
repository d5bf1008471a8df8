// See device.h. Attributes are hints: where FABRIC_SUPPORTED is 1 creation can still fail with 800
// (no IMEX channel, measured on an H200), so the best handle type is proved by a real allocation.
#include "driver/device.h"

#include <fcntl.h>
#include <unistd.h>

#include <new>

#include "base/lock.h"
#include "base/log.h"
#include "base/sizes.h"
#include "driver/errors.h"
#include "driver/functions.h"

namespace kvshim::driver {

namespace {

constinit Device devices[kMaxDevices];
constinit Lock publish_lock;

// An attribute that an old driver does not know is answered with an error: that means no.
int attribute(CUdevice ordinal, CUdevice_attribute which, int otherwise = 0) noexcept {
  int value = otherwise;
  return cuDeviceGetAttribute(&value, which, ordinal) == CUDA_SUCCESS ? value : otherwise;
}

// The kernel's word for the device's NUMA node; -1 where it has none (virtual machines).
int sysfs_numa_node(CUdevice ordinal) noexcept {
  char bus_id[32] = {};
  if (cuDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal) != CUDA_SUCCESS) return -1;
  for (char& c : bus_id) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  }
  char path[96];
  format_into(path, "/sys/bus/pci/devices/{}/numa_node", static_cast<const char*>(bus_id));
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  char text[16] = {};
  const ssize_t got = read(file, text, sizeof(text) - 1);
  close(file);
  if (got <= 0 || text[0] < '0' || text[0] > '9') return -1;
  int node = 0;
  for (const char* c = text; *c >= '0' && *c <= '9'; ++c) node = node * 10 + (*c - '0');
  return node;
}

}  // namespace

const char* handle_step_name(HandleStep step) noexcept {
  constexpr const char* names[] = {"fabric handle", "POSIX FD, RDMA", "POSIX FD", "no export",
                                   "not supported"};
  return names[static_cast<unsigned>(step)];
}

bool Device::is_refusal(CUresult code) noexcept {
  // Seen in the field for FABRIC without an IMEX channel and for VMM under vGPU: 800, 801, 1, 999.
  return code == CUDA_ERROR_NOT_PERMITTED || code == CUDA_ERROR_NOT_SUPPORTED ||
         code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_UNKNOWN;
}

CUmemAllocationProp Device::properties(HandleStep step) const noexcept {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = facts_.ordinal;
  if (step == HandleStep::fabric) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  if (step == HandleStep::posix_rdma || step == HandleStep::posix) {
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  const bool with_rdma = step == HandleStep::fabric || step == HandleStep::posix_rdma;
  prop.allocFlags.gpuDirectRDMACapable = with_rdma && facts_.rdma ? 1 : 0;
  return prop;
}

HandleStep Device::next(HandleStep step) const noexcept {
  switch (step) {
    case HandleStep::fabric:
      if (facts_.posix && facts_.rdma) return HandleStep::posix_rdma;
      [[fallthrough]];
    case HandleStep::posix_rdma:
      if (facts_.posix) return HandleStep::posix;
      [[fallthrough]];
    case HandleStep::posix:
      return HandleStep::none;
    default:
      return HandleStep::unsupported;
  }
}

void Device::step_down(HandleStep step, CUresult code) noexcept {
  HandleStep expected = step;
  const HandleStep lower = next(step);
  if (step == HandleStep::fabric) {
    fabric_refusal_name_.store(error_name(code), std::memory_order_relaxed);
    fabric_refusal_.store(code, std::memory_order_relaxed);
  }
  if (!step_.compare_exchange_strong(expected, lower, std::memory_order_relaxed)) return;
  // A fabric handle that only the attribute promised is the common case and no cause for alarm,
  // unless somebody asked for it by name.
  const bool expected_so = step == HandleStep::fabric && options().handle != HandleChoice::fabric;
  const LogLevel level = expected_so ? LogLevel::info : LogLevel::warn;
  log::print(level, "device {}: the driver refused {} memory ({} {}); from now on: {}{}",
             facts_.ordinal, handle_step_name(step), static_cast<int>(code), error_name(code),
             lower == HandleStep::unsupported ? "native cuMemAlloc" : handle_step_name(lower),
             lower == HandleStep::unsupported ? " (this memory cannot be exported)" : "");
}

void Device::refuse_vmm(const char* function, CUresult code) noexcept {
  if (step_.exchange(HandleStep::unsupported, std::memory_order_relaxed) ==
      HandleStep::unsupported) {
    return;
  }
  log::warn("device {}: {} answers {} {}; from now on vmm blocks are native cuMemAlloc ones",
            facts_.ordinal, function, static_cast<int>(code), error_name(code));
}

// Asked with the very properties that blocks are created with: it may depend on them.
void Device::ask_granularity() noexcept {
  const CUmemAllocationProp prop = properties(step());
  std::size_t granularity = 0;
  if (cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
          CUDA_SUCCESS ||
      granularity == 0) {
    granularity = 2 * kMiB;
  }
  // Never below 2 MiB: blocks from there up own their handle, smaller ones share a slab of it.
  facts_.granularity = round_up(granularity, 2 * kMiB);
}

void Device::prove_fabric() noexcept {
  const CUmemAllocationProp prop = properties(HandleStep::fabric);
  CUmemGenericAllocationHandle handle = 0;
  CUresult code = cuMemCreate(&handle, facts_.granularity, &prop, 0);
  if (code == CUDA_SUCCESS) {
    // Creation can succeed where the export fails: only the export proves it.
    alignas(16) unsigned char exported[64];
    code = cuMemExportToShareableHandle(exported, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0);
    cuMemRelease(handle);
  }
  // Out of memory says nothing about the handle type: the first real allocation will tell.
  if (code != CUDA_SUCCESS && code != CUDA_ERROR_OUT_OF_MEMORY) step_down(HandleStep::fabric, code);
}

void Device::ask(CUdevice ordinal) noexcept {
  facts_.ordinal = ordinal;
  std::size_t total = 0;
  if (cuDeviceTotalMem_v2(&total, ordinal) == CUDA_SUCCESS) facts_.total_bytes = total;
  facts_.rdma =
      attribute(ordinal, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
  facts_.posix =
      attribute(ordinal, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  facts_.fabric = attribute(ordinal, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0;
  facts_.numa_node = attribute(ordinal, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
  if (facts_.numa_node < 0) facts_.numa_node = sysfs_numa_node(ordinal);
  facts_.host_page_tables =
      attribute(ordinal, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES) != 0;
  managed_.store(attribute(ordinal, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) != 0 &&
                     attribute(ordinal, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != 0,
                 std::memory_order_relaxed);

  const HandleChoice choice = options().handle;
  HandleStep step = HandleStep::unsupported;
  if (attribute(ordinal, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0) {
    const bool want_fabric = choice == HandleChoice::automatic || choice == HandleChoice::fabric;
    if (want_fabric && facts_.fabric) {
      step = HandleStep::fabric;
    } else {
      step = choice == HandleChoice::none ? HandleStep::none : next(HandleStep::fabric);
    }
  }
  step_.store(step, std::memory_order_relaxed);
  if (choice == HandleChoice::fabric && !facts_.fabric) {
    log::warn("KVSHIM_HANDLE=fabric: device {} has no fabric handles", ordinal);
  }
  if (step == HandleStep::unsupported) {
    log::warn("device {} has no virtual memory management: vmm blocks are native ones here",
              ordinal);
    return;
  }
  ask_granularity();
  if (step == HandleStep::fabric && !options().dry_run) {
    prove_fabric();
    ask_granularity();
  }
}

Device* device(CUdevice ordinal) {
  if (ordinal < 0 || ordinal >= kMaxDevices) return nullptr;
  Device& slot = devices[ordinal];
  if (slot.ready_.load(std::memory_order_acquire)) [[likely]]
    return &slot;
  // Asking needs the driver, so no lock: two threads may both ask, the first one is kept.
  Device asked;
  asked.ask(ordinal);
  const Guard guard(publish_lock);
  if (!slot.ready_.load(std::memory_order_relaxed)) {
    slot.facts_ = asked.facts_;
    slot.managed_.store(asked.managed(), std::memory_order_relaxed);
    slot.step_.store(asked.step(), std::memory_order_relaxed);
    slot.fabric_refusal_.store(asked.fabric_refusal(), std::memory_order_relaxed);
    slot.fabric_refusal_name_.store(asked.fabric_refusal_name(), std::memory_order_relaxed);
    slot.ready_.store(true, std::memory_order_release);
  }
  return &slot;
}

const Device* used_device(int index) noexcept {
  if (index < 0 || index >= kMaxDevices) return nullptr;
  const Device& slot = devices[index];
  return slot.ready_.load(std::memory_order_acquire) ? &slot : nullptr;
}

void forget_devices() noexcept {
  publish_lock.renew();
  for (Device& slot : devices) new (&slot) Device{};
}

}  // namespace kvshim::driver
