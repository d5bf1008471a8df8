// VMM memory of the host's NUMA node nearest to a device (on Grace the EGM tier): whether this
// driver makes it, how it can be exported, whether the CPU may touch it. Asked only when a block is
// to become host memory: drivers have crashed when they were asked for such a location
// (NVIDIA/nccl#2106), so nobody else may be the reason for that question. No policy.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "driver/device.h"

namespace kvshim::driver {

class HostMemory {
 public:
  constexpr HostMemory() = default;

  int node() const noexcept { return facts_.node; }
  // Of handles, mappings and reservations; a multiple of 2 MiB.
  std::uint64_t granularity() const noexcept { return facts_.granularity; }

  // How its handles can be exported, best way first: fabric only where it was proved for the
  // device's own memory, and to be proved again here by the first handle.
  HandleStep step() const noexcept { return step_.load(std::memory_order_relaxed); }
  bool proved() const noexcept { return proved_.load(std::memory_order_relaxed); }
  void prove() noexcept { proved_.store(true, std::memory_order_relaxed); }
  // `function` refused `step` with `code`: one down for good. At the end there is no host memory
  // for this device. One log line each.
  void step_down(HandleStep step, const char* function, CUresult code) noexcept;
  // The driver cannot map such memory for the device: there is none, for good. One log line.
  void refuse(const char* function, CUresult code) noexcept;

  // May the CPU write to it? True until the driver has said no.
  bool cpu_access() const noexcept { return cpu_access_.load(std::memory_order_relaxed); }
  void refuse_cpu_access(CUresult code) noexcept;

  // Arguments of cuMemCreate at `step`.
  CUmemAllocationProp properties(HandleStep step) const noexcept;

 private:
  friend HostMemory& host_memory(const Device&) noexcept;
  friend const HostMemory* used_host_memory(int) noexcept;
  friend void forget_host_memory() noexcept;
  void ask(const Device& device) noexcept;

  struct Facts {  // constant once asked
    CUdevice device = 0;
    int node = 0;
    std::uint64_t granularity = 0;
  };
  Facts facts_;
  std::atomic<HandleStep> step_{HandleStep::unsupported};
  std::atomic<bool> proved_{false};
  std::atomic<bool> cpu_access_{true};
  std::atomic<bool> ready_{false};
};

// The device's record; the first call asks the driver for attributes and the granularity.
HostMemory& host_memory(const Device& device) noexcept;

// NULL where nothing ever asked for host memory of this device. Makes no driver call.
const HostMemory* used_host_memory(int ordinal) noexcept;

void forget_host_memory() noexcept;  // in a forked child

}  // namespace kvshim::driver
