// cuMemset among other work: what comes before it is finished, what comes after it sees it, and
// the host waits only where the driver makes it wait.
#include <thread>

#include "gpu.h"

using namespace contract;

CHECK_CASE_SIZES("memset", "earlier work in the stream is finished first, later work sees it",
                 plain) {
  const Stream stream;
  HostFlag flag;
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  load_kernels();
  flag.hold(stream);
  fill(stream, block, words, 100);
  GIVES(0, cu.cuMemsetD32Async(block, 2, words / 2, stream));
  add(stream, block, words, 3);
  flag.raise();
  stream.finish();
  EXPECT(holds_word(block, words / 2, 5));
  EXPECT(holds_word(block + words / 2 * 4, words - words / 2, 103));
}

CHECK_CASE_SIZES("memset", "an async memset returns while the stream waits for the host", plain) {
  const Stream stream;
  HostFlag flag;
  const Block block(size.bytes);
  load_kernels();
  flag.hold(stream);
  const Clock clock;
  GIVES(0, cu.cuMemsetD8Async(block, 7, size.bytes, stream));
  EXPECT(clock.seconds() < 2);
  EXPECT(stream.busy());
  flag.raise();
  stream.finish();
  EXPECT(holds_byte(block, size.bytes, 7));
}

CHECK_CASE_SIZES("memset", "an async memset in the legacy stream returns while a stream waits",
                 plain) {
  const Stream stream(CU_STREAM_DEFAULT);  // a blocking one: the memset comes after its work
  HostFlag flag;
  const Block block(size.bytes);
  load_kernels();
  flag.hold(stream);
  fill(stream, block, size.bytes / 4, 1);
  GIVES(0, cu.cuMemsetD8Async(block, 7, size.bytes, nullptr));
  EXPECT(stream.busy());
  flag.raise();
  GIVES(0, cu.cuStreamSynchronize(nullptr));
  EXPECT(holds_byte(block, size.bytes, 7));
}

CHECK_CASE_SIZES("memset", "in the legacy stream it comes after work of a blocking stream", plain) {
  const Stream stream(CU_STREAM_DEFAULT);
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  load_kernels();
  spin(stream, 0.1);
  fill(stream, block, words, 100);
  GIVES(0, cu.cuMemsetD32(block, 2, words));
  add(stream, block, words, 3);
  stream.finish();
  EXPECT(holds_word(block, words, 5));
}

CHECK_CASE_SIZES("memset", "it does not wait for a non-blocking stream", plain) {
  const Stream stream;
  HostFlag flag;
  const Block block(size.bytes), other(4096);
  load_kernels();
  flag.hold(stream);
  fill(stream, other, 1024, 1);
  GIVES(0, cu.cuMemsetD8(block, 7, size.bytes));
  EXPECT(stream.busy());
  flag.raise();
  EXPECT(holds_byte(block, size.bytes, 7));
}

CHECK_CASE_SIZES("memset", "it does not wait for another stream", plain) {
  const Stream waiting, stream;
  HostFlag flag;
  const Block block(size.bytes);
  load_kernels();
  flag.hold(waiting);
  GIVES(0, cu.cuMemsetD8Async(block, 7, size.bytes, stream));
  stream.finish();
  EXPECT(waiting.busy());
  flag.raise();
  EXPECT(holds_byte(block, size.bytes, 7));
}

CHECK_CASE_SIZES("memset", "the last of many memsets wins", plain) {
  const Stream stream;
  const Block block(size.bytes);
  for (unsigned i = 1; i <= 30; ++i) {
    GIVES(0, cu.cuMemsetD32Async(block, i, size.bytes / 4 - i, stream));
  }
  stream.finish();
  const std::size_t words = size.bytes / 4;
  EXPECT(holds_word(block, words - 30, 30));
  EXPECT(holds_word(block + (words - 2) * 4, 1, 1));
  EXPECT(holds_word(block + (words - 3) * 4, 1, 2));
}

CHECK_CASE_SIZES("memset", "a copy after it in the stream reads what it wrote", plain) {
  const Stream stream;
  const Block block(size.bytes), result(size.bytes);
  const std::size_t words = size.bytes / 4;
  for (unsigned round = 1; round <= 3; ++round) {
    GIVES(0, cu.cuMemsetD32Async(block, round, words, stream));
    GIVES(0, cu.cuMemcpyDtoDAsync(result, block, words * 4, stream));
    stream.finish();
    EXPECT(holds_word(result, words, round));
  }
}

