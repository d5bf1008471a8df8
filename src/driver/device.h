// What one device can do, asked once, and the export handle type that was proved to work on it.
// No policy: which kind a block becomes is src/memory's business.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "base/options.h"

namespace kvshim::driver {

inline constexpr int kMaxDevices = 64;

// The ways to ask cuMemCreate for memory, best first. A device starts at the best one that its
// attributes allow and a trial proves, and steps down for good when the driver refuses one.
enum class HandleStep : std::uint8_t {
  fabric,       // FABRIC handle, GPUDirect RDMA where the device has it
  posix_rdma,   // POSIX file descriptor, GPUDirect RDMA
  posix,        // POSIX file descriptor
  none,         // cannot be exported
  unsupported,  // no VMM memory on this device
};
const char* handle_step_name(HandleStep step) noexcept;

class Device {
 public:
  constexpr Device() = default;

  CUdevice ordinal() const noexcept { return facts_.ordinal; }
  std::uint64_t total_bytes() const noexcept { return facts_.total_bytes; }
  std::uint64_t granularity() const noexcept {
    return facts_.granularity;
  }  // of VMM, at least 2 MiB
  int numa_node() const noexcept {
    return facts_.numa_node;
  }  // of the host memory nearest; -1 unknown

  // CPU and GPU share page tables (Grace): the GPU reaches the CPU's memory without a page fault.
  bool host_page_tables() const noexcept { return facts_.host_page_tables; }

  // Managed memory that CPU and GPU may touch at the same time. Without it the CPU cannot place
  // pages while kernels run (a SIGSEGV on Windows, WSL2, Jetson).
  bool managed() const noexcept { return managed_.load(std::memory_order_relaxed); }
  // The driver refused managed memory after all: never ask again. True for the call that did it.
  bool refuse_managed() noexcept { return managed_.exchange(false, std::memory_order_relaxed); }

  HandleStep step() const noexcept { return step_.load(std::memory_order_relaxed); }
  bool vmm() const noexcept { return step() != HandleStep::unsupported; }
  // The driver refused `step` with `code`: go one down, once, with one log line.
  void step_down(HandleStep step, CUresult code) noexcept;
  // The driver cannot map VMM memory at all: `function` said so. One log line.
  void refuse_vmm(const char* function, CUresult code) noexcept;
  // True for codes that mean "not this way" rather than "not now" or "not any more".
  static bool is_refusal(CUresult code) noexcept;
  // Why the best step is not the one in use: the code it was refused with, 0 when it was not asked.
  CUresult fabric_refusal() const noexcept {
    return fabric_refusal_.load(std::memory_order_relaxed);
  }
  // Its name, for the summary, which may make no driver call. Static storage.
  const char* fabric_refusal_name() const noexcept {
    return fabric_refusal_name_.load(std::memory_order_relaxed);
  }
  bool fabric_attribute() const noexcept { return facts_.fabric; }

  // Arguments of cuMemCreate for device memory at `step`.
  CUmemAllocationProp properties(HandleStep step) const noexcept;

 private:
  friend Device* device(CUdevice);
  friend const Device* used_device(int) noexcept;
  void ask(CUdevice ordinal) noexcept;
  void ask_granularity() noexcept;
  void prove_fabric() noexcept;
  HandleStep next(HandleStep step) const noexcept;

  struct Facts {  // constant once asked
    CUdevice ordinal = 0;
    std::uint64_t total_bytes = 0;
    std::uint64_t granularity = 0;
    int numa_node = -1;
    bool host_page_tables = false;
    bool rdma = false;
    bool posix = false;
    bool fabric = false;
  };
  Facts facts_;
  std::atomic<bool> managed_{false};
  std::atomic<HandleStep> step_{HandleStep::unsupported};
  std::atomic<CUresult> fabric_refusal_{CUDA_SUCCESS};
  std::atomic<const char*> fabric_refusal_name_{""};
  std::atomic<bool> ready_{false};
};

// The device's record; asked on first use (no context needed), never freed. NULL for an ordinal out
// of range.
Device* device(CUdevice ordinal);

// Calls `visit(const Device&)` for each device that was used.
template <typename Visit>
void for_each_used_device(Visit visit);
const Device* used_device(int index) noexcept;  // NULL where index was never used

template <typename Visit>
void for_each_used_device(Visit visit) {
  for (int index = 0; index < kMaxDevices; ++index) {
    if (const Device* found = used_device(index)) visit(*found);
  }
}

// In a forked child: every device is asked again.
void forget_devices() noexcept;

}  // namespace kvshim::driver
