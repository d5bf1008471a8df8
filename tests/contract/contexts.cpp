// Contexts other than the primary one: who owns a block, and what becomes of it.
#include "gpu.h"

using namespace contract;

namespace {

// A context made by cuCtxCreate, current until the end of the scope; then the primary one is.
class OwnContext {
 public:
  OwnContext() { CALL(cu.cuCtxCreate_v2(&context_, 0, first_device())); }
  ~OwnContext() {
    if (context_ != nullptr) cu.cuCtxDestroy(context_);
    use_primary();
  }
  operator CUcontext() const { return context_; }  // NOLINT
  void destroy() {
    CALL(cu.cuCtxDestroy(context_));
    context_ = nullptr;
  }

 private:
  CUcontext context_ = nullptr;
};

CUcontext current() {
  CUcontext context = nullptr;
  CALL(cu.cuCtxGetCurrent(&context));
  return context;
}

}  // namespace

CHECK_CASE_SIZES("contexts", "a block is made in the current context and belongs to it", plain) {
  const CUcontext primary = use_primary();
  const OwnContext own;
  const Block block(size.bytes);
  CUcontext owner = nullptr;
  GIVES(0, cu.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block));
  EXPECT(owner == static_cast<CUcontext>(own));
  EXPECT(owner != primary);
  EXPECT(current() == static_cast<CUcontext>(own));
}

CHECK_CASE_SIZES("contexts", "a block can be freed while another context is current", plain) {
  const CUcontext primary = use_primary();
  Block from_primary(size.bytes);
  const OwnContext own;
  Block from_own(size.bytes);
  GIVES(0, cu.cuMemFree(from_primary.leave()));
  EXPECT(current() == static_cast<CUcontext>(own));
  CALL(cu.cuCtxSetCurrent(primary));
  GIVES(0, cu.cuMemFree(from_own.leave()));
  EXPECT(current() == primary);
}

CHECK_CASE("contexts", "blocks of two contexts do not overlap and both work", plain) {
  const CUcontext primary = use_primary();
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB, option_large()}) {
    CALL(cu.cuCtxSetCurrent(primary));
    const Block first(bytes);
    CALL(cu.cuMemsetD8(first, 1, bytes));
    const OwnContext own;
    const Block second(bytes);
    CALL(cu.cuMemsetD8(second, 2, bytes));
    EXPECT(first.end() <= second || second.end() <= first);
    EXPECT(holds_byte(second, bytes, 2));
    CALL(cu.cuCtxSetCurrent(primary));
    EXPECT(holds_byte(first, bytes, 1));
  }
}

CHECK_CASE_SIZES("contexts", "whether a free waits for the owner when another context is current",
                 plain | observes) {
  const CUcontext primary = use_primary();
  Block block(size.bytes);
  const Stream stream;
  load_kernels();
  {
    const OwnContext own;
    CALL(cu.cuCtxSetCurrent(primary));
    spin(stream, 0.25);
    CALL(cu.cuCtxSetCurrent(own));
    GIVES(0, cu.cuMemFree(block.leave()));
    CALL(cu.cuCtxSetCurrent(primary));
    observe_yes("waited", !stream.busy());
  }
}

CHECK_CASE_SIZES("contexts", "whether a free waits for a context that does not own the block",
                 plain | observes) {
  const CUcontext primary = use_primary();
  const Stream stream;
  load_kernels();
  {
    const OwnContext own;
    Block block(size.bytes);
    CALL(cu.cuCtxSetCurrent(primary));
    spin(stream, 0.25);
    CALL(cu.cuCtxSetCurrent(own));
    GIVES(0, cu.cuMemFree(block.leave()));
    CALL(cu.cuCtxSetCurrent(primary));
    observe_yes("waited", !stream.busy());
  }
}

