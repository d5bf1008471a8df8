// See tally.h.
#include "memory/routing/tally.h"

#include <atomic>

#include "base/options.h"
#include "driver/device.h"
#include "memory/blocks/owner.h"
#include "telemetry/counters.h"

namespace kvshim::tally {

namespace {

using telemetry::counters;
constexpr auto relaxed = std::memory_order_relaxed;

struct Counts {
  std::atomic<std::uint64_t> blocks{0};
  std::atomic<std::uint64_t> bytes{0};

  Held held() const noexcept { return {blocks.load(relaxed), bytes.load(relaxed)}; }
  void add(std::uint64_t size) noexcept {
    blocks.fetch_add(1, relaxed);
    bytes.fetch_add(size, relaxed);
  }
};

constinit Counts process;
constinit Counts devices[driver::kMaxDevices];

Kind counted_kind(const Block& block) noexcept {
  return options().dry_run ? block.planned : block.kind;
}

telemetry::Amount& reason(const Route& route) noexcept {
  if (route.why == Why::rule) return counters.by_rule[route.rule - 1];
  return counters.by[static_cast<unsigned>(route.why)];
}

}  // namespace

Held of_process() noexcept {
  return process.held();
}

Held of_device(int ordinal) noexcept {
  return devices[ordinal].held();
}

void add(const Block& block, const Route& route) noexcept {
  counters.kinds[static_cast<unsigned>(counted_kind(block))].add(block.bytes);
  reason(route).add(block.bytes);
  if (options().rules.count == 0) return;
  process.add(block.bytes);
  devices[block.owner->device().ordinal()].add(block.bytes);
}

void remove(const Block& block) noexcept {
  counters.kinds[static_cast<unsigned>(counted_kind(block))].remove(block.bytes);
  if (options().rules.count == 0) return;
  process.bytes.fetch_sub(block.bytes, relaxed);
  devices[block.owner->device().ordinal()].bytes.fetch_sub(block.bytes, relaxed);
}

void forget() noexcept {
  const auto clear = [](Counts& counts) {
    counts.blocks.store(0, relaxed);
    counts.bytes.store(0, relaxed);
  };
  clear(process);
  for (Counts& device : devices) clear(device);
}

}  // namespace kvshim::tally
