// What a device can do, and which handle type it gets: proved, not believed.
#include "sim_fixture.h"

using namespace kvshim;
using driver::HandleStep;

namespace {

HandleStep step_after_one_block() {
  CUdeviceptr out = 0;
  REQUIRE(allocate(&out, 3 * kMiB2) == CUDA_SUCCESS);
  const HandleStep step = driver::device(0)->step();
  CHECK(release(out) == CUDA_SUCCESS);
  return step;
}

Kind kind_of_block(std::size_t bytes) {
  CUdeviceptr out = 0;
  REQUIRE(allocate(&out, bytes) == CUDA_SUCCESS);
  engine::BlockView block;
  REQUIRE(engine::find(out, &block) == Place::block);
  CHECK(release(out) == CUDA_SUCCESS);
  return block.kind;
}

}  // namespace

TEST_CASE("a fabric handle is used where creation and export work") {
  const Engine engine;
  kvsim_set_fabric(0, 0);
  CHECK(step_after_one_block() == HandleStep::fabric);
}

TEST_CASE(
    "an attribute that promises fabric is not believed: any refusal means POSIX FD, asked once") {
  for (const int code : {800, 801, 1, 999}) {
    const Engine engine;
    kvsim_set_fabric(code, 0);
    INFO("creation answers " << code);
    CHECK(step_after_one_block() == HandleStep::posix_rdma);
    CHECK(driver::device(0)->fabric_refusal() == code);
    kvsim_log_clear();
    CHECK(step_after_one_block() == HandleStep::posix_rdma);
    CHECK(kvsim_log_count("cuMemCreate") == 1);
  }
}

TEST_CASE(
    "fabric memory that cannot be exported is no fabric memory, and the trial leaves nothing") {
  const Engine engine;
  kvsim_set_fabric(0, 1);
  CHECK(step_after_one_block() == HandleStep::posix_rdma);
  CHECK(engine.alive().handles == 0);
}

TEST_CASE("out of memory at the trial does not decide against fabric") {
  const Engine engine;
  kvsim_set_fabric(0, 0);
  REQUIRE(kvsim_fail("cuMemCreate:1:2") == 0);
  CHECK(step_after_one_block() == HandleStep::fabric);
}

TEST_CASE(
    "a fabric that worked and fails later is left for good, and the block is made all the same") {
  const Engine engine;
  kvsim_set_fabric(0, 0);
  REQUIRE(step_after_one_block() == HandleStep::fabric);
  kvsim_set_fabric(800, 0);
  CHECK(step_after_one_block() == HandleStep::posix_rdma);
  kvsim_set_fabric(0, 0);
  CHECK(step_after_one_block() == HandleStep::posix_rdma);
}

TEST_CASE("a failing reserve, map or set access does not change the handle type") {
  const Engine engine;
  REQUIRE(step_after_one_block() == HandleStep::posix_rdma);
  for (const char* function : {"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    for (const int code : {1, 999, 2, 600}) {
      const std::string rule = std::string(function) + ":1:" + std::to_string(code);
      REQUIRE(kvsim_fail(rule.c_str()) == 0);
      CUdeviceptr out = 0;
      if (allocate(&out, 3 * kMiB2) == CUDA_SUCCESS) release(out);
      kvsim_fail_none();
      CHECK(driver::device(0)->step() == HandleStep::posix_rdma);
    }
  }
}

TEST_CASE("RDMA is asked for exactly where the device has it") {
  for (const int rdma : {0, 1}) {
    const Engine engine;
    kvsim_set_attribute(0, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, rdma);
    CUdeviceptr out = 0;
    REQUIRE(allocate(&out, 3 * kMiB2) == CUDA_SUCCESS);
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(out)) == CUDA_SUCCESS);
    CUmemAllocationProp prop{};
    REQUIRE(cuMemGetAllocationPropertiesFromHandle(&prop, handle) == CUDA_SUCCESS);
    CHECK(prop.allocFlags.gpuDirectRDMACapable == rdma);
    cuMemRelease(handle);
    CHECK(release(out) == CUDA_SUCCESS);
  }
}

TEST_CASE("without VMM, by attribute or by refusal, blocks are native for good") {
  {
    const Engine engine;
    kvsim_set_attribute(0, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
    CHECK(kind_of_block(512) == Kind::native);
    CHECK(kvsim_log_count("cuMemCreate") == 0);
  }
  for (const char* refusal : {"cuMemCreate:1:801:*", "cuMemAddressReserve:1:801:*"}) {
    const Engine engine;
    REQUIRE(kvsim_fail(refusal) == 0);
    CHECK(kind_of_block(3 * kMiB2) == Kind::native);
    kvsim_fail_none();
    kvsim_log_clear();
    CHECK(kind_of_block(3 * kMiB2) == Kind::native);
    CHECK(kvsim_log_count("cuMemCreate") == 0);
    CHECK(engine.alive().handles == 0);
    CHECK(engine.alive().reservations == 0);
  }
}

TEST_CASE("attribute queries that an old driver refuses mean no, and nothing else breaks") {
  const Engine engine;
  for (const int attribute :
       {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED}) {
    kvsim_fail_attribute(0, attribute, 1);
  }
  for (int i = 0; i < 100; ++i) CHECK(kind_of_block(3 * kMiB2) == Kind::vmm);
  CHECK(driver::device(0)->step() == HandleStep::posix);
}

TEST_CASE("a device whose managed memory CPU and GPU cannot share never takes the managed route") {
  for (const int attribute :
       {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY}) {
    const Engine engine;
    kvsim_set_attribute(0, attribute, 0);
    CHECK(kind_of_block(std::size_t{64} << 20) == Kind::vmm);
    CHECK(kvsim_log_count("cuMemAllocManaged") == 0);
  }
}

TEST_CASE("sizes are rounded to the granularity that the device has, for the driver only") {
  for (const std::size_t granularity : {std::size_t{64} << 10, kMiB2, std::size_t{512} << 20}) {
    const Engine engine;
    kvsim_set_granularity(granularity);
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{512}, std::size_t{6912}, kMiB2 - 1,
                                    kMiB2, kMiB2 + 1, std::size_t{5} << 20}) {
      CUdeviceptr out = 0;
      INFO(bytes << " bytes at granularity " << granularity);
      REQUIRE(allocate(&out, bytes) == CUDA_SUCCESS);
      engine::BlockView block;
      REQUIRE(engine::find(out + bytes - 1, &block) == Place::block);
      CHECK(block.bytes == bytes);
      CHECK(block.kind == Kind::vmm);
      CHECK(out % 512 == 0);
      CHECK(engine::find(out + bytes, &block) != Place::block);
      CHECK(release(out) == CUDA_SUCCESS);
    }
  }
}

TEST_CASE("host locations are never probed") {
  const Engine engine;
  kvsim_set_host_numa_crash(1);
  CHECK(kind_of_block(512) == Kind::vmm);
  CHECK(kind_of_block(std::size_t{64} << 20) == Kind::managed);
}
