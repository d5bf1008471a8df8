// The process's counters; see counters.h.
#include "telemetry/counters.h"

#include <new>

namespace kvshim::telemetry {

constinit Counters counters;

void KindCounters::add(std::uint64_t size) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  blocks.fetch_add(1, relaxed);
  live.fetch_add(1, relaxed);
  bytes.fetch_add(size, relaxed);
  const std::uint64_t now = live_bytes.fetch_add(size, relaxed) + size;
  std::uint64_t peak = peak_bytes.load(relaxed);
  while (peak < now && !peak_bytes.compare_exchange_weak(peak, now, relaxed)) {
  }
}

void KindCounters::remove(std::uint64_t size) noexcept {
  live.fetch_sub(1, std::memory_order_relaxed);
  live_bytes.fetch_sub(size, std::memory_order_relaxed);
}

void note_real_memory(int device, std::uint64_t free, std::uint64_t total) noexcept {
  if (device < 0 || device >= driver::kMaxDevices) return;
  counters.devices[device].real_free.store(free, std::memory_order_relaxed);
  counters.devices[device].real_total.store(total, std::memory_order_relaxed);
}

void reset() noexcept {
  new (&counters) Counters{};
}

}  // namespace kvshim::telemetry
