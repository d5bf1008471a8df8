// Whose a block is: contexts of the program's own, and green contexts, whose memory is the primary
// context's.
#include "sim_fixture.h"

using namespace kvshim;

extern "C" CUresult cuCtxCreate_v2(CUcontext*, unsigned, CUdevice);  // not in CUDA 13's cuda.h

namespace {

class Green {
 public:
  Green() {
    CUdevResource all, part;
    CUdevResourceDesc description = nullptr;
    unsigned groups = 1;
    REQUIRE(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
    REQUIRE(cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 8) == CUDA_SUCCESS);
    REQUIRE(cuDevResourceGenerateDesc(&description, &part, 1) == CUDA_SUCCESS);
    REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
    REQUIRE(cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS);
  }
  ~Green() {
    if (green != nullptr) cuGreenCtxDestroy(green);
  }
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
};

Owner* current() {
  Owner* owner = nullptr;
  REQUIRE(owners.current(&owner) == CUDA_SUCCESS);
  return owner;
}

}  // namespace

TEST_CASE("a green context's blocks are the primary context's, whichever came first") {
  for (const bool primary_first : {true, false}) {
    const Engine engine;
    const Green green;
    Owner* primary = primary_first ? current() : nullptr;
    REQUIRE(cuCtxSetCurrent(green.context) == CUDA_SUCCESS);
    CUdeviceptr block = 0;
    REQUIRE(allocate(&block, 3 * kMiB2) == CUDA_SUCCESS);
    Owner* in_green = current();
    REQUIRE(cuCtxSetCurrent(engine.context) == CUDA_SUCCESS);
    if (primary == nullptr) primary = current();
    CHECK(in_green == primary);
    CHECK(primary->context() == engine.context);
    engine::BlockView view;
    REQUIRE(engine::find(block, &view) == Place::block);
    CHECK(view.context == engine.context);
    CHECK(release(block) == CUDA_SUCCESS);
  }
}

TEST_CASE("a green context asks once, and leaves nothing behind but the two spares") {
  const Engine engine;
  const Green green;
  REQUIRE(cuCtxSetCurrent(green.context) == CUDA_SUCCESS);
  CUdeviceptr block = 0;
  for (int round = 0; round < 5; ++round) {
    REQUIRE(allocate(&block, 3 * kMiB2) == CUDA_SUCCESS);
    CHECK(release(block) == CUDA_SUCCESS);
  }
  CHECK(kvsim_log_count("cuDevicePrimaryCtxGetState") == 1);
  CHECK(engine.alive().native_blocks <= 2);
  CHECK(engine.alive().handles == 0);
}

TEST_CASE("blocks outlive the green context they were made in") {
  const Engine engine;
  CUdeviceptr blocks[6] = {};
  {
    const Green green;
    REQUIRE(cuCtxSetCurrent(green.context) == CUDA_SUCCESS);
    for (CUdeviceptr& block : blocks) REQUIRE(allocate(&block, 3 * kMiB2) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(engine.context) == CUDA_SUCCESS);
  }
  for (const CUdeviceptr block : blocks) CHECK(release(block) == CUDA_SUCCESS);
  CHECK(registry::size() == 0);
  CHECK(engine.alive().handles == 0);
}

TEST_CASE("a context whose owner cannot be asked: the driver's code, nothing kept, then it works") {
  const Engine engine;
  CUcontext own = nullptr;
  REQUIRE(cuCtxCreate_v2(&own, 0, 0) == CUDA_SUCCESS);
  REQUIRE(kvsim_fail("cuMemAlloc_v2:1:2") == 0);
  CUdeviceptr out = 77;
  CHECK(allocate(&out, 4096) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(out == 77);
  CHECK(owners.first() == nullptr);
  // No word on whose memory it is: the context's own.
  REQUIRE(kvsim_fail("cuPointerGetAttribute:1:999") == 0);
  REQUIRE(allocate(&out, 4096) == CUDA_SUCCESS);
  CHECK(current()->context() == own);
  CHECK(release(out) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy_v2(own) == CUDA_SUCCESS);
}

TEST_CASE("a context of the program's own owns its blocks") {
  const Engine engine;
  Owner* primary = current();
  CUcontext own = nullptr;
  REQUIRE(cuCtxCreate_v2(&own, 0, 0) == CUDA_SUCCESS);
  CHECK(current() != primary);
  CHECK(current()->context() == own);
  CHECK(cuCtxDestroy_v2(own) == CUDA_SUCCESS);
}
