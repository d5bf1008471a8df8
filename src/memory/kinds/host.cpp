// Builds a host block piece by piece and undoes it; see host.h.
#include "memory/kinds/host.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "base/sizes.h"
#include "driver/errors.h"
#include "driver/functions.h"
#include "driver/host_memory.h"
#include "driver/zero.h"
#include "memory/budget/spill.h"
#include "memory/kinds/placement.h"
#include "memory/kinds/progress.h"
#include "telemetry/counters.h"

namespace kvshim::host {

constinit std::uint64_t handle_bytes = kGiB;

namespace {

using driver::HandleStep;
using driver::HostMemory;

class Builder {
 public:
  Builder(HostMemory& memory, const driver::Device& device, HandleStep step,
          spill::Promise& promise) noexcept
      : memory_(memory), device_(device), step_(step), promise_(promise) {}
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // The whole block, or nothing. *refused: the driver does not make such handles.
  CUresult build(std::uint64_t bytes, bool* refused) noexcept {
    CUresult code = reserve(bytes);
    Progress progress("building a host block", bytes);
    while (code == CUDA_SUCCESS && mapped_ < block_.bytes) {
      code = add_piece(refused);
      if (code == CUDA_SUCCESS) progress.at(mapped_);
    }
    if (code == CUDA_SUCCESS && !memory_.cpu_access())
      code = driver::zero(block_.base, block_.bytes);
    if (code != CUDA_SUCCESS) {
      undo();
      return code;
    }
    log::info("built {} of host memory of NUMA node {} at {:#x} in {} ms, zeroed by {}",
              format_size(block_.bytes).c_str(), memory_.node(), block_.base,
              progress.spent_us() / 1000, memory_.cpu_access() ? "the CPU" : "the device");
    return code;
  }

  const vmm::Mapping& block() const noexcept { return block_; }
  // Bytes that the driver has not given back, or will not when the block ends.
  std::uint64_t lost() const noexcept { return lost_ < block_.bytes ? lost_ : block_.bytes; }

 private:
  CUresult reserve(std::uint64_t bytes) noexcept {
    const CUresult code =
        driver::cuMemAddressReserve(&block_.base, bytes, memory_.granularity(), 0, 0);
    if (code == CUDA_SUCCESS) {
      block_.bytes = bytes;
    } else {
      refuse_if_final("cuMemAddressReserve", code);
    }
    return code;
  }

  // Some drivers promise such memory and refuse it only when it is to be mapped.
  void refuse_if_final(const char* function, CUresult code) noexcept {
    if (code == CUDA_ERROR_NOT_SUPPORTED || code == CUDA_ERROR_NOT_PERMITTED) {
      memory_.refuse(function, code);
    }
  }

  CUresult create_handle(std::uint64_t bytes, CUmemGenericAllocationHandle* handle,
                         bool* refused) noexcept {
    const CUmemAllocationProp prop = memory_.properties(step_);
    const char* function = "cuMemCreate";
    CUresult code = driver::cuMemCreate(handle, bytes, &prop, 0);
    if (code == CUDA_SUCCESS && step_ == HandleStep::fabric && !memory_.proved()) {
      // Creation can succeed where the export fails: only the export proves it.
      alignas(16) unsigned char exported[64];
      function = "the export";
      code = driver::cuMemExportToShareableHandle(exported, *handle, CU_MEM_HANDLE_TYPE_FABRIC, 0);
      if (code == CUDA_SUCCESS) {
        memory_.prove();
      } else {
        release_handle(*handle, bytes);
      }
    }
    if (code == CUDA_ERROR_OUT_OF_MEMORY) {
      static constinit log::Once said;
      log::print(
          said.first() ? LogLevel::warn : LogLevel::debug,
          "a host block of {} bytes ({}): after {} the driver has no more memory of NUMA node {}",
          block_.bytes, format_size(block_.bytes).c_str(), format_size(mapped_).c_str(),
          memory_.node());
    }
    *refused = driver::Device::is_refusal(code);
    if (*refused) memory_.step_down(step_, function, code);
    return code;
  }

