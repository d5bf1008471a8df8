// The engine on the simulated driver, in this process. Every test starts with fresh tables, a
// current primary context on device 0, no injected failures, and an empty call log.
#pragma once

#include <cuda.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "driver/device.h"
#include "driver/host_memory.h"
#include "driver/peers.h"
#include "memory/blocks/owner.h"
#include "memory/blocks/registry.h"
#include "memory/blocks/retired.h"
#include "memory/budget/device_room.h"
#include "memory/budget/spill.h"
#include "memory/engine.h"
#include "memory/kinds/host.h"
#include "memory/peers.h"
#include "memory/routing/tally.h"
#include "sim.h"
#include "support/catch.h"
#include "telemetry/counters.h"

inline constexpr std::size_t kMiB2 = 2u << 20;

class Engine {
 public:
  Engine() {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    kvsim_reset();
    kvsim_set_fabric(800, 0);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    kvshim::registry::forget();
    kvshim::retired::forget();
    kvshim::owners.forget();
    kvshim::peers::forget();
    kvshim::driver::forget_peers();
    kvshim::spill::forget();
    kvshim::device_room::forget();
    kvshim::host::handle_bytes = std::uint64_t{1} << 30;
    kvshim::driver::forget_devices();
    kvshim::driver::forget_host_memory();
    kvshim::telemetry::reset();
    kvsim_log_clear();
    kvsim_clear_traffic();
    kvsim_get_counts(&before);
    violations = kvsim_violations();
  }
  ~Engine() {
    kvsim_fail_none();
    CHECK(kvsim_violations() == violations);
    cuDevicePrimaryCtxReset(0);
  }

  // What is alive beyond what was when the test began.
  kvsim_counts alive() const {
    kvsim_counts now;
    kvsim_get_counts(&now);
    now.handles -= before.handles;
    now.mappings -= before.mappings;
    now.reservations -= before.reservations;
    now.native_blocks -= before.native_blocks;
    now.managed_blocks -= before.managed_blocks;
    now.device_bytes -= before.device_bytes;
    return now;
  }

  CUcontext context = nullptr;
  kvsim_counts before;
  std::uint64_t violations = 0;
};

inline CUresult allocate(CUdeviceptr* out, std::size_t bytes) {
  return kvshim::engine::allocate(out, bytes);
}

// The engine's answer, or "not ours" as a code that no driver gives.
inline CUresult release(CUdeviceptr ptr) {
  CUresult result = CUDA_SUCCESS;
  return kvshim::engine::free(ptr, &result) ? result : static_cast<CUresult>(-1);
}

// A stream of the current context whose work waits until it is let go (or five seconds).
class HeldStream {
 public:
  HeldStream() {
    REQUIRE(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuLaunchHostFunc(stream_, wait, this) == CUDA_SUCCESS);
  }
  ~HeldStream() {
    finish();
    cuStreamDestroy(stream_);
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  operator CUstream() const { return stream_; }
  // Returns when all that it was given is done.
  void finish() {
    go_ = true;
    CHECK(cuStreamSynchronize(stream_) == CUDA_SUCCESS);
  }
  bool gave_up() const { return gave_up_; }

 private:
  static void wait(void* self) {
    auto& held = *static_cast<HeldStream*>(self);
    for (int i = 0; i < 5000 && !held.go_; ++i) usleep(1000);
    held.gave_up_ = !held.go_;
  }

  CUstream stream_ = nullptr;
  std::atomic<bool> go_{false};
  std::atomic<bool> gave_up_{false};
};
