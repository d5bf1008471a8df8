// Where blocks go and why, on the simulated driver: rules, the ceiling, memory pressure, dry runs.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/options.h"
#include "base/sizes.h"
#include "changed_options.h"
#include "sim_fixture.h"

using namespace kvshim;

namespace {

constexpr std::size_t kLarge = std::size_t{64} << 20;  // KVSHIM_THRESHOLD of this test
constexpr CUdeviceptr kUntouched = 0xabcdef;

CUdeviceptr allocated(std::size_t bytes) {
  CUdeviceptr out = 0;
  REQUIRE(allocate(&out, bytes) == CUDA_SUCCESS);
  return out;
}

Kind kind_of(CUdeviceptr ptr) {
  engine::BlockView block;
  REQUIRE(engine::find(ptr, &block) == Place::block);
  return block.kind;
}

Kind kind_once(std::size_t bytes) {
  const CUdeviceptr ptr = allocated(bytes);
  const Kind kind = kind_of(ptr);
  REQUIRE(release(ptr) == CUDA_SUCCESS);
  return kind;
}

std::uint64_t by(Why why) {
  return telemetry::counters.by[static_cast<unsigned>(why)].calls;
}

// Fills device 0 up to `left` bytes, so that memory is really short.
void leave(std::size_t left) {
  kvsim_set_memory(0, kvsim_device_bytes(0) + left);
}

}  // namespace

TEST_CASE("a rule decides before the threshold, the first that matches; without one as ever") {
  With options;
  const Engine engine;
  options.rules("size=4KiB:native; size=1MiB..2MiB:managed; size>=128MiB:vmm");
  CHECK(kind_once(4096) == Kind::native);
  CHECK(kind_once(1 << 20) == Kind::managed);
  CHECK(kind_once((1 << 20) - 1) == Kind::vmm);
  CHECK(kind_once(kLarge) == Kind::managed);
  CHECK(kind_once(2 * kLarge) == Kind::vmm);
  CHECK(telemetry::counters.by_rule[0].calls == 1);
  CHECK(telemetry::counters.by_rule[1].calls == 1);
  CHECK(telemetry::counters.by_rule[2].bytes == 2 * kLarge);
  CHECK(by(Why::threshold) == 2);
}

TEST_CASE("rules by count and by bytes held: of the process and of each device") {
  With options;
  const Engine engine;
  options.rules(
      "device=1,device_nth=2:native; nth=3:managed; device=0,after=8MiB:managed;"
      "device_after=2MiB,device=1:managed");
  const CUdeviceptr first = allocated(4 << 20);
  CHECK(kind_of(first) == Kind::vmm);
  CHECK(kind_of(allocated(4 << 20)) == Kind::vmm);
  CHECK(kind_once(4096) == Kind::managed);  // the third
  CHECK(kind_once(4096) == Kind::managed);  // 8 MiB are held
  REQUIRE(release(first) == CUDA_SUCCESS);
  CHECK(kind_once(4096) == Kind::vmm);  // not any more
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  CHECK(kind_of(allocated(2 << 20)) == Kind::vmm);
  CHECK(kind_of(allocated(4096)) == Kind::native);  // the second of device 1
  CHECK(kind_of(allocated(4096)) == Kind::managed);
  const engine::Destruction end = engine::before_destroy(other);
  cuDevicePrimaryCtxReset(1);
  engine::after_destroy(end, true);
}

