// cuMemAllocManaged, guarded by what the host can give, then placed by CPU threads; see managed.h.
#include "memory/kinds/managed.h"

#include <atomic>

#include "base/clock.h"
#include "base/log.h"
#include "base/sizes.h"
#include "driver/errors.h"
#include "driver/functions.h"
#include "memory/host_budget.h"
#include "memory/placement.h"
#include "telemetry/counters.h"

namespace kvshim::managed {

namespace {

// Pages that blocks being placed right now will still take: without them two threads would both
// find the same memory available.
constinit std::atomic<std::uint64_t> being_placed{0};

constexpr std::uint64_t kBudgetCheckFrom = 64 * kMiB;  // smaller ones are not worth 50 us
constexpr std::uint64_t kPiece = 4 * kGiB;             // a progress line between pieces at most
constexpr std::uint64_t kProgressEveryUs = 5'000'000;

bool host_can_take(std::uint64_t bytes) noexcept {
  if (bytes < kBudgetCheckFrom) return true;
  const host_budget::Budget budget = host_budget::measure();
  const std::uint64_t promised = being_placed.load(std::memory_order_relaxed);
  if (budget.available >= promised && budget.available - promised >= bytes) return true;
  log::warn("a managed block of {} bytes ({}) refused: {} leaves {} bytes ({}), {} bytes of other "
            "blocks are being placed",
            bytes, format_size(bytes).c_str(), budget.limited_by, budget.available,
            format_size(budget.available).c_str(), promised);
  return false;
}

// Touches every page, with a progress line where it takes long.
void place(CUdeviceptr base, std::uint64_t bytes, int numa_node) noexcept {
  const std::uint64_t begun = clock_us();
  std::uint64_t said = begun;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t piece = bytes - done < kPiece ? bytes - done : kPiece;
    placement::fill(reinterpret_cast<void*>(base + done), piece, {}, numa_node);
    done += piece;
    const std::uint64_t now = clock_us();
    if (now - said >= kProgressEveryUs && done < bytes) {
      said = now;
      log::info("placing a managed block: {} of {}", format_size(done).c_str(),
                format_size(bytes).c_str());
    }
  }
  const std::uint64_t spent = clock_us() - begun;
  telemetry::counters.zero_bytes.fetch_add(bytes, std::memory_order_relaxed);
  telemetry::counters.zero_us.fetch_add(spent, std::memory_order_relaxed);
  log::info("placed {} of managed memory at {:#x} in {} ms with {} threads",
            format_size(bytes).c_str(), base, spent / 1000, placement::thread_count(bytes));
}

}  // namespace

CUresult create(driver::Device& device, std::uint64_t bytes, CUdeviceptr* out) noexcept {
  static constinit log::Once said[driver::kMaxDevices];
  if (!device.managed()) {
    if (said[device.ordinal()].first()) {
      log::warn("device {} has no managed memory that CPU and GPU may use at once: blocks meant to "
                "be managed become vmm there",
                device.ordinal());
    }
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!host_can_take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;

  CUdeviceptr base = 0;
  being_placed.fetch_add(bytes, std::memory_order_relaxed);
  const CUresult code = driver::cuMemAllocManaged(&base, bytes, CU_MEM_ATTACH_GLOBAL);
  if (code == CUDA_SUCCESS) {
    place(base, bytes, device.numa_node());
    *out = base;
  }
  being_placed.fetch_sub(bytes, std::memory_order_relaxed);
  if (driver::Device::is_refusal(code)) {
    if (device.refuse_managed()) {
      log::warn("device {}: cuMemAllocManaged answers {} {}; from now on blocks meant to be managed "
                "become vmm there",
                device.ordinal(), static_cast<int>(code), driver::error_name(code));
      said[device.ordinal()].first();
    }
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return code;
}

void forget() noexcept { being_placed.store(0, std::memory_order_relaxed); }

}  // namespace kvshim::managed
