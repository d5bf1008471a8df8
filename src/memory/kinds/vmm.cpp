// The five VMM calls of a block and their undoing, step by step in reverse; see vmm.h. A block of
// the host kind (host.cpp) ends here too.
#include "memory/kinds/vmm.h"

#include "base/log.h"
#include "base/sizes.h"
#include "driver/errors.h"
#include "driver/functions.h"

namespace kvshim::vmm {

namespace {

// One refused undo step means leaked memory or a quarantined address: say so, carry on.
bool undo(const char* function, CUresult code, const Mapping& mapping) noexcept {
  if (code == CUDA_SUCCESS) return true;
  log::error("{} of {:#x} ({} bytes) failed: {} {}; the memory is lost to this process", function,
             mapping.base, mapping.bytes, static_cast<int>(code), driver::error_name(code));
  return false;
}

CUresult create_handle(driver::Device& device, Mapping* mapping) noexcept {
  for (;;) {
    const driver::HandleStep step = device.step();
    if (step == driver::HandleStep::unsupported) return CUDA_ERROR_NOT_SUPPORTED;
    const CUmemAllocationProp prop = device.properties(step);
    const CUresult code = driver::cuMemCreate(&mapping->handle, mapping->bytes, &prop, 0);
    // Only a refusal changes the handle type; out of memory never does.
    if (!driver::Device::is_refusal(code)) return code;
    device.step_down(step, code);
  }
}

// Gives the handle an address that the device may use.
CUresult attach(driver::Device& device, Mapping* mapping) noexcept {
  CUresult code = driver::cuMemAddressReserve(&mapping->base, mapping->bytes, 2 * kMiB, 0, 0);
  const char* failed = "cuMemAddressReserve";
  if (code == CUDA_SUCCESS) {
    bool free_address = true;
    code = driver::cuMemMap(mapping->base, mapping->bytes, 0, mapping->handle, 0);
    failed = "cuMemMap";
    if (code == CUDA_SUCCESS) {
      CUmemAccessDesc access{};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.location.id = device.ordinal();
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      code = driver::cuMemSetAccess(mapping->base, mapping->bytes, &access, 1);
      if (code == CUDA_SUCCESS) return CUDA_SUCCESS;
      failed = "cuMemSetAccess";
      free_address =
          undo("cuMemUnmap", driver::cuMemUnmap(mapping->base, mapping->bytes), *mapping);
    }
    if (free_address) {
      undo("cuMemAddressFree", driver::cuMemAddressFree(mapping->base, mapping->bytes), *mapping);
    }
  }
  // Some vGPU drivers promise VMM and refuse it here: then it is native memory for good.
  if (code == CUDA_ERROR_NOT_SUPPORTED || code == CUDA_ERROR_NOT_PERMITTED) {
    device.refuse_vmm(failed, code);
  }
  return code;
}

}  // namespace

CUresult create(driver::Device& device, std::uint64_t bytes, Mapping* out) noexcept {
  if (bytes > device.total_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  Mapping made;
  made.bytes = round_up(bytes, device.granularity());
  CUresult code = create_handle(device, &made);
  if (code != CUDA_SUCCESS) return code;
  code = attach(device, &made);
  if (code != CUDA_SUCCESS) {
    undo("cuMemRelease", driver::cuMemRelease(made.handle), made);
    return code;
  }
  *out = made;
  return CUDA_SUCCESS;
}

bool destroy(const Mapping& mapping) noexcept {
  const bool unmapped =
      undo("cuMemUnmap", driver::cuMemUnmap(mapping.base, mapping.bytes), mapping);
  const bool released =
      mapping.handle == 0 || undo("cuMemRelease", driver::cuMemRelease(mapping.handle), mapping);
  if (unmapped) {
    undo("cuMemAddressFree", driver::cuMemAddressFree(mapping.base, mapping.bytes), mapping);
  }
  return unmapped && released;
}

}  // namespace kvshim::vmm
