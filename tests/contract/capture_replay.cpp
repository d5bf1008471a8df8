// What is captured works when it is replayed: memset nodes, and memory around a graph's life.
#include "capture.h"

using namespace contract;

CHECK_CASE_SIZES("capture", "an async memset is captured, and each replay sets the value anew",
                 plain) {
  const std::size_t words = size.bytes / 4;
  for (const CUstreamCaptureMode mode : kModes) {
    const Stream stream;
    const Block block(size.bytes);
    load_kernels();
    CALL(cu.cuMemsetD32(block, 1, words));
    CALL(cu.cuCtxSynchronize());
    CALL(cu.cuStreamBeginCapture(stream, mode));
    GIVES(0, cu.cuMemsetD32Async(block, 7, words, stream));
    add(stream, block, words, 1);
    CUgraph graph = nullptr;
    GIVES(0, cu.cuStreamEndCapture(stream, &graph));
    REQUIRE(graph != nullptr);
    EXPECT(holds_word(block, words, 1));  // captured is not done
    const Graph executable(graph);
    for (unsigned round = 0; round < 3; ++round) {
      fill(stream, block, words, 1000 + round);
      executable.launch(stream);
      stream.finish();
      EXPECT(holds_word(block, words, 8));
    }
  }
}

CHECK_CASE_SIZES("capture", "every async form of memset can be captured", plain) {
  const Stream stream;
  const Block block(size.bytes);
  CALL(cu.cuMemsetD8(block, 0, size.bytes));
  CALL(cu.cuCtxSynchronize());
  CALL(cu.cuStreamBeginCapture(stream, kGlobal));
  GIVES(0, cu.cuMemsetD8Async(block, 1, 256, stream));
  GIVES(0, cu.cuMemsetD16Async(block + 256, 2, 128, stream));
  GIVES(0, cu.cuMemsetD32Async(block + 512, 3, 64, stream));
  GIVES(0, cu.cuMemsetD2D8Async(block + 1024, 256, 4, 64, 4, stream));
  GIVES(0, cu.cuMemsetD2D32Async(block + 2048, 256, 5, 16, 4, stream));
  GIVES(0, cu.cuMemsetD8Async_ptsz(block + 4096, 6, 256, stream));
  CUgraph graph = nullptr;
  GIVES(0, cu.cuStreamEndCapture(stream, &graph));
  REQUIRE(graph != nullptr);
  const Graph executable(graph);
  executable.launch(stream);
  stream.finish();
  EXPECT(holds_byte(block, 256, 1));
  EXPECT(holds_word(block + 512, 64, 3));
  EXPECT(holds_byte(block + 1024 + 3 * 256, 64, 4));
  EXPECT(holds_word(block + 2048 + 3 * 256, 16, 5));
  EXPECT(holds_byte(block + 4096, 256, 6));
}

CHECK_CASE_SIZES("capture", "an async memset in another stream goes on, and the capture lives",
                 plain) {
  const Stream other;
  const Block block(size.bytes);
  for (const CUstreamCaptureMode mode : kModes) {
    Capture capture(mode);
    GIVES(0, cu.cuMemsetD8Async(block, 9, size.bytes, other));
    capture.expect_alive(name_of(mode));
    other.finish();
    EXPECT(holds_byte(block, size.bytes, 9));
  }
}

CHECK_CASE_SIZES("capture", "a graph still works after unrelated blocks came and went", plain) {
  const Stream stream;
  const std::size_t words = size.bytes / 4;
  const Block block(size.bytes);
  Block unrelated(option_large()), small(4096);
  load_kernels();
  CALL(cu.cuStreamBeginCapture(stream, kGlobal));
  add(stream, block, words, 5);
  CUgraph graph = nullptr;
  GIVES(0, cu.cuStreamEndCapture(stream, &graph));
  const Graph executable(graph);
  for (unsigned round = 0; round < 3; ++round) {
    GIVES(0, cu.cuMemFree(unrelated.leave()));
    GIVES(0, cu.cuMemFree(small.leave()));
    unrelated = Block(option_large());
    small = Block(4096);
    CALL(cu.cuMemsetD8(unrelated, 0xff, option_large()));
    CALL(cu.cuMemsetD32(block, round, words));
    CALL(cu.cuCtxSynchronize());
    executable.launch(stream);
    stream.finish();
    EXPECT(holds_word(block, words, round + 5));
  }
}

CHECK_CASE_SIZES("capture", "memory allocated during a relaxed capture is usable in it", plain) {
  const Stream stream;
  const std::size_t words = size.bytes / 4;
  load_kernels();
  CALL(cu.cuStreamBeginCapture(stream, kRelaxed));
  CUdeviceptr ptr = 0;
  GIVES(0, cu.cuMemAlloc(&ptr, size.bytes));
  fill(stream, ptr, words, 11);
  CUgraph graph = nullptr;
  GIVES(0, cu.cuStreamEndCapture(stream, &graph));
  REQUIRE(graph != nullptr);
  {
    const Graph executable(graph);
    executable.launch(stream);
    stream.finish();
    EXPECT(holds_word(ptr, words, 11));
  }
  GIVES(0, cu.cuMemFree(ptr));
}

CHECK_CASE("capture", "stream-ordered allocation into the capturing stream", plain | observes) {
  Capture capture(kGlobal);
  CUdeviceptr ptr = 0;
  const CUresult allocated = cu.cuMemAllocAsync(&ptr, kMiB, capture.stream());
  observe("allocation", allocated);
  if (allocated == CUDA_SUCCESS) observe("free", cu.cuMemFreeAsync(ptr, capture.stream()));
  observe_yes("the capture lives", capture.ends_well());
}

CHECK_CASE_SIZES("capture", "stream-ordered free of a plain block into the capturing stream",
                 plain | observes) {
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAlloc(&ptr, size.bytes));
  {
    Capture capture(kGlobal);
    observe("free", cu.cuMemFreeAsync(ptr, capture.stream()));
    observe_yes("the capture lives", capture.ends_well());
  }
  observe("free afterwards", cu.cuMemFree(ptr));
}
