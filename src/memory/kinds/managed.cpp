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
#include "memory/residency.h"
#include "telemetry/counters.h"

namespace kvshim::managed {

namespace {

// Bytes that blocks being placed right now will still take: without them two threads would both
// find the same memory available. Other processes are caught by measuring again before every piece.
constinit std::atomic<std::uint64_t> to_place{0};
// Bytes of small blocks since the last measurement.
constinit std::atomic<std::uint64_t> unmeasured{0};

constexpr std::uint64_t kMeasureEvery = 8 * kMiB;  // measuring costs some 50 us, placing this 1 ms
constexpr std::uint64_t kProcesses = 16;           // that may measure at once, one a device
constexpr std::uint64_t kMostPiece = kGiB;         // placed between two measurements
constexpr std::uint64_t kProgressEveryUs = 5'000'000;

// What the host can give now, without what this and other processes may take unmeasured, and with a
// little left for everybody else.
host_budget::Budget measure() noexcept {
  host_budget::Budget budget = host_budget::measure();
  std::uint64_t left = budget.available / 50;
  if (left < kProcesses * kMeasureEvery) left = kProcesses * kMeasureEvery;
  budget.available -= left < budget.available ? left : budget.available;
  return budget;
}

// What to place before the next measurement: processes that have found the same memory available do
// not pass the limit together.
std::uint64_t piece_of(std::uint64_t rest, std::uint64_t available) noexcept {
  std::uint64_t piece = available / kProcesses / kMeasureEvery * kMeasureEvery;
  if (piece < kMeasureEvery) piece = kMeasureEvery;
  if (piece > kMostPiece) piece = kMostPiece;
  return rest < piece ? rest : piece;
}

void refuse(std::uint64_t bytes, std::uint64_t promised, const host_budget::Budget& budget,
            const char* when) noexcept {
  log::warn(
      "a managed block of {} bytes ({}) refused: {} leaves {} bytes ({}), other blocks being "
      "placed will take {} ({})",
      bytes, format_size(bytes).c_str(), budget.limited_by, budget.available,
      format_size(budget.available).c_str(), promised, when);
}

// Promises `bytes` to the caller if the host has them beyond what is promised already. Says what
// was available, where it was measured.
bool promise(std::uint64_t bytes, std::uint64_t* available) noexcept {
  const std::uint64_t promised = to_place.fetch_add(bytes, std::memory_order_acq_rel) + bytes;
  if (bytes < kMeasureEvery) {
    if (unmeasured.fetch_add(bytes, std::memory_order_relaxed) + bytes < kMeasureEvery) return true;
    unmeasured.store(0, std::memory_order_relaxed);
  }
  const host_budget::Budget budget = measure();
  *available = budget.available;
  if (promised >= bytes && promised <= budget.available) return true;
  to_place.fetch_sub(bytes, std::memory_order_acq_rel);
  refuse(bytes, promised - bytes, budget, "before a page was touched");
  return false;
}

// Touches every page, with a progress line where it takes long. False when the host's memory became
// short meanwhile: the block is to be given up. Takes its promise back piece by piece.
bool place(CUdeviceptr base, std::uint64_t bytes, int numa_node, std::uint64_t available) noexcept {
  const std::uint64_t begun = clock_us();
  std::uint64_t said = begun;
  for (std::uint64_t done = 0; done < bytes;) {
    if (done != 0) {
      const host_budget::Budget budget = measure();
      available = budget.available;
      if (available < piece_of(bytes - done, available)) {
        to_place.fetch_sub(bytes - done, std::memory_order_acq_rel);
        refuse(bytes, 0, budget, "while it was placed");
        return false;
      }
    }
    const std::uint64_t piece = piece_of(bytes - done, available);
    placement::fill(reinterpret_cast<void*>(base + done), piece, {}, numa_node);
    done += piece;
    to_place.fetch_sub(piece, std::memory_order_acq_rel);
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
  return true;
}

}  // namespace

CUresult create(driver::Device& device, std::uint64_t bytes, CUdeviceptr* out) noexcept {
  static constinit log::Once said[driver::kMaxDevices];
  if (!device.managed()) {
    if (said[device.ordinal()].first()) {
      log::warn(
          "device {} has no managed memory that CPU and GPU may use at once: blocks meant to "
          "be managed become vmm there",
          device.ordinal());
    }
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  std::uint64_t available = 0;
  if (!promise(bytes, &available)) return CUDA_ERROR_OUT_OF_MEMORY;

  CUdeviceptr base = 0;
  const CUresult code = driver::cuMemAllocManaged(&base, bytes, CU_MEM_ATTACH_GLOBAL);
  if (code == CUDA_SUCCESS) {
    if (!place(base, bytes, device.numa_node(), available)) {
      driver::cuMemFree_v2(base);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    residency::settle(device, base, bytes);
    *out = base;
    return code;
  }
  to_place.fetch_sub(bytes, std::memory_order_acq_rel);
  if (driver::Device::is_refusal(code)) {
    if (device.refuse_managed()) {
      log::warn(
          "device {}: cuMemAllocManaged answers {} {}; from now on blocks meant to be managed "
          "become vmm there",
          device.ordinal(), static_cast<int>(code), driver::error_name(code));
      said[device.ordinal()].first();
    }
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return code;
}

void forget() noexcept {
  to_place.store(0, std::memory_order_relaxed);
  unmeasured.store(0, std::memory_order_relaxed);
}

}  // namespace kvshim::managed