CHECK_CASE_SIZES("memset", "a host function after it in the stream runs after it", plain) {
  const Stream stream;
  HostFlag flag;
  const Block block(size.bytes);
  load_kernels();
  volatile int called = 0;
  flag.hold(stream);
  GIVES(0, cu.cuMemsetD8Async(block, 7, size.bytes, stream));
  GIVES(0, cu.cuLaunchHostFunc(
               stream, [](void* data) { *static_cast<volatile int*>(data) = 1; },
               const_cast<int*>(&called)));
  EXPECT_EQ(static_cast<int>(called), 0);
  flag.raise();
  stream.finish();
  EXPECT_EQ(static_cast<int>(called), 1);
}

CHECK_CASE_SIZES("memset", "a free right after it waits for it", plain) {
  const Stream stream;
  load_kernels();
  Block block(size.bytes);
  spin(stream, 0.1);
  GIVES(0, cu.cuMemsetD8Async(block, 7, size.bytes, stream));
  GIVES(0, cu.cuMemFree(block.leave()));
  EXPECT(!stream.busy());
  const Block next(size.bytes);
  write_bytes(next, pattern(4096, 6));
  sleep_for(0.02);
  EXPECT(read_bytes(next, 4096) == pattern(4096, 6));
}

CHECK_CASE_SIZES("memset", "the per-thread stream of one thread does not wait for another's",
                 plain) {
  HostFlag flag;
  const CUcontext context = use_primary();
  const Block block(size.bytes);
  const Stream reader;
  load_kernels();
  flag.hold(CU_STREAM_PER_THREAD);
  on_thread([&] {
    CALL(cu.cuCtxSetCurrent(context));
    GIVES(0, cu.cuMemsetD8Async_ptsz(block, 7, size.bytes, nullptr));
    GIVES(0, cu.cuStreamSynchronize(CU_STREAM_PER_THREAD));
    std::uint32_t word = 0;
    CALL(cu.cuMemcpyDtoHAsync(&word, block.end() - 4, 4, reader));
    reader.finish();
    EXPECT_EQ(word, 0x07070707u);
  });
  EXPECT_EQ(static_cast<int>(cu.cuStreamQuery(CU_STREAM_PER_THREAD)), 600);
  flag.raise();
  GIVES(0, cu.cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT(holds_byte(block, size.bytes, 7));
}

CHECK_CASE_SIZES("memset", "the legacy form waits for every thread's per-thread stream", plain) {
  const CUcontext context = use_primary();
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  load_kernels();
  spin(CU_STREAM_PER_THREAD, 0.1);
  fill(CU_STREAM_PER_THREAD, block, words, 100);
  on_thread([&] {
    CALL(cu.cuCtxSetCurrent(context));
    GIVES(0, cu.cuMemsetD32Async(block, 2, words, nullptr));
    GIVES(0, cu.cuStreamSynchronize(nullptr));
  });
  EXPECT(holds_word(block, words, 2));
}

CHECK_CASE_SIZES("memset", "two threads set their halves in streams of their own", plain) {
  const CUcontext context = use_primary();
  const Block block(size.bytes);
  const std::size_t half = size.bytes / 8 * 4;
  std::thread threads[2];
  int codes[2] = {-1, -1};
  for (unsigned id = 0; id < 2; ++id) {
    threads[id] = std::thread([&, id] {
      cu.cuCtxSetCurrent(context);
      CUstream stream = nullptr;
      cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
      codes[id] = 0;
      for (unsigned round = 0; round < 10; ++round) {
        codes[id] |= cu.cuMemsetD32Async(block + id * half, id * 100 + round, half / 4, stream);
      }
      codes[id] |= cu.cuStreamSynchronize(stream);
      cu.cuStreamDestroy(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  GIVES(0, codes[0]);
  GIVES(0, codes[1]);
  EXPECT(holds_word(block, half / 4, 9));
  EXPECT(holds_word(block + half, half / 4, 109));
}