CHECK_CASE("contexts", "memory calls leave the context stack as it was", plain) {
  const CUcontext primary = use_primary();
  const OwnContext own;
  CALL(cu.cuCtxPushCurrent(primary));
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB, option_large()}) {
    const Block block(bytes);
    CALL(cu.cuMemsetD8(block, 1, 64));
    CUdeviceptr base = 0;
    CALL(cu.cuMemGetAddressRange(&base, nullptr, block));
    memory_info();
  }
  CUcontext popped = nullptr;
  GIVES(0, cu.cuCtxPopCurrent(&popped));
  EXPECT(popped == primary);
  EXPECT(current() == static_cast<CUcontext>(own));
}

CHECK_CASE("contexts", "destroying a context gives its memory back", plain) {
  use_primary();
  { const OwnContext warm; }
  const std::size_t before = memory_info().free;
  {
    OwnContext own;
    CUdeviceptr ptr = 0;
    for (int i = 0; i < 100; ++i) CALL(cu.cuMemAlloc(&ptr, 3 * kMiB));
    for (int i = 0; i < 1000; ++i) CALL(cu.cuMemAlloc(&ptr, 4096));
    CALL(cu.cuMemAlloc(&ptr, option_large()));
    own.destroy();
  }
  EXPECT(memory_info().free + 100 * kMiB > before);
}

CHECK_CASE_SIZES("contexts", "a block of a destroyed context is gone", plain | observes) {
  use_primary();
  CUdeviceptr ptr = 0;
  {
    OwnContext own;
    CALL(cu.cuMemAlloc(&ptr, size.bytes));
    own.destroy();
  }
  unsigned type = 0;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  observe("attribute", cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
  observe("range", cu.cuMemGetAddressRange(&base, &bytes, ptr));
  observe("memset", cu.cuMemsetD8(ptr, 0, 16));
  observe("free", cu.cuMemFree(ptr));
  const Block next(size.bytes);
  CALL(cu.cuMemsetD8(next, 3, size.bytes));
  EXPECT(holds_byte(next, size.bytes, 3));
}

CHECK_CASE_SIZES("contexts", "after a reset of the primary context its blocks are gone",
                 isolated | observes) {
  use_primary();
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAlloc(&ptr, size.bytes));
  GIVES(0, cu.cuDevicePrimaryCtxReset(first_device()));
  CUcontext context = nullptr;
  CALL(cu.cuDevicePrimaryCtxRetain(&context, first_device()));
  CALL(cu.cuCtxSetCurrent(context));
  unsigned type = 0;
  observe("attribute", cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
  observe("free", cu.cuMemFree(ptr));
  const Block next(size.bytes);
  CALL(cu.cuMemsetD8(next, 3, size.bytes));
  EXPECT(holds_byte(next, size.bytes, 3));
}

CHECK_CASE("contexts", "memory comes back after a reset of the primary context", isolated) {
  use_primary();
  const std::size_t before = memory_info().free;
  CUdeviceptr ptr = 0;
  for (int i = 0; i < 100; ++i) CALL(cu.cuMemAlloc(&ptr, 3 * kMiB));
  CALL(cu.cuMemAlloc(&ptr, option_large()));
  GIVES(0, cu.cuDevicePrimaryCtxReset(first_device()));
  CUcontext context = nullptr;
  CALL(cu.cuDevicePrimaryCtxRetain(&context, first_device()));
  CALL(cu.cuCtxSetCurrent(context));
  EXPECT(memory_info().free + 100 * kMiB > before);
}

CHECK_CASE("contexts", "5 contexts come and go, each with blocks of its own", plain) {
  use_primary();
  for (unsigned i = 0; i < 5; ++i) {
    const OwnContext own;
    const Block small(4096), medium(2 * kMiB);
    CALL(cu.cuMemsetD32(small, i, 1024));
    EXPECT(holds_word(small, 1024, i));
    CALL(cu.cuMemsetD32(medium, i, 1024));
    EXPECT(holds_word(medium, 1024, i));
  }
}
