// Blocking allocation and free, and the host's own cuMemCreate and cuMemAllocManaged (counted only,
// arguments untouched).
#include "base/log.h"
#include "base/options.h"
#include "base/sizes.h"
#include "hooks/hook.h"
#include "telemetry/counters.h"

using namespace kvshim;

namespace {

// The size of cuMemAlloc memory of the driver's own; 0 for all other kinds (pools, managed, VMM)
// and for what is no memory. Such memory was allocated by a caller that no preload reaches.
std::size_t plain_bytes(CUdeviceptr ptr) {
  unsigned legacy_ipc = 0;  // only cuMemAlloc memory has it; the driver may write one byte or four
  std::size_t bytes = 0;
  if (real::cuPointerGetAttribute(&legacy_ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                  ptr) != CUDA_SUCCESS ||
      (legacy_ipc & 0xff) == 0 ||
      real::cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr) != CUDA_SUCCESS) {
    return 0;
  }
  return bytes;
}

}  // namespace

KVSHIM_HOOK_DEF CUresult cuMemAlloc_v2(CUdeviceptr* out, std::size_t bytes) {
  const Reentry guard;
  if (pass_through(guard) || out == nullptr || bytes == 0) return real::cuMemAlloc_v2(out, bytes);
  return engine::allocate(out, bytes);
}

KVSHIM_HOOK_DEF CUresult cuMemAllocPitch_v2(CUdeviceptr* out, std::size_t* pitch, std::size_t width,
                                            std::size_t height, unsigned element) {
  const Reentry guard;
  // Rows are a multiple of 512 bytes apart, for every element size that the driver takes
  // (measured).
  constexpr std::size_t kPitch = 512;
  const bool understood = element == 4 || element == 8 || element == 16;
  std::size_t bytes = 0;
  if (pass_through(guard) || out == nullptr || pitch == nullptr || !understood || width == 0 ||
      width > (1ull << 48) || __builtin_mul_overflow(round_up(width, kPitch), height, &bytes) ||
      bytes == 0) {
    return real::cuMemAllocPitch_v2(out, pitch, width, height, element);
  }
  if (options().dry_run) {
    const CUresult code = real::cuMemAllocPitch_v2(out, pitch, width, height, element);
    if (code == CUDA_SUCCESS) engine::note_dry(*out, *pitch * height);
    return code;
  }
  const CUresult code = engine::allocate(out, bytes);
  if (code == CUDA_SUCCESS) *pitch = round_up(width, kPitch);
  return code;
}

KVSHIM_HOOK_DEF CUresult cuMemFree_v2(CUdeviceptr ptr) {
  const Reentry guard;
  CUresult result = CUDA_SUCCESS;
  if (pass_through(guard) || ptr == 0) return real::cuMemFree_v2(ptr);
  if (engine::free(ptr, &result)) return result;
  const std::size_t unseen = plain_bytes(ptr);
  result = real::cuMemFree_v2(ptr);
  if (result == CUDA_SUCCESS && unseen != 0) {
    telemetry::counters.unseen.add(unseen);
    static constinit log::Once said;
    if (said.first()) {
      log::warn(
          "memory of {} bytes is freed that was allocated past kvshim: is a plugin loaded with "
          "RTLD_DEEPBIND?",
          unseen);
    }
  }
  return result;
}

KVSHIM_HOOK_DEF CUresult cuMemAllocManaged(CUdeviceptr* out, std::size_t bytes, unsigned flags) {
  const Reentry guard;
  const CUresult code =
      once_more([&] { return real::cuMemAllocManaged(out, bytes, flags); }, guard);
  if (code == CUDA_SUCCESS && !pass_through(guard)) {
    telemetry::counters.own_managed.add(bytes);
    engine::note_use();
  }
  return code;
}

KVSHIM_HOOK_DEF CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                                     const CUmemAllocationProp* prop, unsigned long long flags) {
  const Reentry guard;
  const CUresult code =
      once_more([&] { return real::cuMemCreate(handle, bytes, prop, flags); }, guard);
  if (code == CUDA_SUCCESS && !pass_through(guard)) {
    telemetry::counters.own_vmm.add(bytes);
    engine::note_use();
  }
  return code;
}
