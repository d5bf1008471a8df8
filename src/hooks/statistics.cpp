// The counters as a C interface; see include/kvshim/kvshim.h.
#include <string.h>

#include "kvshim/kvshim.h"
#include "telemetry/counters.h"

namespace {

using namespace kvshim;

std::uint64_t get(const telemetry::Count& count) {
  return count.load(std::memory_order_relaxed);
}

kvshim_amounts amounts(const telemetry::KindCounters& of) {
  return {get(of.blocks), get(of.live), get(of.bytes), get(of.live_bytes), get(of.peak_bytes)};
}

// A caller may have been compiled with an older or a newer struct than ours.
template <typename Stats>
int give(const Stats& stats, Stats* out, std::size_t size) {
  if (out == nullptr || size == 0) return 1;
  const std::size_t known = size < sizeof(stats) ? size : sizeof(stats);
  memcpy(out, &stats, known);
  memset(reinterpret_cast<char*>(out) + known, 0, size - known);
  return 0;
}

}  // namespace

#define KVSHIM_PUBLIC extern "C" __attribute__((visibility("default")))

KVSHIM_PUBLIC int kvshim_get_stats(kvshim_stats* out, std::size_t size) {
  const auto of = [](Kind kind) {
    return amounts(telemetry::counters.kinds[static_cast<unsigned>(kind)]);
  };
  const kvshim_stats stats{of(Kind::native),
                           of(Kind::vmm),
                           of(Kind::managed),
                           of(Kind::host),
                           get(telemetry::counters.fallbacks),
                           get(telemetry::counters.out_of_memory)};
  return give(stats, out, size);
}

KVSHIM_PUBLIC int kvshim_get_device_stats(int device, kvshim_device_stats* out, std::size_t size) {
  if (device < 0 || device >= driver::kMaxDevices) return 1;
  const telemetry::DeviceCounters& counters = telemetry::counters.devices[device];
  const driver::Device* used = driver::used_device(device);
  const std::uint64_t asked = get(counters.real_total);
  const std::uint64_t total = asked != 0 || used == nullptr ? asked : used->total_bytes();
  return give({total, get(counters.real_free), get(counters.told), amounts(counters.spilled)}, out,
              size);
}