TEST_CASE("a request that failed is not the n-th block") {
  With options;
  const Engine engine;
  options.rules("nth=1:managed");
  REQUIRE(kvsim_fail("cuMemAllocManaged:1:2") == 0);
  CUdeviceptr out = kUntouched;
  CHECK(allocate(&out, 4096) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(out == kUntouched);
  CHECK(kind_once(4096) == Kind::managed);
  CHECK(kind_once(4096) == Kind::vmm);
}

TEST_CASE("a request under way has its number and its bytes: no other one is told the same") {
  for (const bool fails : {false, true}) {
    INFO(fails);
    With options;
    const Engine engine;
    options.rules("nth=1:managed; device_nth=3:native; after=8MiB:native; nth>=2:vmm");
    if (fails) REQUIRE(kvsim_fail("cuMemAllocManaged:1:2") == 0);
    kvsim_hold("cuMemAllocManaged");
    CUresult code = CUDA_ERROR_UNKNOWN;
    CUdeviceptr first = kUntouched;
    std::thread slow([&] {
      cuCtxSetCurrent(engine.context);
      code = allocate(&first, 6 << 20);
    });
    for (int i = 0; i < 5000 && kvsim_waiting("cuMemAllocManaged") == 0; ++i) usleep(1000);
    REQUIRE(kvsim_waiting("cuMemAllocManaged") == 1);
    CHECK(kind_of(allocated(2 << 20)) == Kind::vmm);  // the second
    CHECK(kind_once(4096) == Kind::native);           // the third
    CHECK(kind_once(4096) == Kind::native);           // 8 MiB are held
    kvsim_release("cuMemAllocManaged");
    slow.join();
    CHECK(kvsim_gate_timeouts() == 0);
    if (fails) {
      CHECK(code == CUDA_ERROR_OUT_OF_MEMORY);
      CHECK(first == kUntouched);
    } else {
      CHECK(kind_of(first) == Kind::managed);
      CHECK(release(first) == CUDA_SUCCESS);
    }
    CHECK(kind_once(4096) == Kind::vmm);  // 2 MiB are held
  }
}

TEST_CASE("of many threads at once one has the n-th block") {
  constexpr unsigned kThreads = 16;
  for (const char* rules : {"nth=2:managed", "device_nth=16:managed", "after=60MiB:managed"}) {
    INFO(rules);
    With options;
    const Engine engine;
    kind_once(4 << 20);  // the device is known
    options.rules(rules);
    kvsim_hold("cuMemAllocManaged");
    kvsim_hold("cuMemCreate");
    std::atomic<unsigned> managed{0};
    std::vector<std::thread> threads;
    std::vector<CUdeviceptr> ptrs(kThreads);
    for (unsigned i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        cuCtxSetCurrent(engine.context);
        CUdeviceptr ptr = 0;
        if (allocate(&ptr, 4 << 20) != CUDA_SUCCESS) return;
        if (kind_of(ptr) == Kind::managed) ++managed;
        ptrs[i] = ptr;
      });
    }
    const auto waiting = [] {
      return kvsim_waiting("cuMemAllocManaged") + kvsim_waiting("cuMemCreate");
    };
    for (int i = 0; i < 5000 && waiting() < kThreads; ++i) usleep(1000);
    CHECK(waiting() == kThreads);
    kvsim_release("cuMemCreate");
    kvsim_release("cuMemAllocManaged");
    for (std::thread& thread : threads) thread.join();
    CHECK(managed == 1);
    for (const CUdeviceptr ptr : ptrs) CHECK(release(ptr) == CUDA_SUCCESS);
  }
}

TEST_CASE("rules that count nothing take no lock and no place") {
  With options;
  const Engine engine;
  options.rules("size=4KiB:native; lib=libnone*:vmm; device=7:vmm");
  CHECK(!options->rules.counting);
  allocated(4096);
  CHECK(tally::look(0).process.blocks == 0);
  options.rules("size=4KiB:native; device=0,device_after=1MiB:vmm");
  CHECK(options->rules.counting);
  allocated(8192);
  CHECK(tally::look(0).process.blocks == 1);
  CHECK(tally::look(0).device.bytes == 8192);
  CHECK(tally::look(1).device.blocks == 0);
}

TEST_CASE("the ceiling keeps blocks out of host memory, whoever wants them there") {
  With options;
  const Engine engine;
  options->ceiling = 2 * kLarge;
  CHECK(kind_once(kLarge) == Kind::managed);
  CHECK(kind_once(2 * kLarge - 1) == Kind::managed);
  CHECK(kind_once(2 * kLarge) == Kind::vmm);
  options->small = Kind::native;
  CHECK(kind_once(2 * kLarge) == Kind::native);
  options->small = Kind::managed;  // not out of host memory: then vmm
  CHECK(kind_once(2 * kLarge) == Kind::vmm);
  options.rules("*:managed");
  CHECK(kind_once(2 * kLarge) == Kind::vmm);
  CHECK(by(Why::ceiling) == 4);
}

