// See residency.h.
#include "memory/kinds/residency.h"

#include "base/log.h"
#include "base/sizes.h"
#include "driver/capture.h"
#include "driver/errors.h"
#include "driver/functions.h"
#include "driver/managed_memory.h"
#include "telemetry/counters.h"

namespace kvshim::residency {

namespace {

using driver::MemoryPlace;

constinit log::Once said_advice;
constinit log::Once said_prefetch;
constinit log::Once said_first;
constinit log::Once said_too_much;

void give_advice(const driver::Device& device, CUdeviceptr base, std::uint64_t bytes) noexcept {
  const Advice advice = advice_for(device);
  if (advice == Advice::none) return;
  const MemoryPlace gpu = MemoryPlace::on(device.ordinal());
  const MemoryPlace cpu = MemoryPlace::host();
  const bool host = advice == Advice::host;
  CUresult code =
      driver::advise(base, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host ? cpu : gpu);
  if (code == CUDA_SUCCESS) {
    code = driver::advise(base, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, host ? gpu : cpu);
  }
  if (code == CUDA_SUCCESS || !said_advice.first()) return;
  log::warn("device {}: cuMemAdvise answers {} {}: KVSHIM_ADVICE has no effect on such blocks",
            device.ordinal(), static_cast<int>(code), driver::error_name(code));
}

// In a stream of its own, so that it waits for no work of the program.
CUresult move_to(const driver::Device& device, CUdeviceptr base, std::uint64_t bytes) noexcept {
  CUstream stream = nullptr;
  CUresult code = driver::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  if (code != CUDA_SUCCESS) return code;
  code = driver::prefetch(base, bytes, MemoryPlace::on(device.ordinal()), stream);
  const CUresult done = driver::cuStreamSynchronize(stream);
  driver::cuStreamDestroy_v2(stream);
  return code != CUDA_SUCCESS ? code : done;
}

void prefetch(const driver::Device& device, CUdeviceptr base, std::uint64_t bytes) noexcept {
  std::size_t free = 0;
  std::size_t total = 0;
  // What does not fit would drive other blocks out.
  if (driver::cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS || bytes > free) {
    log::debug("a managed block of {} bytes is not moved to device {}: {} bytes are free there",
               bytes, device.ordinal(), free);
    return;
  }
  const CUresult code = move_to(device, base, bytes);
  if (code == CUDA_SUCCESS) {
    log::debug("a managed block of {} bytes was moved to device {}", bytes, device.ordinal());
  } else if (said_prefetch.first()) {
    log::warn(
        "device {}: cuMemPrefetchAsync answers {} {}: KVSHIM_PREFETCH has no effect on such blocks",
        device.ordinal(), static_cast<int>(code), driver::error_name(code));
  }
}

std::uint64_t device_bytes() noexcept {
  std::uint64_t sum = 0;
  driver::for_each_used_device([&](const driver::Device& device) { sum += device.total_bytes(); });
  return sum;
}

void say_cost(const driver::Device& device, std::uint64_t bytes) noexcept {
  if (device.host_page_tables() || prefetched(bytes)) return;
  const char* advice =
      advice_for(device) == Advice::host
          ? "with KVSHIM_ADVICE=host the GPU reads them in host memory, at about 50 "
            "GB/s, whether they fit or not"
          : "the GPU fetches a page that it uses at about 10 GB/s and keeps it "
            "while it fits; blocks that do not fit are fetched again at every "
            "pass, where KVSHIM_ADVICE=host or the host kind read in place at "
            "about 50 GB/s";
  if (said_first.first()) {
    log::info("managed memory over PCIe (figures of an H200): {} (docs/residency.md)", advice);
  }
  const auto& managed = telemetry::counters.kinds[static_cast<unsigned>(Kind::managed)];
  const std::uint64_t live = managed.live_bytes.load(std::memory_order_relaxed) + bytes;
  if (live > device_bytes() && said_too_much.first()) {
    log::warn("{} of managed blocks are more than the device memory of {}: {} (docs/residency.md)",
              format_size(live).c_str(), format_size(device_bytes()).c_str(), advice);
  }
}

}  // namespace

Advice advice_for(const driver::Device& device) noexcept {
  const Advice wanted = options().advice;
  if (wanted != Advice::automatic) return wanted;
  return device.host_page_tables() ? Advice::host : Advice::none;
}

bool prefetched(std::uint64_t bytes) noexcept {
  return bytes < options().prefetch;
}

void settle(const driver::Device& device, CUdeviceptr base, std::uint64_t bytes) noexcept {
  say_cost(device, bytes);
  const driver::RelaxedCapture relaxed;  // cuMemAdvise would end another stream's capture
  give_advice(device, base, bytes);
  if (prefetched(bytes)) prefetch(device, base, bytes);
}

}  // namespace kvshim::residency
