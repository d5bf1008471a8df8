// Every step of every kind can fail: then everything done so far is undone, the code is the native
// one, the output is untouched, no record stays, and the next allocation works.
#include "sim_fixture.h"

using namespace kvshim;

namespace {

constexpr CUdeviceptr kUntouched = 0xabcdef;
constexpr std::size_t kLarge = std::size_t{64} << 20;  // KVSHIM_THRESHOLD of this test

struct Step {
  const char* function;
  int code;
};

void fail(const char* function, int code, const char* count = "1") {
  const std::string rule = std::string(function) + ":1:" + std::to_string(code) + ":" + count;
  REQUIRE(kvsim_fail(rule.c_str()) == 0);
}

}  // namespace

TEST_CASE("a failing step of a vmm block that is no refusal is undone and its code returned") {
  for (const std::size_t bytes : {std::size_t{256}, 3 * kMiB2}) {
    for (const char* function :
         {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
      for (const int code : {600 /* not ready */, 709 /* context destroyed */, 719,
                             805 /* no MPS server */, 810 /* MPS ended the client */}) {
        const Engine engine;
        CUdeviceptr warm = 0;
        REQUIRE(allocate(&warm, 5 * kMiB2) ==
                CUDA_SUCCESS);  // the device is known, spares are there
        const kvsim_counts was = engine.alive();
        fail(function, code);
        CUdeviceptr out = kUntouched;
        INFO(function << " answers " << code << " for " << bytes);
        CHECK(allocate(&out, bytes) == code);
        CHECK(out == kUntouched);
        const kvsim_counts now = engine.alive();
        CHECK(now.handles == was.handles);
        CHECK(now.mappings == was.mappings);
        CHECK(now.reservations == was.reservations);
        CHECK(now.native_blocks == was.native_blocks);
        CHECK(now.device_bytes == was.device_bytes);
        CHECK(registry::size() == 1);
        CHECK(allocate(&out, bytes) == CUDA_SUCCESS);
        CHECK(release(out) == CUDA_SUCCESS);
        CHECK(release(warm) == CUDA_SUCCESS);
      }
    }
  }
}

TEST_CASE("out of memory of a vmm step falls to native memory, which has the last word") {
  for (const char* function :
       {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB2}) {
      const Engine engine;
      fail(function, CUDA_ERROR_OUT_OF_MEMORY, "*");
      CUdeviceptr out = kUntouched;
      INFO(function << " for " << bytes);
      REQUIRE(allocate(&out, bytes) == CUDA_SUCCESS);
      engine::BlockView block;
      REQUIRE(engine::find(out, &block) == Place::block);
      CHECK(block.kind == Kind::native);
      CHECK(engine.alive().handles == 0);
      CHECK(engine.alive().mappings == 0);
      CHECK(engine.alive().reservations == 0);
      CHECK(release(out) == CUDA_SUCCESS);
      CHECK(engine.alive().native_blocks == 0);

      fail("cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY, "*");
      out = kUntouched;
      CHECK(allocate(&out, bytes) == CUDA_ERROR_OUT_OF_MEMORY);
      CHECK(out == kUntouched);
      CHECK(registry::size() == 0);
      kvsim_fail_none();
      CHECK(allocate(&out, bytes) == CUDA_SUCCESS);
      CHECK(release(out) == CUDA_SUCCESS);
    }
  }
}

TEST_CASE("out of memory never changes the handle type") {
  const Engine engine;
  CUdeviceptr out = 0;
  REQUIRE(allocate(&out, 3 * kMiB2) == CUDA_SUCCESS);
  const driver::HandleStep step = driver::device(0)->step();
  fail("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, "5");
  CUdeviceptr other = 0;
  CHECK(allocate(&other, 3 * kMiB2) == CUDA_SUCCESS);
  CHECK(driver::device(0)->step() == step);
}

TEST_CASE("when VMM is out of memory the cached slabs are given back and it is tried again") {
  const Engine engine;
  CUdeviceptr small = 0;
  REQUIRE(allocate(&small, 4096) == CUDA_SUCCESS);
  REQUIRE(release(small) == CUDA_SUCCESS);
  REQUIRE(engine.alive().mappings == 1);  // the empty slab is kept
  kvsim_set_memory(0, kvsim_device_bytes(0) + 3 * kMiB2);
  CUdeviceptr large = 0;
  REQUIRE(allocate(&large, 4 * kMiB2) == CUDA_SUCCESS);
  engine::BlockView block;
  REQUIRE(engine::find(large, &block) == Place::block);
  CHECK(block.kind == Kind::vmm);
  CHECK(engine.alive().mappings == 1);
  CHECK(telemetry::counters.trims == 1);
  CHECK(release(large) == CUDA_SUCCESS);
}

TEST_CASE("an address whose unmapping failed is quarantined: never freed, never given out again") {
  const Engine engine;
  CUdeviceptr first = 0;
  REQUIRE(allocate(&first, 3 * kMiB2) == CUDA_SUCCESS);
  fail("cuMemUnmap", CUDA_ERROR_UNKNOWN);
  CHECK(release(first) == CUDA_SUCCESS);  // the host program's block is gone all the same
  CHECK(engine.alive().reservations == 1);
  CUdeviceptr second = 0;
  REQUIRE(allocate(&second, 3 * kMiB2) == CUDA_SUCCESS);
  CHECK(second != first);
  CHECK(release(second) == CUDA_SUCCESS);

  fail("cuMemSetAccess", 719);
  fail("cuMemUnmap", CUDA_ERROR_UNKNOWN);
  CUdeviceptr out = kUntouched;
  CHECK(allocate(&out, 3 * kMiB2) == 719);
  CHECK(out == kUntouched);
  CHECK(engine.alive().reservations == 2);
}

TEST_CASE("a refused release or address free loses memory but not the process") {
  for (const char* function : {"cuMemRelease", "cuMemAddressFree"}) {
    const Engine engine;
    CUdeviceptr out = 0;
    REQUIRE(allocate(&out, 3 * kMiB2) == CUDA_SUCCESS);
    fail(function, CUDA_ERROR_UNKNOWN);
    CHECK(release(out) == CUDA_SUCCESS);
    CHECK(registry::size() == 0);
    CHECK(allocate(&out, 3 * kMiB2) == CUDA_SUCCESS);
    CHECK(release(out) == CUDA_SUCCESS);
  }
}

TEST_CASE(
    "managed memory that cannot be had: out of memory stays 2, a refusal becomes vmm for good") {
  {
    const Engine engine;
    fail("cuMemAllocManaged", CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr out = kUntouched;
    CHECK(allocate(&out, kLarge) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(out == kUntouched);
    CHECK(registry::size() == 0);
    CHECK(allocate(&out, kLarge) == CUDA_SUCCESS);
    CHECK(release(out) == CUDA_SUCCESS);
    CHECK(engine.alive().managed_blocks == 0);
  }
  const Engine engine;
  fail("cuMemAllocManaged", CUDA_ERROR_NOT_SUPPORTED);
  for (int i = 0; i < 3; ++i) {
    CUdeviceptr out = 0;
    REQUIRE(allocate(&out, kLarge) == CUDA_SUCCESS);
    engine::BlockView block;
    REQUIRE(engine::find(out, &block) == Place::block);
    CHECK(block.kind == Kind::vmm);
    CHECK(release(out) == CUDA_SUCCESS);
  }
  CHECK(kvsim_log_count("cuMemAllocManaged") == 1);
}

TEST_CASE("a request that no machine can hold is refused before a page is touched") {
  const Engine engine;
  for (const std::size_t bytes :
       {std::size_t{1} << 50, std::size_t{1} << 62, ~std::size_t{0}, ~std::size_t{0} - 4096}) {
    CUdeviceptr out = kUntouched;
    CHECK(allocate(&out, bytes) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(out == kUntouched);
  }
  CHECK(kvsim_log_count("cuMemAllocManaged") == 0);
  CHECK(telemetry::counters.out_of_memory == 4);
}

TEST_CASE("a free that the driver refuses keeps the block, and works later") {
  const Engine engine;
  for (const std::size_t bytes : {std::size_t{512}, 3 * kMiB2, kLarge}) {
    CUdeviceptr out = 0;
    REQUIRE(allocate(&out, bytes) == CUDA_SUCCESS);
    fail("cuMemFree_v2", 719);
    CHECK(release(out) == 719);
    engine::BlockView block;
    CHECK(engine::find(out, &block) == Place::block);
    CHECK(release(out) == CUDA_SUCCESS);
    CHECK(engine::find(out, &block) != Place::block);
  }
}

TEST_CASE("without a byte for the spare block a free still waits and succeeds") {
  const Engine engine;
  fail("cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY, "*");
  CUdeviceptr out = 0;
  REQUIRE(allocate(&out, 3 * kMiB2) == CUDA_SUCCESS);
  CHECK(release(out) == CUDA_SUCCESS);
  CHECK(kvsim_log_count("cuCtxSynchronize") == 1);
}

TEST_CASE("a context that failed refuses allocations and frees with its own code") {
  const Engine engine;
  CUdeviceptr out = 0;
  REQUIRE(allocate(&out, 512) == CUDA_SUCCESS);
  fail("cuMemFree_v2", 700, "*");
  CUdeviceptr other = kUntouched;
  CHECK(allocate(&other, 512) == 700);
  CHECK(other == kUntouched);
  CHECK(release(out) == 700);
}

TEST_CASE("an MPS client whose server is gone: the driver's code from every call, nothing lost") {
  for (const int code : {805, 806, 807, 810, 811}) {
    const Engine engine;
    CUdeviceptr small = 0, medium = 0, out = kUntouched;
    REQUIRE(allocate(&small, 4096) == CUDA_SUCCESS);
    REQUIRE(allocate(&medium, 3 * kMiB2) == CUDA_SUCCESS);
    fail("cuMemFree_v2", code, "*");
    INFO("the driver answers " << code);
    for (const std::size_t bytes : {std::size_t{256}, 3 * kMiB2, kLarge}) {
      CHECK(allocate(&out, bytes) == code);
      CHECK(out == kUntouched);
    }
    CHECK(release(small) == code);
    CHECK(release(medium) == code);
    CHECK(registry::size() == 2);
    kvsim_fail_none();
    CHECK(release(small) == CUDA_SUCCESS);
    CHECK(release(medium) == CUDA_SUCCESS);
  }
}

TEST_CASE("a MIG instance: a slice of the memory, no managed memory, no fabric, no peers") {
  const Engine engine;
  kvsim_set_attribute(0, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0);
  kvsim_set_attribute(0, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
  kvsim_set_attribute(0, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0);
  kvsim_set_p2p(0, 1, 0);
  kvsim_set_p2p(1, 0, 0);
  kvsim_set_memory(0, kvsim_device_bytes(0) + 3 * kLarge);
  CUdeviceptr blocks[3] = {}, out = kUntouched;
  REQUIRE(allocate(&blocks[0], kLarge) == CUDA_SUCCESS);
  REQUIRE(allocate(&blocks[1], 3 * kMiB2) == CUDA_SUCCESS);
  REQUIRE(allocate(&blocks[2], 256) == CUDA_SUCCESS);
  CHECK(engine.alive().managed_blocks == 0);
  CHECK(allocate(&out, 3 * kLarge) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(out == kUntouched);
  for (const CUdeviceptr block : blocks) CHECK(release(block) == CUDA_SUCCESS);
  kvsim_set_memory(0, std::size_t{8} << 30);
}