  CUresult add_piece(bool* refused) noexcept {
    const std::uint64_t bytes = next_piece();
    if (bytes == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    CUmemGenericAllocationHandle handle = 0;
    CUresult code = create_handle(bytes, &handle, refused);
    if (code != CUDA_SUCCESS) return code;
    const CUdeviceptr at = block_.base + mapped_;
    code = driver::cuMemMap(at, bytes, 0, handle, 0);
    if (code == CUDA_SUCCESS) {
      mapped_ += bytes;
      promise_.placed(bytes);
      if (bytes == block_.bytes) {
        block_.handle = handle;
        handle = 0;
      }
    } else {
      refuse_if_final("cuMemMap", code);
    }
    // The mapping keeps the memory.
    if (handle != 0) release_handle(handle, bytes);
    if (code == CUDA_SUCCESS) code = open(at, bytes);
    return code;
  }

  // 0: the host has no more. A block of one handle can be exported: it is not cut where memory is
  // short, for it was measured just now.
  std::uint64_t next_piece() noexcept {
    const std::uint64_t most = round_up(handle_bytes, memory_.granularity());
    if (block_.bytes <= most) return block_.bytes;
    const std::uint64_t piece = promise_.next_piece();
    if (piece == 0) return 0;
    const std::uint64_t left = block_.bytes - mapped_;
    const std::uint64_t whole = round_up(piece < most ? piece : most, memory_.granularity());
    return left < whole ? left : whole;
  }

  // Access for the device and the CPU, and the CPU's zeroes.
  CUresult open(CUdeviceptr at, std::uint64_t bytes) noexcept {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_.ordinal()}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUresult code = driver::cuMemSetAccess(at, bytes, &access, 1);
    if (code != CUDA_SUCCESS) {
      refuse_if_final("cuMemSetAccess", code);
      return code;
    }
    if (!memory_.cpu_access()) return CUDA_SUCCESS;
    access.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {memory_.node()}};
    code = driver::cuMemSetAccess(at, bytes, &access, 1);
    if (code != CUDA_SUCCESS) {
      // Not the device's loss: it zeroes the whole block instead.
      memory_.refuse_cpu_access(code);
      return CUDA_SUCCESS;
    }
    const std::uint64_t begun = clock_us();
    placement::fill(reinterpret_cast<void*>(at), bytes, {}, memory_.node());
    telemetry::counters.zero_bytes.fetch_add(bytes, std::memory_order_relaxed);
    telemetry::counters.zero_us.fetch_add(clock_us() - begun, std::memory_order_relaxed);
    return CUDA_SUCCESS;
  }

  bool check(const char* function, CUresult code) const noexcept {
    if (code == CUDA_SUCCESS) return true;
    log::error(
        "{} of a host block at {:#x} ({} bytes) failed: {} {}; memory is lost to this process",
        function, block_.base, block_.bytes, static_cast<int>(code), driver::error_name(code));
    return false;
  }

  void release_handle(CUmemGenericAllocationHandle handle, std::uint64_t bytes) noexcept {
    if (!check("cuMemRelease", driver::cuMemRelease(handle))) lost_ += bytes;
  }

  void undo() noexcept {
    bool free_address = block_.bytes != 0;
    if (mapped_ != 0) {
      free_address = check("cuMemUnmap", driver::cuMemUnmap(block_.base, mapped_));
      if (!free_address) lost_ += mapped_;
    }
    if (block_.handle != 0) release_handle(block_.handle, mapped_);
    if (free_address) {
      check("cuMemAddressFree", driver::cuMemAddressFree(block_.base, block_.bytes));
    }
  }

  HostMemory& memory_;
  const driver::Device& device_;
  HandleStep step_;
  spill::Promise& promise_;
  vmm::Mapping block_;  // bytes: what is reserved
  std::uint64_t mapped_ = 0;
  std::uint64_t lost_ = 0;  // may count a piece twice, where two steps of its undoing fail
};

}  // namespace

CUresult create(driver::Device& device, std::uint64_t bytes, vmm::Mapping* out,
                std::uint64_t* spilled) noexcept {
  HostMemory& memory = driver::host_memory(device);
  if (memory.step() == HandleStep::unsupported) return CUDA_ERROR_NOT_SUPPORTED;
  const std::uint64_t whole = round_up(bytes, memory.granularity());
  if (whole < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  for (;;) {
    const HandleStep step = memory.step();
    if (step == HandleStep::unsupported) return CUDA_ERROR_NOT_SUPPORTED;
    spill::Promise promise(device.ordinal(), whole, "host", memory.node());
    if (!promise.granted()) {
      // With the device's memory told as well, a kind that lies there may take the block.
      promise.refuse(options().meminfo == MemInfo::with_spill ? LogLevel::info : LogLevel::warn);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bool refused = false;
    Builder builder(memory, device, step, promise);
    const CUresult code = builder.build(whole, &refused);
    if (code == CUDA_SUCCESS) {
      promise.keep();
      *out = builder.block();
      *spilled = whole - builder.lost();
      return code;
    }
    // What is lost stays counted.
    if (builder.lost() != 0) {
      promise.keep();
      spill::returned(device.ordinal(), whole - builder.lost());
    }
    if (!refused) return code;  // else once more, with the handles that the refusal has left
  }
}

}  // namespace kvshim::host
