// cuMemAllocManaged, guarded by what the host can give, then placed by CPU threads; see managed.h.
#include "memory/kinds/managed.h"

#include "base/log.h"
#include "base/sizes.h"
#include "driver/errors.h"
#include "driver/functions.h"
#include "driver/zero.h"
#include "memory/budget/spill.h"
#include "memory/kinds/placement.h"
#include "memory/kinds/progress.h"
#include "memory/kinds/residency.h"
#include "telemetry/counters.h"

namespace kvshim::managed {

namespace {

// Touches every page, with a progress line where it takes long. False when the host's memory became
// short meanwhile: the block is to be given up.
bool place(CUdeviceptr base, std::uint64_t bytes, int numa_node, spill::Promise& promise) noexcept {
  Progress progress("placing a managed block", bytes);
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t piece = promise.next_piece();
    if (piece == 0) return false;
    placement::fill(reinterpret_cast<void*>(base + done), piece, {}, numa_node);
    done += piece;
    promise.placed(piece);
    progress.at(done);
  }
  const std::uint64_t spent = progress.spent_us();
  telemetry::counters.zero_bytes.fetch_add(bytes, std::memory_order_relaxed);
  telemetry::counters.zero_us.fetch_add(spent, std::memory_order_relaxed);
  log::info("placed {} of managed memory at {:#x} in {} ms with {} threads",
            format_size(bytes).c_str(), base, spent / 1000, placement::thread_count(bytes));
  return true;
}

// Free memory of the current device that a block may take; a little stays for small blocks.
std::uint64_t device_room() noexcept {
  std::size_t free = 0;
  std::size_t total = 0;
  if (driver::cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS) return 0;
  const std::uint64_t room = free - free / 16;
  return room - room % (2 * kMiB);
}

CUresult unsupported(driver::Device& device, CUresult code) noexcept {
  static constinit log::Once said[driver::kMaxDevices];
  const bool refused = code != CUDA_SUCCESS && device.refuse_managed();
  if (!said[device.ordinal()].first()) return CUDA_ERROR_NOT_SUPPORTED;
  if (refused) {
    log::warn(
        "device {}: cuMemAllocManaged answers {} {}; from now on blocks meant to be managed "
        "become vmm there",
        device.ordinal(), static_cast<int>(code), driver::error_name(code));
  } else {
    log::warn(
        "device {} has no managed memory that CPU and GPU may use at once: blocks meant to "
        "be managed become vmm there",
        device.ordinal());
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

// Allocates `bytes` and places them, the last promise.bytes() of them in host memory.
CUresult make(driver::Device& device, std::uint64_t bytes, spill::Promise& promise,
              CUdeviceptr* out, std::uint64_t* spilled) noexcept {
  CUdeviceptr base = 0;
  CUresult code = driver::cuMemAllocManaged(&base, bytes, CU_MEM_ATTACH_GLOBAL);
  if (driver::Device::is_refusal(code)) return unsupported(device, code);
  if (code != CUDA_SUCCESS) return code;
  const std::uint64_t in_front = bytes - promise.bytes();
  // A device memset as the first touch puts the pages on the device.
  if (in_front != 0) code = driver::zero(base, in_front);
  if (code == CUDA_SUCCESS &&
      !place(base + in_front, promise.bytes(), device.numa_node(), promise)) {
    code = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (code != CUDA_SUCCESS) {
    const CUresult freed = driver::cuMemFree_v2(base);
    if (freed != CUDA_SUCCESS) {
      log::error(
          "cuMemFree of a managed block at {:#x} ({} bytes) failed: {} {}; the memory is "
          "lost to this process",
          base, bytes, static_cast<int>(freed), driver::error_name(freed));
      promise.keep();  // lost memory stays counted
    }
    return code;
  }
  promise.keep();
  residency::settle(device, base + in_front, promise.bytes());
  *out = base;
  *spilled = promise.bytes();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult create(driver::Device& device, std::uint64_t bytes, CUdeviceptr* out,
                std::uint64_t* spilled) noexcept {
  if (!device.managed()) return unsupported(device, CUDA_SUCCESS);
  spill::Promise all(device.ordinal(), bytes, "managed");
  if (all.granted()) return make(device, bytes, all, out, spilled);

  const std::uint64_t room = options().meminfo == MemInfo::with_spill ? device_room() : 0;
  if (bytes <= room) {
    all.refuse(LogLevel::info);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (room != 0) {
    spill::Promise rest(device.ordinal(), bytes - room, "managed");
    if (rest.granted()) {
      all.refuse(LogLevel::info);
      log::info("{} of a managed block of {} go to the device, {} to host memory",
                format_size(room).c_str(), format_size(bytes).c_str(),
                format_size(bytes - room).c_str());
      return make(device, bytes, rest, out, spilled);
    }
  }
  all.refuse(LogLevel::warn);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace kvshim::managed
