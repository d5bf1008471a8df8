// Builds a host block piece by piece and undoes it; see host.h.
#include "memory/kinds/host.h"

#include <atomic>

#include "base/clock.h"
#include "base/log.h"
#include "base/sizes.h"
#include "driver/capture.h"
#include "driver/errors.h"
#include "driver/functions.h"
#include "driver/host_memory.h"
#include "memory/host_budget.h"
#include "memory/placement.h"
#include "telemetry/counters.h"

namespace kvshim::host {

constinit std::uint64_t handle_bytes = kGiB;

namespace {

using driver::HandleStep;
using driver::HostMemory;

constexpr std::uint64_t kProgressEveryUs = 5'000'000;

// Bytes that blocks being built right now will still take: two threads must not both find the same
// memory available.
constinit std::atomic<std::uint64_t> to_build{0};

class Builder {
 public:
  Builder(HostMemory& memory, const driver::Device& device, HandleStep step) noexcept
      : memory_(memory), device_(device), step_(step) {}
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // The whole block, or nothing. *refused: the driver does not make such handles.
  CUresult build(std::uint64_t bytes, bool* refused) noexcept {
    CUresult code = reserve(bytes);
    const std::uint64_t begun = clock_us();
    std::uint64_t said = begun;
    while (code == CUDA_SUCCESS && mapped_ < block_.bytes) {
      code = add_piece(refused);
      const std::uint64_t now = clock_us();
      if (code != CUDA_SUCCESS || now - said < kProgressEveryUs) continue;
      said = now;
      log::info("building a host block: {} of {}", format_size(mapped_).c_str(),
                format_size(block_.bytes).c_str());
    }
    if (code == CUDA_SUCCESS && !memory_.cpu_access()) code = zero_by_device();
    if (code != CUDA_SUCCESS) {
      undo();
      return code;
    }
    log::info("built {} of host memory of NUMA node {} at {:#x} in {} ms, zeroed by {}",
              format_size(block_.bytes).c_str(), memory_.node(), block_.base,
              (clock_us() - begun) / 1000, memory_.cpu_access() ? "the CPU" : "the device");
    return code;
  }

  const vmm::Mapping& block() const noexcept { return block_; }

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
        driver::cuMemRelease(*handle);
      }
    }
    *refused = driver::Device::is_refusal(code);
    if (*refused) memory_.step_down(step_, function, code);
    return code;
  }

  CUresult add_piece(bool* refused) noexcept {
    const std::uint64_t step = round_up(handle_bytes, memory_.granularity());
    const std::uint64_t left = block_.bytes - mapped_;
    const std::uint64_t bytes = left < step ? left : step;
    if (mapped_ != 0 && !enough(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUmemGenericAllocationHandle handle = 0;
    CUresult code = create_handle(bytes, &handle, refused);
    if (code != CUDA_SUCCESS) return code;
    const CUdeviceptr at = block_.base + mapped_;
    code = driver::cuMemMap(at, bytes, 0, handle, 0);
    if (code == CUDA_SUCCESS) {
      mapped_ += bytes;
      if (bytes == block_.bytes) {
        block_.handle = handle;
        handle = 0;
      }
    } else {
      refuse_if_final("cuMemMap", code);
    }
    // The mapping keeps the memory.
    if (handle != 0) check("cuMemRelease", driver::cuMemRelease(handle));
    if (code == CUDA_SUCCESS) code = open(at, bytes);
    return code;
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

  // Done when it returns, so that every stream finds the zeroes. In a stream of its own: the legacy
  // one would wait for the program's work, and cannot be used at all while a blocking stream
  // captures.
  CUresult zero_by_device() noexcept {
    const driver::RelaxedCapture relaxed;
    CUstream stream = nullptr;
    CUresult code = driver::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (code != CUDA_SUCCESS) return code;
    code = driver::cuMemsetD8Async(block_.base, 0, block_.bytes, stream);
    const CUresult done = driver::cuStreamSynchronize(stream);
    driver::cuStreamDestroy_v2(stream);
    return code != CUDA_SUCCESS ? code : done;
  }

  bool enough(std::uint64_t bytes) const noexcept {
    const host_budget::Budget budget = host_budget::measure();
    if (bytes <= budget.available) return true;
    log::warn(
        "a host block of {} bytes ({}) refused while it was built: {} leaves {} bytes ({}), it "
        "lacks another {}",
        block_.bytes, format_size(block_.bytes).c_str(), budget.limited_by, budget.available,
        format_size(budget.available).c_str(), block_.bytes - mapped_);
    return false;
  }

  bool check(const char* function, CUresult code) const noexcept {
    if (code == CUDA_SUCCESS) return true;
    log::error(
        "{} of a host block at {:#x} ({} bytes) failed: {} {}; memory is lost to this process",
        function, block_.base, block_.bytes, static_cast<int>(code), driver::error_name(code));
    return false;
  }

  void undo() noexcept {
    bool free_address = block_.bytes != 0;
    if (mapped_ != 0) {
      free_address = check("cuMemUnmap", driver::cuMemUnmap(block_.base, mapped_));
    }
    if (block_.handle != 0) check("cuMemRelease", driver::cuMemRelease(block_.handle));
    if (free_address) {
      check("cuMemAddressFree", driver::cuMemAddressFree(block_.base, block_.bytes));
    }
  }

  HostMemory& memory_;
  const driver::Device& device_;
  HandleStep step_;
  vmm::Mapping block_;  // bytes: what is reserved
  std::uint64_t mapped_ = 0;
};

// Promises `bytes` if the host has them beyond what is promised already.
bool promise(std::uint64_t bytes) noexcept {
  const std::uint64_t promised = to_build.fetch_add(bytes, std::memory_order_acq_rel) + bytes;
  const host_budget::Budget budget = host_budget::measure();
  const std::uint64_t available = budget.available - budget.available / 50;
  if (promised >= bytes && promised <= available) return true;
  to_build.fetch_sub(bytes, std::memory_order_acq_rel);
  log::warn(
      "a host block of {} bytes ({}) refused: {} leaves {} bytes ({}), other blocks being built "
      "will take {}",
      bytes, format_size(bytes).c_str(), budget.limited_by, available,
      format_size(available).c_str(), promised - bytes);
  return false;
}

}  // namespace

CUresult create(driver::Device& device, std::uint64_t bytes, vmm::Mapping* out) noexcept {
  HostMemory& memory = driver::host_memory(device);
  if (memory.step() == HandleStep::unsupported) return CUDA_ERROR_NOT_SUPPORTED;
  const std::uint64_t whole = round_up(bytes, memory.granularity());
  if (whole < bytes || !promise(whole)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult code = CUDA_ERROR_NOT_SUPPORTED;
  for (;;) {
    const HandleStep step = memory.step();
    if (step == HandleStep::unsupported) break;
    bool refused = false;
    Builder builder(memory, device, step);
    code = builder.build(whole, &refused);
    if (code == CUDA_SUCCESS) *out = builder.block();
    if (!refused) break;  // else once more, with the handles that the refusal has left
    code = CUDA_ERROR_NOT_SUPPORTED;
  }
  to_build.fetch_sub(whole, std::memory_order_acq_rel);
  return code;
}

void forget() noexcept {
  to_build.store(0, std::memory_order_relaxed);
}

}  // namespace kvshim::host