TEST_CASE("a kind in host memory is reachable only by blocks under the ceiling") {
  With options;
  options->threshold = 64 * kMiB;
  CHECK(reachable(Kind::managed, kvshim::options()));
  options->ceiling = 64 * kMiB;
  CHECK_FALSE(reachable(Kind::managed, kvshim::options()));
  options.rules("size>=128MiB:host; size=32MiB..256MiB:managed");
  CHECK(reachable(Kind::managed, kvshim::options()));
  CHECK_FALSE(reachable(Kind::host, kvshim::options()));
  options.rules("");
  options->ceiling = kNever;
  options->small = Kind::host;
  CHECK(reachable(Kind::host, kvshim::options()));
  options->threshold = 2 * kMiB;  // blocks under it share a page
  CHECK_FALSE(reachable(Kind::host, kvshim::options()));
}

TEST_CASE("KVSHIM_SPILL=pressure: all vmm until device memory is short, then managed") {
  With options;
  options->spill = SpillPolicy::pressure;
  const Engine engine;
  CHECK(kind_once(2 * kLarge) == Kind::vmm);  // over the threshold
  allocated(4096);                            // spares and a slab are there
  leave(8 << 20);
  const CUdeviceptr fits = allocated(4 << 20);
  CHECK(kind_of(fits) == Kind::vmm);
  const CUdeviceptr large = allocated(16 << 20);
  CHECK(kind_of(large) == Kind::managed);
  CHECK(kvsim_resident_on_host(large, 16 << 20) >= 16u << 20);
  CHECK(by(Why::pressure) == 1);
  CHECK(telemetry::counters.fallbacks == 0);
  CHECK(release(large) == CUDA_SUCCESS);
  CHECK(engine.alive().managed_blocks == 0);
  kvsim_set_memory(0, std::size_t{8} << 30);
  CHECK(kind_once(16 << 20) == Kind::vmm);  // there is room again
  CHECK(telemetry::counters.out_of_memory == 0);
}

TEST_CASE("a small block spills as well, and one that is larger than the device") {
  With options;
  options->spill = SpillPolicy::pressure;
  const Engine engine;
  kvsim_set_memory(0, 128 << 20);
  CHECK(kind_once(256 << 20) == Kind::managed);
  leave(0);
  // The driver's page of the spare blocks has room for one more: that comes first.
  CHECK(kind_of(allocated(3 << 19)) == Kind::native);
  CHECK(by(Why::fallback) == 1);
  const CUdeviceptr small = allocated(3 << 19);
  CHECK(kind_of(small) == Kind::managed);
  CHECK(release(small) == CUDA_SUCCESS);
}

TEST_CASE("both: over the threshold at once, under it when memory is short") {
  With options;
  options->spill = SpillPolicy::both;
  const Engine engine;
  CHECK(kind_once(kLarge) == Kind::managed);
  CHECK(kind_once(16 << 20) == Kind::vmm);
  allocated(4096);
  leave(8 << 20);
  CHECK(kind_once(16 << 20) == Kind::managed);
  CHECK(by(Why::threshold) == 3);
  CHECK(by(Why::pressure) == 1);
}

