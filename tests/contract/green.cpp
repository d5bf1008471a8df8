// Green contexts: a share of the device's multiprocessors, current like any other context. Who owns
// memory that was allocated there, and what becomes of it when the green context goes, is for the
// driver to say: observed, and the same with kvshim.
#include "gpu.h"

using namespace contract;

namespace {

class GreenContext {
 public:
  enum Alone { alone };
  GreenContext() {
    use_primary();
    load_kernels();
    create();
  }
  explicit GreenContext(Alone) : alone_(true) { create(); }
  ~GreenContext() {
    if (!alone_) use_primary();
    if (green_ != nullptr) cu.cuGreenCtxDestroy(green_);
  }
  GreenContext(const GreenContext&) = delete;
  operator CUcontext() const { return context_; }  // NOLINT
  void destroy() {
    use_primary();
    CALL(cu.cuGreenCtxDestroy(green_));
    green_ = nullptr;
  }

 private:
  void create() {
    if (cu.cuGreenCtxCreate == nullptr || cu.cuDeviceGetDevResource == nullptr ||
        cu.cuDevSmResourceSplitByCount == nullptr || cu.cuDevResourceGenerateDesc == nullptr ||
        cu.cuCtxFromGreenCtx == nullptr || cu.cuGreenCtxDestroy == nullptr) {
      SKIP("the driver has no green contexts");
    }
    CUdevResource all{}, part{};
    CUdevResourceDesc description = nullptr;
    unsigned groups = 1;
    CALL(cu.cuDeviceGetDevResource(first_device(), &all, CU_DEV_RESOURCE_TYPE_SM));
    CALL(cu.cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 8));
    CALL(cu.cuDevResourceGenerateDesc(&description, &part, 1));
    CALL(cu.cuGreenCtxCreate(&green_, description, first_device(), CU_GREEN_CTX_DEFAULT_STREAM));
    CALL(cu.cuCtxFromGreenCtx(&context_, green_));
    CALL(cu.cuCtxSetCurrent(context_));
  }

  bool alone_ = false;  // nobody else has retained the primary context
  CUgreenCtx green_ = nullptr;
  CUcontext context_ = nullptr;
};

}  // namespace

CHECK_CASE_SIZES("green", "allocate, use and free in a green context", plain) {
  const GreenContext green;
  for (int round = 0; round < 20; ++round) {
    const Block block(size.bytes);
    CALL(cu.cuMemsetD32(block.end() - 4096, 3, 1024));
    fill(nullptr, block, 256, 3);
    EXPECT(holds_word(block.end() - 4096, 1024, 3));
    EXPECT(holds_word(block, 256, 3));
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    GIVES(0, cu.cuMemGetAddressRange(&base, &bytes, block + 100));
    EXPECT_EQ(base, block.ptr());
    EXPECT_EQ(bytes, size.bytes);
  }
}

CHECK_CASE_SIZES("green", "whose a block is that was made in a green context", plain | observes) {
  const CUcontext primary = use_primary();
  const GreenContext green;
  const Block block(size.bytes);
  CUcontext owner = nullptr;
  GIVES(0, cu.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block));
  observe_yes("the primary context's", owner == primary);
  observe_yes("the green context's", owner == static_cast<CUcontext>(green));
  CUcontext current = nullptr;
  GIVES(0, cu.cuCtxGetCurrent(&current));
  EXPECT(current == static_cast<CUcontext>(green));
}

CHECK_CASE_SIZES("green", "free while the other context is current, both ways", plain) {
  const CUcontext primary = use_primary();
  Block from_primary(size.bytes);
  const GreenContext green;
  Block from_green(size.bytes);
  GIVES(0, cu.cuMemFree(from_primary.leave()));
  CALL(cu.cuCtxSetCurrent(primary));
  GIVES(0, cu.cuMemFree(from_green.leave()));
}

CHECK_CASE_SIZES("green", "whether a free waits for kernels of the green context",
                 plain | observes) {
  const GreenContext green;
  Block in_green(size.bytes);
  const Stream stream;
  load_kernels();
  spin(stream, 0.25);
  GIVES(0, cu.cuMemFree(in_green.leave()));
  observe_yes("in the green context", !stream.busy());
  stream.finish();
  use_primary();
  Block in_primary(size.bytes);
  CALL(cu.cuCtxSetCurrent(green));
  spin(stream, 0.25);
  use_primary();
  GIVES(0, cu.cuMemFree(in_primary.leave()));
  CALL(cu.cuCtxSetCurrent(green));
  observe_yes("a block of the primary context", !stream.busy());
  stream.finish();
}

CHECK_CASE_SIZES("green", "a stream-ordered free of a plain block in a green context's stream",
                 plain | observes) {
  const GreenContext green;
  const Stream stream;
  const Block marker(4096);
  Block block(size.bytes);
  fill(stream, block, size.bytes / 4, 4);
  const CUresult code = cu.cuMemFreeAsync(block, stream);
  if (memory_of(size.bytes) == Memory::managed) {
    GIVES(0, code);  // as on any stream: the block is not managed to the program
  }
  observe("code", code);
  if (code == CUDA_SUCCESS) block.leave();
  fill(stream, marker, 1024, 5);
  stream.finish();
  EXPECT(holds_word(marker, 1024, 5));
}

CHECK_CASE_SIZES("green", "blocks of a green context that is gone", isolated | observes) {
  CUdeviceptr blocks[8] = {};
  {
    GreenContext green;
    for (CUdeviceptr& ptr : blocks) CALL(cu.cuMemAlloc(&ptr, size.bytes));
    CALL(cu.cuMemsetD32(blocks[0], 9, size.bytes / 4));
    CALL(cu.cuCtxSynchronize());
    green.destroy();
  }
  unsigned type = 0;
  CUdeviceptr base = 0;
  const CUresult known =
      cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, blocks[0]);
  observe("attribute", known);
  observe("range", cu.cuMemGetAddressRange(&base, nullptr, blocks[0]));
  observe("memset", cu.cuMemsetD8(blocks[1], 1, 16));
  if (known == CUDA_SUCCESS) EXPECT(holds_word(blocks[0], size.bytes / 4, 9));
  for (const CUdeviceptr ptr : blocks) observe("free", cu.cuMemFree(ptr));
  observe("free again", cu.cuMemFree(blocks[0]));
  const Block next(size.bytes);
  CALL(cu.cuMemsetD8(next, 3, size.bytes));
  EXPECT(holds_byte(next, size.bytes, 3));
}

// Documented: the green context retains the primary one, and its end releases it.
CHECK_CASE_SIZES("green", "a primary context that only the green one held, and its blocks",
                 isolated | observes | no_context) {
  CALL(cu.cuInit(0));
  for (int round = 0; round < 3; ++round) {
    CUdeviceptr ptr = 0;
    {
      GreenContext green(GreenContext::alone);
      CALL(cu.cuMemAlloc(&ptr, size.bytes));
      CALL(cu.cuMemsetD8(ptr, 1, size.bytes));
      CALL(cu.cuCtxSynchronize());
      CALL(cu.cuCtxSetCurrent(nullptr));
    }
    unsigned flags = 0;
    int active = 0;
    GIVES(0, cu.cuDevicePrimaryCtxGetState(first_device(), &flags, &active));
    observe("the primary context is active", active);
    unsigned type = 0;
    observe("attribute", cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
    observe("free", cu.cuMemFree(ptr));
  }
}
