// NVML's figures of a device's memory. The real function answers; where this process may use the
// device by CUDA, what KVSHIM_MEMINFO=virtual adds is added here too, and what kvshim keeps for
// later blocks, so that a program that asks both (vLLM does) hears the same. Before cuInit, and for
// devices that CUDA does not show to this process, the real answer stands.
#include "hooks/nvml.h"

#include "base/format.h"
#include "base/options.h"
#include "driver/loaded_object.h"
#include "hooks/hook.h"
#include "memory/budget/device_room.h"
#include "memory/budget/spill.h"

using namespace kvshim;

namespace {

constexpr nvmlReturn_t kSuccess = 0;
constexpr nvmlReturn_t kLibraryNotFound = 12;  // NVML_ERROR_LIBRARY_NOT_FOUND
constexpr unsigned kVersion2 = static_cast<unsigned>(sizeof(nvmlMemory_v2_t)) | 2u << 24;

// A program may unload NVML and load it again.
constinit driver::FunctionOf memory_info{"libnvidia-ml.so", "nvmlDeviceGetMemoryInfo"};
constinit driver::FunctionOf memory_info_v2{"libnvidia-ml.so", "nvmlDeviceGetMemoryInfo_v2"};
constinit driver::FunctionOf pci_info{"libnvidia-ml.so", "nvmlDeviceGetPciInfo_v3"};

template <typename... Args>
nvmlReturn_t call(driver::FunctionOf& function, Args... args) {
  void* const real = function.get();
  if (real == nullptr) return kLibraryNotFound;
  return reinterpret_cast<nvmlReturn_t (*)(Args...)>(real)(args...);
}

// NVML counts all devices of the machine, CUDA those of CUDA_VISIBLE_DEVICES: the bus says which
// is which.
bool ordinal_of(nvmlDevice_t device, CUdevice* ordinal) {
  nvmlPciInfo_t pci{};
  char bus_id[32];
  if (call(pci_info, device, &pci) != kSuccess) return false;
  format_into(bus_id, "{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
  return driver::cuDeviceGetByPCIBusId(ordinal, bus_id) == CUDA_SUCCESS;
}

// As engine::mem_info has it. `total` is free + used (+ reserved) before and after.
template <typename Memory>
void add(nvmlDevice_t device, Memory* memory) {
  CUdevice ordinal = 0;
  if (!ordinal_of(device, &ordinal)) return;
  const spill::Told extra = spill::told(ordinal);
  unsigned long long held = engine::held_bytes(ordinal);
  if (held > memory->used) held = memory->used;
  // The place of a block that the driver has moved elsewhere for the moment is taken.
  const unsigned long long left = device_room::left(ordinal);
  const unsigned long long taken = memory->free + held > left ? memory->free + held - left : 0;
  memory->free -= taken < memory->free ? taken : memory->free;
  memory->used += taken;
  memory->total += extra.total;
  memory->free += extra.free + held;
  memory->used += extra.total - extra.free - held;
}

// Said before the real function is asked: what stream-ordered frees have let go of is given back
// first, as for cuMemGetInfo.
bool adds(const Reentry& guard) {
  if (!options().nvml || options().meminfo != MemInfo::with_spill || pass_through(guard)) {
    return false;
  }
  retired::reap_all();
  return true;
}

}  // namespace

KVSHIM_HOOK_DEF nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const Reentry guard;
  const bool more = adds(guard);
  const nvmlReturn_t code = call(memory_info, device, memory);
  if (more && code == kSuccess) add(device, memory);
  return code;
}

KVSHIM_HOOK_DEF nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device,
                                                        nvmlMemory_v2_t* memory) {
  const Reentry guard;
  const bool more = adds(guard);
  const nvmlReturn_t code = call(memory_info_v2, device, memory);
  if (more && code == kSuccess && memory->version == kVersion2) add(device, memory);
  return code;
}
