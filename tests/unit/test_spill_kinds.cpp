// One spill budget for every kind that lives in host memory, and every way to it: the threshold,
// rules, memory pressure. The environment is that of test_capacity.cpp.
#include <unistd.h>
#include <vector>

#include <atomic>
#include <string>

#include "base/options.h"
#include "base/sizes.h"
#include "changed_options.h"
#include "memory/routing/route.h"
#include "sim_fixture.h"

using namespace kvshim;

namespace {

constexpr std::uint64_t kLimit = 192 * kMiB;  // of one device
constexpr std::size_t kBlock = 64 * kMiB;
constexpr std::size_t kPiece = 16 * kMiB;
constexpr CUdeviceptr kUntouched = 0xabcdef;

void free_in_order(CUdeviceptr ptr, CUstream stream) {
  CUresult code = CUDA_ERROR_UNKNOWN;
  REQUIRE(engine::free_async(ptr, stream, &code));
  REQUIRE(code == CUDA_SUCCESS);
}

CUdeviceptr have(std::size_t bytes) {
  CUdeviceptr ptr = 0;
  REQUIRE(allocate(&ptr, bytes) == CUDA_SUCCESS);
  return ptr;
}

Kind kind_of(CUdeviceptr ptr) {
  engine::BlockView view{};
  REQUIRE(engine::find(ptr, &view) == Place::block);
  return view.kind;
}

std::uint64_t told_with(const char* rules) {
  With options;
  options.rules(rules);
  spill::forget();
  return spill::told(0).total;
}

}  // namespace

TEST_CASE("host and managed blocks share one budget, and give it back") {
  With options;
  options.rules("size=64MiB:host; size=96MiB:managed");
  const Engine engine;
  host::handle_bytes = kPiece;
  const CUdeviceptr host = have(kBlock);
  CHECK(kind_of(host) == Kind::host);
  CHECK(spill::told(0).free == kLimit - kBlock);
  const CUdeviceptr managed = have(96 * kMiB);
  CHECK(kind_of(managed) == Kind::managed);
  CHECK(spill::told(0).free == kLimit - kBlock - 96 * kMiB);
  CHECK(release(host) == CUDA_SUCCESS);
  CHECK(spill::told(0).free == kLimit - 96 * kMiB);
  CHECK(release(managed) == CUDA_SUCCESS);
  CHECK(spill::told(0).free == kLimit);
  CHECK(kvsim_host_bytes() == 0);
}

TEST_CASE("a host block's bytes come back with its context, freed in stream order or not") {
  With options;
  options.rules("*:host");
  const Engine engine;
  have(kBlock);
  const CUdeviceptr async = have(kBlock);
  CUresult code = CUDA_SUCCESS;
  REQUIRE(engine::free_async(async, CU_STREAM_LEGACY, &code));
  CHECK(code == CUDA_SUCCESS);
  const auto gone = engine::before_destroy(engine.context);
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  engine::after_destroy(gone, true);
  CHECK(spill::told(0).free == kLimit);
  CHECK(kvsim_host_bytes() == 0);
}

