// Where the pages of managed blocks go: KVSHIM_ADVICE and KVSHIM_PREFETCH, on simulated pages that
// move between host memory and the device. meson.build runs the tests of each tag with the options
// that the tag names.
#include <unistd.h>

#include <thread>

#include "memory/kinds/residency.h"
#include "sim_fixture.h"

using namespace kvshim;

namespace {

constexpr std::size_t kLarge = std::size_t{64} << 20;  // the threshold
constexpr int kHostTables = CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;

CUdeviceptr allocated(std::size_t bytes) {
  CUdeviceptr out = 0;
  REQUIRE(allocate(&out, bytes) == CUDA_SUCCESS);
  engine::BlockView block;
  REQUIRE(engine::find(out, &block) == Place::block);
  CHECK(block.kind == Kind::managed);
  return out;
}

int range(CUdeviceptr ptr, CUmem_range_attribute attribute) {
  int value = -77;
  REQUIRE(cuMemRangeGetAttribute(&value, sizeof(value), attribute, ptr, kLarge) == CUDA_SUCCESS);
  return value;
}

int preferred(CUdeviceptr ptr) {
  return range(ptr, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION);
}
int accessed_by(CUdeviceptr ptr) {
  return range(ptr, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY);
}

// What the device met when it used the whole block once.
kvsim_traffic use(CUdeviceptr ptr, std::size_t bytes = kLarge) {
  kvsim_clear_traffic();
  REQUIRE(cuMemsetD8(ptr, 0, bytes) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  kvsim_traffic met;
  kvsim_get_traffic(0, &met);
  return met;
}

constexpr int kNowhere = -2;

}  // namespace

TEST_CASE("over PCIe nothing is advised: pages move once and are at home then", "[auto]") {
  const Engine engine;
  const CUdeviceptr ptr = allocated(kLarge);
  CHECK(preferred(ptr) == kNowhere);
  CHECK(kvsim_log_count("cuMemAdvise_v2") == 0);
  CHECK(use(ptr).fetched == kLarge);
  CHECK(use(ptr).local == kLarge);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("with shared page tables blocks stay with the CPU, mapped on the GPU", "[auto]") {
  const Engine engine;
  kvsim_set_attribute(0, kHostTables, 1);
  const CUdeviceptr ptr = allocated(kLarge);
  CHECK(preferred(ptr) == CU_DEVICE_CPU);
  CHECK(accessed_by(ptr) == 0);
  CHECK(use(ptr).in_place == kLarge);
  CHECK(use(ptr).fetched == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("none advises nothing, on any platform", "[none]") {
  const Engine engine;
  kvsim_set_attribute(0, kHostTables, 1);
  const CUdeviceptr ptr = allocated(kLarge);
  CHECK(preferred(ptr) == kNowhere);
  CHECK(kvsim_log_count("cuMemAdvise_v2") == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("host: the CPU's memory is preferred, and the owner's device reads it there", "[host]") {
  const Engine engine;
  CUcontext second = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
  const CUdeviceptr ptr = allocated(kLarge);
  CHECK(preferred(ptr) == CU_DEVICE_CPU);
  CHECK(accessed_by(ptr) == 1);
  CHECK(release(ptr) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(engine.context) == CUDA_SUCCESS);
  const CUdeviceptr own = allocated(kLarge);
  CHECK(use(own).in_place == kLarge);
  CHECK(kvsim_resident_on_device(own, kLarge) == 0);
  CHECK(release(own) == CUDA_SUCCESS);
  cuDevicePrimaryCtxReset(1);
}

TEST_CASE("device: the GPU is preferred and the CPU maps the pages there", "[device]") {
  const Engine engine;
  const CUdeviceptr ptr = allocated(kLarge);
  CHECK(preferred(ptr) == 0);
  CHECK(accessed_by(ptr) == CU_DEVICE_CPU);
  CHECK(kvsim_resident_on_host(ptr, kLarge) == kLarge);  // until the GPU uses them
  CHECK(use(ptr).fetched == kLarge);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("the form of the call follows the driver's version", "[host][before-12.2]") {
  const Engine engine;
  const CUdeviceptr ptr = allocated(kLarge);
  int version = 0;
  REQUIRE(cuDriverGetVersion(&version) == CUDA_SUCCESS);
  const bool second = version >= 12020;
  CHECK(kvsim_log_count("cuMemAdvise_v2") == (second ? 2 : 0));
  CHECK(kvsim_log_count("cuMemAdvise") == (second ? 0 : 2));
  CHECK(preferred(ptr) == CU_DEVICE_CPU);
  CHECK(accessed_by(ptr) == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("advice that the driver refuses is no reason to fail", "[host]") {
  for (const int code : {1, 101, 801, 2}) {
    for (const int nth : {1, 2}) {
      const Engine engine;
      const std::string rule = "cuMemAdvise_v2:" + std::to_string(nth) + ":" + std::to_string(code);
      REQUIRE(kvsim_fail(rule.c_str()) == 0);
      INFO(rule);
      const CUdeviceptr ptr = allocated(kLarge);
      CHECK(release(ptr) == CUDA_SUCCESS);
      CHECK(engine.alive().managed_blocks == 0);
    }
  }
}

TEST_CASE("advice does not end a capture that began while the block was placed", "[host]") {
  const Engine engine;
  CHECK(release(allocated(kLarge)) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  kvsim_hold("cuMemAdvise_v2");
  CUdeviceptr ptr = 0;
  std::thread other([&] {
    CHECK(cuCtxSetCurrent(engine.context) == CUDA_SUCCESS);
    CHECK(allocate(&ptr, kLarge) == CUDA_SUCCESS);
  });
  while (kvsim_waiting("cuMemAdvise_v2") == 0) usleep(1000);
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  kvsim_release("cuMemAdvise_v2");
  other.join();
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  cuGraphDestroy(graph);
  cuStreamDestroy(stream);
  CHECK(preferred(ptr) == CU_DEVICE_CPU);
  CHECK(accessed_by(ptr) == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("prefetch: smaller blocks are on the GPU at once, larger ones are not",
          "[prefetch][before-12.2]") {
  const Engine engine;
  const CUdeviceptr weights = allocated(kLarge);
  const CUdeviceptr cache = allocated(2 * kLarge);  // KVSHIM_PREFETCH is its size
  CHECK(kvsim_resident_on_device(weights, kLarge) == kLarge);
  CHECK(kvsim_resident_on_device(cache, 2 * kLarge) == 0);
  CHECK(kvsim_work_in_flight() == 0);
  CHECK(use(weights).local == kLarge);
  int version = 0;
  REQUIRE(cuDriverGetVersion(&version) == CUDA_SUCCESS);
  const bool second = version >= 12020;
  CHECK(kvsim_log_count("cuMemPrefetchAsync_v2") == (second ? 1 : 0));
  CHECK(kvsim_log_count("cuMemPrefetchAsync") == (second ? 0 : 1));
  CHECK(release(weights) == CUDA_SUCCESS);
  CHECK(release(cache) == CUDA_SUCCESS);
}

TEST_CASE("a memset of a prefetched block is the device's: the CPU would fetch it back",
          "[prefetch]") {
  const Engine engine;
  const CUdeviceptr weights = allocated(kLarge);
  const CUdeviceptr cache = allocated(2 * kLarge);
  CUresult result = CUDA_SUCCESS;
  engine::Memset request{weights, 0, kLarge, 1, {0, 1}, CU_STREAM_LEGACY, true};
  CHECK_FALSE(engine::memset(request, &result));
  request.destination = cache;
  CHECK(engine::memset(request, &result));
  CHECK(release(weights) == CUDA_SUCCESS);
  CHECK(release(cache) == CUDA_SUCCESS);
}

TEST_CASE("a block that the GPU has no room for is not moved: others would be driven out",
          "[prefetch]") {
  const Engine engine;
  CHECK(release(allocated(kLarge)) == CUDA_SUCCESS);  // spares and slabs are there
  kvsim_set_memory(0, kvsim_device_bytes(0) + kLarge + kLarge / 2);
  const CUdeviceptr first = allocated(kLarge);
  const CUdeviceptr second = allocated(kLarge);
  CHECK(kvsim_resident_on_device(first, kLarge) == kLarge);
  CHECK(kvsim_resident_on_device(second, kLarge) == 0);
  CHECK(release(first) == CUDA_SUCCESS);
  CHECK(release(second) == CUDA_SUCCESS);
}

TEST_CASE("a prefetch that fails is no reason to fail", "[prefetch]") {
  for (const char* function :
       {"cuMemPrefetchAsync_v2", "cuStreamCreate", "cuStreamSynchronize", "cuMemGetInfo_v2"}) {
    for (const int code : {1, 101, 801, 2}) {
      const Engine engine;
      CHECK(release(allocated(kLarge)) == CUDA_SUCCESS);  // the context's own streams are there
      REQUIRE(kvsim_fail((std::string(function) + ":1:" + std::to_string(code)).c_str()) == 0);
      INFO(function << " answers " << code);
      const kvsim_counts was = engine.alive();
      const CUdeviceptr ptr = allocated(kLarge);
      CHECK(engine.alive().streams <= was.streams);
      CHECK(release(ptr) == CUDA_SUCCESS);
    }
  }
}

TEST_CASE("too much for the device, used again and again: every pass moves every page", "[auto]") {
  const Engine engine;
  const CUdeviceptr ptr = allocated(3 * kLarge);
  kvsim_set_memory(0, kvsim_device_bytes(0) + 2 * kLarge);
  const kvsim_traffic first = use(ptr, 3 * kLarge);
  CHECK(first.fetched == 3 * kLarge);
  CHECK(first.evicted == kLarge);
  const kvsim_traffic second = use(ptr, 3 * kLarge);
  CHECK(second.fetched == 3 * kLarge);
  CHECK(second.evicted == 3 * kLarge);
  CHECK(second.local == 0);
  CHECK(kvsim_resident_on_device(ptr, 3 * kLarge) == 2 * kLarge);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("native and vmm memory drives managed pages out, and is not refused for them", "[auto]") {
  const Engine engine;
  const CUdeviceptr ptr = allocated(2 * kLarge);
  kvsim_set_memory(0, kvsim_device_bytes(0) + 2 * kLarge);
  CHECK(use(ptr, 2 * kLarge).evicted == 0);
  CUdeviceptr own = 0;
  REQUIRE(allocate(&own, kLarge - 1) == CUDA_SUCCESS);
  CHECK(kvsim_resident_on_device(ptr, 2 * kLarge) <= kLarge);
  CHECK(release(own) == CUDA_SUCCESS);
  CHECK(release(ptr) == CUDA_SUCCESS);
}
