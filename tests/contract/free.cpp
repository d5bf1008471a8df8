// cuMemFree: what it refuses, where it may be called, and that it waits for the device.
#include <atomic>
#include <thread>
#include <vector>

#include "gpu.h"

using namespace contract;

CHECK_CASE("free", "address 0 is freed with 0, any number of times", plain) {
  for (int i = 0; i < 3; ++i) GIVES(0, cu.cuMemFree(0));
}

CHECK_CASE("free", "addresses that nobody allocated are refused with 1", plain) {
  int local = 0;
  GIVES(1, cu.cuMemFree(1));
  GIVES(1, cu.cuMemFree(0x1000));
  GIVES(1, cu.cuMemFree(kNowhere));
  GIVES(1, cu.cuMemFree(~CUdeviceptr{0}));
  GIVES(1, cu.cuMemFree(reinterpret_cast<CUdeviceptr>(&local)));
}

CHECK_CASE_SIZES("free", "an interior address is refused with 1 and frees nothing", plain) {
  const Block block(size.bytes);
  write_bytes(block, pattern(4096, 3));
  GIVES(1, cu.cuMemFree(block + 1));
  GIVES(1, cu.cuMemFree(block + 512));
  GIVES(1, cu.cuMemFree(block + size.bytes / 2));
  GIVES(1, cu.cuMemFree(block.end() - 1));
  EXPECT(read_bytes(block, 4096) == pattern(4096, 3));
}

CHECK_CASE_SIZES("free", "the second free of a block is refused with 1", plain) {
  Block block(size.bytes);
  const CUdeviceptr ptr = block.leave();
  GIVES(0, cu.cuMemFree(ptr));
  GIVES(1, cu.cuMemFree(ptr));
  GIVES(1, cu.cuMemFree(ptr));
}

CHECK_CASE_SIZES("free", "a refused free leaves no error for later calls", plain) {
  const Block block(size.bytes);
  GIVES(1, cu.cuMemFree(block + 4));
  GIVES(0, cu.cuCtxSynchronize());
  GIVES(0, cu.cuMemsetD8(block, 1, 16));
  EXPECT(holds_byte(block, 16, 1));
}

CHECK_CASE_SIZES("free", "another thread with the context may free", plain) {
  Block block(size.bytes);
  const CUdeviceptr ptr = block.leave();
  on_thread([&] {
    use_primary();
    GIVES(0, cu.cuMemFree(ptr));
    GIVES(1, cu.cuMemFree(ptr));
  });
  GIVES(1, cu.cuMemFree(ptr));
}

CHECK_CASE_SIZES("free", "a thread without a context may free", plain) {
  Block block(size.bytes);
  const CUdeviceptr ptr = block.leave();
  on_thread([&] {
    GIVES(0, cu.cuMemFree(ptr));
    GIVES(1, cu.cuMemFree(ptr));
    GIVES(0, cu.cuMemFree(0));
    GIVES(1, cu.cuMemFree(kNowhere));
    CUcontext current = nullptr;
    GIVES(0, cu.cuCtxGetCurrent(&current));
    EXPECT(current == nullptr);
  });
}

CHECK_CASE_SIZES("free", "the thread may have popped its context before the free", plain) {
  Block block(size.bytes);
  CUcontext popped = nullptr, current = nullptr;
  CALL(cu.cuCtxPopCurrent(&popped));
  GIVES(0, cu.cuMemFree(block.leave()));
  GIVES(0, cu.cuCtxGetCurrent(&current));
  EXPECT(current != popped);
  CALL(cu.cuCtxPushCurrent(popped));
}

CHECK_CASE_SIZES("free", "waits for a kernel on a non-blocking stream", plain) {
  const Stream stream;
  load_kernels();
  Block block(size.bytes);
  fill(stream, block, size.bytes / 4, 1);
  stream.finish();
  spin(stream, 0.2);
  EXPECT(stream.busy());
  GIVES(0, cu.cuMemFree(block.leave()));
  EXPECT(!stream.busy());
}

CHECK_CASE_SIZES("free", "waits for a kernel that uses another block", plain) {
  const Stream stream;
  const Block used(4096);
  Block freed(size.bytes);
  load_kernels();
  spin(stream, 0.15);
  fill(stream, used, 1024, 5);
  EXPECT(stream.busy());
  GIVES(0, cu.cuMemFree(freed.leave()));
  EXPECT(!stream.busy());
  EXPECT(holds_word(used, 1024, 5));
}

CHECK_CASE_SIZES("free", "waits from a thread without a context too", plain) {
  const Stream stream;
  load_kernels();
  Block block(size.bytes);
  const CUdeviceptr ptr = block.leave();
  spin(stream, 0.2);
  EXPECT(stream.busy());
  on_thread([&] { GIVES(0, cu.cuMemFree(ptr)); });
  EXPECT(!stream.busy());
}

CHECK_CASE_SIZES("free", "a kernel that still runs sees its memory to the end", plain) {
  const Stream stream;
  const std::size_t words = size.bytes / 4;
  const Block result(size.bytes);
  Block block(size.bytes);
  fill(stream, block, words, 0x5eed);
  spin(stream, 0.1);
  copy_words(stream, result, block, words);
  GIVES(0, cu.cuMemFree(block.leave()));
  const Block next(size.bytes);
  CALL(cu.cuMemsetD8(next, 0, size.bytes));
  EXPECT(holds_word(result, words, 0x5eed));
}

CHECK_CASE("free", "whether address 0 and unknown addresses wait too", plain | observes) {
  const Stream stream;
  load_kernels();
  spin(stream, 0.2);
  GIVES(0, cu.cuMemFree(0));
  observe_yes("free of 0 waited", !stream.busy());
  stream.finish();
  spin(stream, 0.2);
  GIVES(1, cu.cuMemFree(kNowhere));
  observe_yes("free of an unknown address waited", !stream.busy());
}

CHECK_CASE_SIZES("free", "works while another thread allocates and frees", plain) {
  std::atomic<bool> done{false};
  std::atomic<int> bad{0};
  const CUcontext context = use_primary();
  std::thread other([&] {
    cu.cuCtxSetCurrent(context);
    while (!done) {
      CUdeviceptr ptr = 0;
      if (cu.cuMemAlloc(&ptr, size.bytes) != CUDA_SUCCESS) ++bad;
      if (cu.cuMemFree(ptr) != CUDA_SUCCESS) ++bad;
    }
  });
  for (int i = 0; i < 30; ++i) {
    CUdeviceptr ptr = 0;
    if (cu.cuMemAlloc(&ptr, size.bytes) != CUDA_SUCCESS) ++bad;
    if (cu.cuMemFree(ptr) != CUDA_SUCCESS) ++bad;
  }
  done = true;
  other.join();
  EXPECT_EQ(bad.load(), 0);
}

// Two threads that free one block at once are no check: the real driver crashes.

CHECK_CASE("free", "the order of frees is the program's choice", plain) {
  for (int order = 0; order < 3; ++order) {
    std::vector<CUdeviceptr> blocks;
    for (unsigned i = 0; i < 90; ++i) {
      blocks.push_back(Block(i % 9 == 0 ? 2 * kMiB + i : 100 + 977 * i).leave());
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t at = order == 0   ? i
                             : order == 1 ? blocks.size() - 1 - i
                                          : (i * 37) % blocks.size();
      GIVES(0, cu.cuMemFree(blocks[at]));
    }
    for (const CUdeviceptr ptr : blocks) GIVES(1, cu.cuMemFree(ptr));
  }
}
