// See tally.h.
#include "memory/routing/tally.h"

#include "base/lock.h"
#include "base/options.h"
#include "driver/device.h"
#include "memory/blocks/owner.h"
#include "memory/budget/device_room.h"
#include "telemetry/counters.h"

namespace kvshim::tally {

namespace {

using telemetry::counters;

constinit Lock lock;
constinit Held process;
constinit Held devices[driver::kMaxDevices];

void add(int device, std::uint64_t blocks, std::uint64_t bytes) noexcept {  // with the lock held
  for (Held* held : {&process, &devices[device]}) {
    held->blocks += blocks;
    held->bytes += bytes;
  }
}

Kind counted_kind(const Block& block) noexcept {
  return options().dry_run ? block.planned : block.kind;
}

telemetry::Amount& reason(const Route& route) noexcept {
  if (route.why == Why::rule) return counters.by_rule[route.rule - 1];
  return counters.by[static_cast<unsigned>(route.why)];
}

}  // namespace

Before look(int device) noexcept {
  if (!options().rules.counting) return {};
  const Guard guard(lock);
  return {process, devices[device]};
}

Before reserve(int device, std::uint64_t bytes) noexcept {
  if (!options().rules.counting) return {};
  const Guard guard(lock);
  const Before before{process, devices[device]};
  add(device, 1, bytes);
  return before;
}

void cancel(int device, std::uint64_t bytes) noexcept {
  if (!options().rules.counting) return;
  const Guard guard(lock);
  add(device, -1ull, -bytes);
}

void add(const Block& block, const Route& route) noexcept {
  counters.kinds[static_cast<unsigned>(counted_kind(block))].add(block.bytes);
  reason(route).add(block.bytes);
}

void remove(const Block& block) noexcept {
  counters.kinds[static_cast<unsigned>(counted_kind(block))].remove(block.bytes);
  const CUdevice device = block.owner->device().ordinal();
  const std::uint64_t there = block.bytes > block.spilled ? block.bytes - block.spilled : 0;
  if (block.kind == Kind::managed) {
    device_room::give_back_front(device, there);
  } else if (block.kind != Kind::host) {
    device_room::give_back(device, there);
  }
  if (!options().rules.counting) return;
  const Guard guard(lock);
  add(device, 0, -block.bytes);
}

void forget() noexcept {
  lock.renew();
  process = {};
  for (Held& device : devices) device = {};
}

}  // namespace kvshim::tally
