// cuMemAllocManaged, guarded by what the host can give, then placed by CPU threads; see managed.h.
#include "memory/kinds/managed.h"

#include "base/log.h"
#include "base/sizes.h"
#include "driver/errors.h"
#include "driver/functions.h"
#include "driver/zero.h"
#include "memory/blocks/retired.h"
#include "memory/budget/device_room.h"
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

// The device's part of a block that is larger than what the host has.
class Front {
 public:
  explicit Front(CUdevice device) noexcept
      : device_(device), bytes_(device_room::claim_front(device)) {}
  ~Front() {
    if (!kept_) device_room::give_back_front(device_, bytes_);
  }
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;
  std::uint64_t bytes() const noexcept { return bytes_; }
  void keep() noexcept { kept_ = true; }

 private:
  CUdevice device_;
  std::uint64_t bytes_;
  bool kept_ = false;
};

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

  if (options().meminfo == MemInfo::with_spill) {
    // What was freed in stream order is in the way, here and there.
    if (retired::reap_all() != 0) return create(device, bytes, out, spilled);
    Front front(device.ordinal());
    // The whole of it may lie on the device: as another kind.
    if (bytes <= front.bytes()) {
      all.refuse(LogLevel::info);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    spill::Promise rest(device.ordinal(), bytes - front.bytes(), "managed");
    if (front.bytes() != 0 && rest.granted()) {
      all.refuse(LogLevel::info);
      log::info("{} of a managed block of {} go to the device, {} to host memory",
                format_size(front.bytes()).c_str(), format_size(bytes).c_str(),
                format_size(rest.bytes()).c_str());
      const CUresult code = make(device, bytes, rest, out, spilled);
      if (code == CUDA_SUCCESS) front.keep();
      return code;
    }
  }
  all.refuse(LogLevel::warn);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace kvshim::managed