TEST_CASE("without pressure, over the ceiling, and where the block was to be managed: code 2") {
  for (int row = 0; row < 3; ++row) {
    With options;
    const Engine engine;
    if (row != 0) options->spill = SpillPolicy::pressure;
    if (row == 1) options->ceiling = 16 << 20;
    if (row == 2) {
      options.rules("*:managed");
      REQUIRE(kvsim_fail("cuMemAllocManaged:1:2:*") == 0);
    }
    INFO(row);
    leave(8 << 20);
    CUdeviceptr out = kUntouched;
    CHECK(allocate(&out, 16 << 20) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(out == kUntouched);
    CHECK(registry::size() == 0);
    CHECK(engine.alive().handles == 0);
    CHECK(engine.alive().managed_blocks == 0);
    CHECK(telemetry::counters.out_of_memory == 1);
  }
}

TEST_CASE("a spill that fails too, or that the device cannot do, is 2 and leaves nothing behind") {
  for (const char* rule : {"cuMemAllocManaged:1:2:*", "cuMemAllocManaged:1:801:*", ""}) {
    With options;
    options->spill = SpillPolicy::pressure;
    const Engine engine;
    if (rule[0] != '\0') {
      REQUIRE(kvsim_fail(rule) == 0);
    } else {
      kvsim_set_attribute(0, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
    }
    const CUdeviceptr kept = allocated(4096);
    leave(8 << 20);
    INFO(rule);
    CUdeviceptr out = kUntouched;
    CHECK(allocate(&out, 16 << 20) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(out == kUntouched);
    CHECK(registry::size() == 1);
    CHECK(engine.alive().managed_blocks == 0);
    CHECK(release(kept) == CUDA_SUCCESS);
    kvsim_fail_none();
    kvsim_set_memory(0, std::size_t{8} << 30);
    CHECK(kind_once(16 << 20) == Kind::vmm);
  }
}

TEST_CASE("an error that is not a shortage is no reason to spill") {
  With options;
  options->spill = SpillPolicy::both;
  const Engine engine;
  allocated(4096);
  REQUIRE(kvsim_fail("cuMemCreate:1:719") == 0);
  CUdeviceptr out = kUntouched;
  CHECK(allocate(&out, 16 << 20) == 719);
  CHECK(out == kUntouched);
  CHECK(kvsim_log_count("cuMemAllocManaged") == 0);
}

TEST_CASE("cached memory is given back before anything spills") {
  With options;
  options->spill = SpillPolicy::pressure;
  const Engine engine;
  release(allocated(4096));  // an empty slab of 2 MiB is kept
  leave(14 << 20);
  const CUdeviceptr ptr = allocated(16 << 20);
  CHECK(kind_of(ptr) == Kind::vmm);
  CHECK(by(Why::pressure) == 0);
}

TEST_CASE(
    "a dry run: the driver's own calls and no others, and an account of what would have been") {
  With options;
  options->dry_run = true;
  options.rules("size=4KiB:managed");
  const Engine engine;
  const CUdeviceptr rule = allocated(4096);
  const CUdeviceptr small = allocated(16 << 20);
  const CUdeviceptr large = allocated(2 * kLarge);
  CHECK(engine.alive().native_blocks == 3);
  for (const char* name : {"cuMemCreate", "cuMemAllocManaged", "cuMemAddressReserve"}) {
    CHECK(kvsim_log_count(name) == 0);
  }
  CHECK(kvsim_log_count("cuMemAlloc_v2") == 3);
  CHECK(kvsim_log_count("cuMemFree_v2") == 0);
  const auto& kinds = telemetry::counters.kinds;
  CHECK(kinds[static_cast<unsigned>(Kind::managed)].blocks == 2);
  CHECK(kinds[static_cast<unsigned>(Kind::managed)].live_bytes == 2 * kLarge + 4096);
  CHECK(kinds[static_cast<unsigned>(Kind::vmm)].bytes == 16u << 20);
  CHECK(kinds[static_cast<unsigned>(Kind::native)].blocks == 0);
  CHECK(telemetry::counters.by_rule[0].calls == 1);
  for (const CUdeviceptr ptr : {rule, small, large}) CHECK(release(ptr) == CUDA_SUCCESS);
  CHECK(kvsim_log_count("cuMemFree_v2") == 3);
  CHECK(engine.alive().native_blocks == 0);
  CHECK(kinds[static_cast<unsigned>(Kind::managed)].live == 0);
  CHECK(kinds[static_cast<unsigned>(Kind::managed)].peak_bytes == 2 * kLarge + 4096);

  kvsim_set_memory(0, 1 << 20);
  CUdeviceptr out = kUntouched;
  CHECK(allocate(&out, 16 << 20) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(registry::size() == 0);
}

TEST_CASE("the reasons that log lines carry") {
  CHECK(std::string(why_text({Kind::vmm, Why::rule, 12}).text) == "rule 12");
  CHECK(std::string(why_text({Kind::vmm, Why::pressure, 0}).text) == "pressure");
}
