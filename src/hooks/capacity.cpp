// How much memory a device has and has free. The forms without `_v2` are those of CUDA before 3.2:
// 32-bit numbers, which cannot say more than 4 GiB.
#include "base/options.h"
#include "hooks/hook.h"
#include "memory/budget/spill.h"

using namespace kvshim;

namespace {

unsigned clamped(std::size_t bytes) {
  return bytes < ~0u ? static_cast<unsigned>(bytes) : ~0u;
}

bool adds_spill(const Reentry& guard) {
  return !pass_through(guard) && options().meminfo == MemInfo::with_spill;
}

}  // namespace

KVSHIM_HOOK_DEF CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const Reentry guard;
  if (pass_through(guard)) return real::cuMemGetInfo_v2(free, total);
  return engine::mem_info(free, total);
}

KVSHIM_HOOK_DEF CUresult cuMemGetInfo(unsigned* free, unsigned* total) {
  const Reentry guard;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const CUresult code = real::cuMemGetInfo(free, total);
  if (code != CUDA_SUCCESS || !adds_spill(guard) ||
      engine::mem_info(&free_bytes, &total_bytes) != CUDA_SUCCESS) {
    return code;
  }
  if (free != nullptr) *free = clamped(free_bytes);
  if (total != nullptr) *total = clamped(total_bytes);
  return code;
}

KVSHIM_HOOK_DEF CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  const Reentry guard;
  const CUresult code = real::cuDeviceTotalMem_v2(bytes, device);
  if (code == CUDA_SUCCESS && adds_spill(guard)) *bytes += spill::told(device).total;
  return code;
}

KVSHIM_HOOK_DEF CUresult cuDeviceTotalMem(unsigned* bytes, CUdevice device) {
  const Reentry guard;
  std::size_t total = 0;
  const CUresult code = real::cuDeviceTotalMem(bytes, device);
  if (code == CUDA_SUCCESS && adds_spill(guard) &&
      real::cuDeviceTotalMem_v2(&total, device) == CUDA_SUCCESS) {
    *bytes = clamped(total + spill::told(device).total);
  }
  return code;
}