TEST_CASE("a host block that fails half way gives its bytes back: 2, or where told, another kind") {
  With options;
  options.rules("*:host");
  for (const MemInfo told : {MemInfo::real, MemInfo::with_spill})
    for (const char* failure :
         {"cuMemAddressReserve:1:2:*", "cuMemCreate@location=3:2:2:*", "cuMemMap:2:2:*"}) {
      CAPTURE(failure);
      options->meminfo = told;
      const Engine engine;
      host::handle_bytes = kPiece;
      REQUIRE(kvsim_fail(failure) == 0);
      CUdeviceptr out = kUntouched;
      if (told == MemInfo::real) {
        CHECK(allocate(&out, kBlock) == CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(out == kUntouched);
      } else {
        const CUdeviceptr other = have(kBlock);
        CHECK(kind_of(other) == Kind::managed);
        CHECK(spill::told(0).free == kLimit - kBlock);
        CHECK(release(other) == CUDA_SUCCESS);
        CHECK(spill::told(0).free == kLimit);
      }
      kvsim_fail_none();
      CHECK(kvsim_host_bytes() == 0);
      const CUdeviceptr block = have(kLimit);  // all of it
      CHECK(kind_of(block) == Kind::host);
      CHECK(release(block) == CUDA_SUCCESS);
    }
}

TEST_CASE(
    "a host block over the budget lies on the device where that is told too, else it gets 2") {
  With options;
  options.rules("*:host");
  {
    const Engine engine;
    const CUdeviceptr block = have(kLimit + kMiB2);
    CHECK(kind_of(block) == Kind::vmm);
    CHECK(spill::told(0).free == kLimit);
    CHECK(release(block) == CUDA_SUCCESS);
  }
  options->meminfo = MemInfo::real;
  const Engine engine;
  const CUdeviceptr first = have(4096);  // the device is asked what it can
  kvsim_log_clear();
  CUdeviceptr out = kUntouched;
  CHECK(allocate(&out, kLimit + kMiB2) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(out == kUntouched);
  CHECK(kvsim_log_count("cuMemAddressReserve") == 0);  // nothing was begun
  CHECK(kvsim_log_count("cuMemCreate") == 0);
  CHECK(release(first) == CUDA_SUCCESS);
}

TEST_CASE("a device is told of host memory where some way leads there, and only then") {
  With threshold;
  threshold->spill = SpillPolicy::threshold;
  const Engine engine;
  CHECK(spill::told(0).total == kLimit);  // the threshold
  CHECK(told_with("*:vmm") == 0);         // no block is left for it
  CHECK(told_with("size<1GiB:vmm") == kLimit);
  With options;
  options->threshold = kNever;
  CHECK(told_with("") == 0);
  CHECK(told_with("size>1GiB:host") == kLimit);
  CHECK(told_with("lib=libfoo*:managed; *:vmm") == kLimit);
  CHECK(told_with("*:vmm; size>1GiB:managed") == 0);
  options->spill = SpillPolicy::pressure;
  CHECK(told_with("*:vmm") == kLimit);
  options->ceiling = 0;
  CHECK(told_with("*:vmm") == 0);
  options->ceiling = kNever;
  options->dry_run = true;
  CHECK(told_with("*:vmm") == 0);
}

TEST_CASE("no spill kind is left once the driver has refused both") {
  With options;
  options->large = Kind::host;
  const Engine engine;
  REQUIRE(kvsim_fail("cuMemCreate@location=3:1:801:*") == 0);
  const CUdeviceptr managed = have(kBlock);
  CHECK(kind_of(managed) == Kind::managed);
  CHECK(spill::told(0).free == kLimit - kBlock);  // one is left
  REQUIRE(kvsim_fail("cuMemAllocManaged:1:801:*") == 0);
  const CUdeviceptr vmm = have(kBlock);
  CHECK(kind_of(vmm) == Kind::vmm);
  CHECK(spill::told(0).total == kLimit);
  CHECK(spill::told(0).free == 0);
  CHECK(release(vmm) == CUDA_SUCCESS);
  CHECK(release(managed) == CUDA_SUCCESS);
}

TEST_CASE("without managed memory small blocks spill too, each to a page of the host") {
  With options;
  options->large = Kind::host;
  options->threshold = kNever;
  const Engine engine;
  REQUIRE(kvsim_fail("cuMemAllocManaged:1:801:*") == 0);
  options.rules("size=64MiB:managed");
  CHECK(release(have(kBlock)) == CUDA_SUCCESS);  // the refusal
  options.rules("");
  std::vector<CUdeviceptr> blocks;
  CUdeviceptr next = 0;
  while (allocate(&next, 20 * kMiB) == CUDA_SUCCESS && blocks.size() < 200) blocks.push_back(next);
  CHECK(kind_of(blocks.back()) == Kind::host);
  CHECK(release(blocks.back()) == CUDA_SUCCESS);
  blocks.pop_back();
  REQUIRE(allocate(&next, 1000 * kKiB) == CUDA_SUCCESS);
  blocks.push_back(next);
  int on_host = kind_of(next) == Kind::host ? 1 : 0;
  for (int index = 0; index < 12; ++index) {
    if (allocate(&next, 1000 * kKiB) != CUDA_SUCCESS) break;
    on_host += kind_of(next) == Kind::host ? 1 : 0;
    blocks.push_back(next);
  }
  CHECK(on_host > 0);
  for (const CUdeviceptr block : blocks) CHECK(release(block) == CUDA_SUCCESS);
  CHECK(kvsim_host_bytes() == 0);
}

TEST_CASE("a device that refuses managed memory alone still has the host kind to spill to") {
  With options;
  options.rules("size=64MiB:managed; size=96MiB:host");
  const Engine engine;
  REQUIRE(kvsim_fail("cuMemAllocManaged:1:801:*") == 0);
  const CUdeviceptr vmm = have(kBlock);
  CHECK(kind_of(vmm) == Kind::vmm);
  CHECK(spill::told(0).free == kLimit);
  const CUdeviceptr host = have(96 * kMiB);
  CHECK(kind_of(host) == Kind::host);
  CHECK(spill::told(0).free == kLimit - 96 * kMiB);
  CHECK(release(host) == CUDA_SUCCESS);
  CHECK(release(vmm) == CUDA_SUCCESS);
}

TEST_CASE(
    "under pressure blocks take the kind of KVSHIM_LARGE, small ones no page of host memory") {
  With options;
  options->large = Kind::host;
  options->spill = SpillPolicy::pressure;
  const Engine engine;
  kvsim_set_memory(0, kvsim_device_bytes(0));  // full
  const CUdeviceptr large = have(kBlock);
  CHECK(kind_of(large) == Kind::host);
  const CUdeviceptr small = have(4096);
  CHECK(kind_of(small) == Kind::managed);
  CHECK(spill::told(0).free == kLimit - kBlock - 4096);
  CHECK(release(large) == CUDA_SUCCESS);
  CHECK(release(small) == CUDA_SUCCESS);
  CHECK(spill::told(0).free == kLimit);
}

TEST_CASE("what was freed in stream order comes back before a block in host memory is refused") {
  With options;
  options.rules("size=150MiB:managed; size=160MiB:host; size=1MiB:vmm; size=2MiB:host");
  for (const MemInfo told : {MemInfo::real, MemInfo::with_spill}) {
    CAPTURE(told == MemInfo::real);
    options->meminfo = told;
    const Engine engine;
    // Many that wait hide none that has come.
    HeldStream busy;
    CUdeviceptr waiting[10];
    for (CUdeviceptr& ptr : waiting) ptr = have(2 * kMiB);
    for (const CUdeviceptr ptr : waiting) free_in_order(ptr, busy);

    CUcontext other = nullptr;  // the end of a managed block waits for its own context alone
    REQUIRE(cuCtxCreate(&other, nullptr, 0, 0) == CUDA_SUCCESS);
    free_in_order(have(150 * kMiB), CU_STREAM_LEGACY);
    const CUdeviceptr host = have(160 * kMiB);
    CHECK(kind_of(host) == Kind::host);
    free_in_order(host, CU_STREAM_LEGACY);
    const CUdeviceptr managed = have(150 * kMiB);
    CHECK(kind_of(managed) == Kind::managed);
    CHECK(release(managed) == CUDA_SUCCESS);
    busy.finish();
    const engine::Destruction end = engine::before_destroy(other);
    REQUIRE(cuCtxDestroy(other) == CUDA_SUCCESS);
    engine::after_destroy(end, true);
    engine::make_room();
    CHECK(kvsim_host_bytes() == 0);
  }
}

// What these lose stays in the simulation: they are the last ones.
TEST_CASE("host memory that the driver does not give back stays counted") {
  With options;
  options.rules("size=64MiB:host; size=32MiB:managed; *:vmm");
  options->meminfo = MemInfo::real;
  options->host_limit = kLimit;
  constexpr auto kBroken = static_cast<CUresult>(719);  // no refusal: no other kind is tried
  struct Row {
    const char* failures;
    std::uint64_t handle;
    CUresult made;
    std::uint64_t lost;
    std::uint64_t held;  // by the simulation
  };
  const Row rows[] = {
      // At the end of a block.
      {"cuMemUnmap:1:999", kGiB, CUDA_SUCCESS, kBlock, kBlock},
      {"cuMemRelease:1:999", kGiB, CUDA_SUCCESS, kBlock, kBlock},
      {"cuMemAddressFree:1:999", kGiB, CUDA_SUCCESS, 0, 0},
      {"cuMemUnmap:1:999", kPiece, CUDA_SUCCESS, kBlock, kBlock},
      // While one is made: a piece's handle; then the undoing.
      {"cuMemRelease:2:999", kPiece, CUDA_SUCCESS, kPiece, kPiece},
      {"cuMemRelease:2:999,cuMemUnmap:1:999", kPiece, CUDA_SUCCESS, kBlock, kBlock},
      {"cuMemSetAccess:3:719,cuMemUnmap:1:999", kPiece, kBroken, 2 * kPiece, 2 * kPiece},
      {"cuMemMap:3:719,cuMemRelease:3:999", kPiece, kBroken, kPiece, kPiece},
      {"cuMemSetAccess:1:719,cuMemRelease:1:999", kGiB, kBroken, kBlock, kBlock},
      {"cuMemSetAccess:1:719,cuMemUnmap:1:999,cuMemRelease:1:999", kGiB, kBroken, kBlock, kBlock},
  };
  for (const Row& row : rows) {
    CAPTURE(row.failures, row.handle);
    const Engine engine;
    host::handle_bytes = row.handle;
    release(have(5 * kMiB));  // spares are there
    const std::uint64_t was = kvsim_host_bytes();
    REQUIRE(kvsim_fail(row.failures) == 0);
    CUdeviceptr block = kUntouched;
    CHECK(allocate(&block, kBlock) == row.made);
    if (row.made == CUDA_SUCCESS) {
      CHECK(release(block) == CUDA_SUCCESS);
    } else {
      CHECK(block == kUntouched);
    }
    kvsim_fail_none();
    CHECK(kvsim_host_bytes() - was == row.held);
    CHECK(telemetry::counters.devices[0].spilled.live_bytes == row.lost);
    // So many more fit under the limit.
    std::uint64_t fit = 0;
    while (allocate(&block, kBlock) == CUDA_SUCCESS) ++fit;
    CHECK(fit == (kLimit - row.lost) / kBlock);
  }
}

TEST_CASE("a managed block that cannot be ended, half made or whole, stays counted") {
  With options;
  options.rules("size=64MiB:managed; *:vmm");
  const Engine engine;
  const CUdeviceptr block = have(kBlock);
  REQUIRE(kvsim_fail("cuMemFree_v2:1:999") == 0);
  CHECK(release(block) == CUDA_ERROR_UNKNOWN);
  CHECK(spill::told(0).free == kLimit - kBlock);
  CHECK(release(block) == CUDA_SUCCESS);
  CHECK(spill::told(0).free == kLimit);

  // 1 GiB are the device's: its front lies there, and cannot be zeroed.
  options.rules("size>1GiB:managed; *:vmm");
  REQUIRE(kvsim_fail("cuMemsetD8Async:1:999,cuMemFree_v2:2:999") == 0);
  CUdeviceptr out = kUntouched;
  CHECK(allocate(&out, kGiB + kBlock) == CUDA_ERROR_UNKNOWN);
  CHECK(out == kUntouched);
  kvsim_fail_none();
  CHECK(engine.alive().managed_blocks == 1);
  CHECK(spill::told(0).free < kLimit - kBlock + kMiB2);
}
