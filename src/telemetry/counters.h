// What happened, as plain atomic numbers. Written by the engine and the hooks, read by the summary.
// Relaxed order throughout: these are statistics, nothing is decided by them.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/kind.h"
#include "base/rules.h"
#include "base/why.h"
#include "driver/device.h"

namespace kvshim::telemetry {

using Count = std::atomic<std::uint64_t>;

// Blocks and bytes of one kind, as the host program asked for them.
struct KindCounters {
  Count blocks{0};  // ever allocated
  Count live{0};    // now
  Count bytes{0};   // ever allocated, requested sizes
  Count live_bytes{0};
  Count peak_bytes{0};

  void add(std::uint64_t size) noexcept;
  void remove(std::uint64_t size) noexcept;
};

struct Amount {
  Count calls{0};
  Count bytes{0};

  void add(std::uint64_t size) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(size, std::memory_order_relaxed);
  }
};

// What of one device's blocks lives in host memory, and the driver's own figures, as last asked.
struct DeviceCounters {
  KindCounters spilled;
  Count told{0};  // bytes added to the device's total (KVSHIM_MEMINFO=virtual)
  Count real_total{0};
  Count real_free{0};
};

struct Counters {
  KindCounters kinds[kKindCount];
  DeviceCounters devices[driver::kMaxDevices];
  Amount by[kWhyCount];  // blocks by the reason for their kind, Why::rule left out
  Amount by_rule[Rules::kMax];
  // Memory that the host program took by other roads: counted, never touched.
  Amount own_vmm;        // the host's cuMemCreate
  Amount pool;           // cuMemAllocAsync, cuMemAllocFromPoolAsync
  Amount pool_large;     // those of them at and over the threshold
  Amount own_managed;    // the host's cuMemAllocManaged
  Amount unseen;         // cuMemAlloc memory that was freed here and allocated past us
  Count ipc_exports{0};  // blocks that got an IPC handle
  Count ipc_imports{0};  // blocks of other processes that were opened, second opens not counted
  Count ipc_refused{0};  // handles that could not be opened
  Count zero_bytes{0};   // placed and zeroed by the CPU at allocation
  Count zero_us{0};
  Count memset_calls{0};  // cuMemset* done by the CPU
  Count memset_bytes{0};
  Count memset_us{0};
  Count fallbacks{0};      // blocks that became another kind than their route said
  Count out_of_memory{0};  // requests that ended with code 2
  Count trims{0};          // times cached memory was given back to make room
  Count largest_small{0};  // the largest block under the threshold
};

extern constinit Counters counters;

// The one kind of event that makes a process "one that uses CUDA memory": from here on there is a
// summary to write.
inline bool anything_happened() noexcept {
  const auto busy = [](const Count& count) { return count.load(std::memory_order_relaxed) != 0; };
  for (const KindCounters& kind : counters.kinds) {
    if (busy(kind.blocks)) return true;
  }
  return busy(counters.ipc_imports) || busy(counters.own_vmm.calls) || busy(counters.pool.calls) ||
         busy(counters.own_managed.calls) || busy(counters.unseen.calls) ||
         busy(counters.out_of_memory) || busy(counters.ipc_refused);
}

// What the driver itself says of a device.
void note_real_memory(int device, std::uint64_t free, std::uint64_t total) noexcept;

// In a forked child: counts start again.
void reset() noexcept;

}  // namespace kvshim::telemetry
