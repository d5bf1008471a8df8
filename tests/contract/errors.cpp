// Errors of the program's own making: they are its own, they stay where they are, and they are
// the driver's.
#include "gpu.h"

using namespace contract;

CHECK_CASE("errors", "a refused call leaves no error for the calls after it", plain) {
  const Stream stream;
  const Block block(4096);
  CUdeviceptr ptr = 0;
  GIVES(1, cu.cuMemAlloc(&ptr, 0));
  GIVES(2, cu.cuMemAlloc(&ptr, std::size_t{1} << 50));
  GIVES(1, cu.cuMemFree(kNowhere));
  REFUSES(cu.cuMemsetD8(kNowhere, 0, 4));
  GIVES(0, cu.cuCtxSynchronize());
  GIVES(0, cu.cuStreamSynchronize(stream));
  fill(stream, block, 1024, 1);
  stream.finish();
  EXPECT(holds_word(block, 1024, 1));
}

CHECK_CASE("errors", "a hundred refused calls in a row, then a good one", plain) {
  CUdeviceptr ptr = 0;
  for (int i = 0; i < 100; ++i) {
    GIVES(2, cu.cuMemAlloc(&ptr, std::size_t{1} << 50));
    GIVES(1, cu.cuMemFree(kNowhere + static_cast<CUdeviceptr>(i)));
  }
  const Block small(4096), medium(3 * kMiB), large(option_large());
}

CHECK_CASE_SIZES("errors", "an illegal access ends the context: memory calls give 700",
                 isolated | observes) {
  CUdeviceptr ptr = 0, next = 0, base = 0;
  std::size_t free = 0, total = 0;
  CALL(cu.cuMemAlloc(&ptr, size.bytes));
  const Stream stream;
  fill(stream, kNowhere, 1, 1);
  GIVES(700, cu.cuStreamSynchronize(stream));
  const CUresult allocated = cu.cuMemAlloc(&next, size.bytes);
  const CUresult set = cu.cuMemsetD8(ptr, 0, 64);
  REFUSES(allocated);
  REFUSES(set);
  observe("alloc", allocated);
  observe("memset", set);
  observe("memset async", cu.cuMemsetD8Async(ptr, 0, 64, stream));
  observe("info", cu.cuMemGetInfo(&free, &total));
  observe("range", cu.cuMemGetAddressRange(&base, &total, ptr));
  observe("free", cu.cuMemFree(ptr));
  observe("free again", cu.cuMemFree(ptr));
  observe("free of 0", cu.cuMemFree(0));
}

CHECK_CASE_SIZES("errors", "after an illegal access a new process works", plain) {
  const Outcome dead = run_scene("errors_illegal_access", {std::to_string(size.bytes)});
  if (dead.code != 0 || dead.signal != 0 || dead.hung) fail(__FILE__, __LINE__, show(dead));
  const Block block(size.bytes);
  CALL(cu.cuMemsetD8(block, 1, size.bytes));
  EXPECT(holds_byte(block, size.bytes, 1));
}

SCENE("errors_illegal_access", illegal_access) {
  use_primary();
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAlloc(&ptr, std::stoull(args.at(0))));
  fill(nullptr, kNowhere, 1, 1);
  return cu.cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1;
}

CHECK_CASE("errors", "allocation in a context that was destroyed", isolated | observes) {
  CUcontext own = nullptr;
  CALL(cu.cuCtxCreate_v2(&own, 0, first_device()));
  CUdeviceptr ptr = 0;
  on_thread([&] {
    CALL(cu.cuCtxSetCurrent(own));
    on_thread([&] { CALL(cu.cuCtxDestroy(own)); });
    const CUresult small = cu.cuMemAlloc(&ptr, 4096);
    const CUresult large = cu.cuMemAlloc(&ptr, option_large());
    REFUSES(small);
    REFUSES(large);
    observe("small", small);
    observe("large", large);
    std::size_t free = 0, total = 0;
    observe("info", cu.cuMemGetInfo(&free, &total));
    observe("free of 0", cu.cuMemFree(0));
  });
  use_primary();
  const Block block(4096);
}

CHECK_CASE("errors", "error names and texts are the driver's", plain) {
  for (const CUresult code : {CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
                              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED}) {
    const char* name = nullptr;
    GIVES(0, cu.cuGetErrorName(code, &name));
    EXPECT(name != nullptr);
  }
}
