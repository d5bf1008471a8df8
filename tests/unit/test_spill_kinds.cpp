// One spill budget for every kind that lives in host memory, and every way to it: the threshold,
// rules, memory pressure. The environment is that of test_capacity.cpp.
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
