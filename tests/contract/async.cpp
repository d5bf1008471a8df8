// Stream-ordered allocation, alone and mixed with cuMemAlloc and cuMemFree.
#include <algorithm>
#include <thread>
#include <vector>

#include "gpu.h"

using namespace contract;

namespace {

void expect_pools() {
  if (device_attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, first_device()) == 0) {
    SKIP("the device has no memory pools");
  }
}

void expect_usable(CUdeviceptr ptr, std::size_t bytes, CUstream stream) {
  fill(stream, ptr, bytes / 4, 6);
  CALL(cu.cuStreamSynchronize(stream));
  EXPECT(holds_word(ptr, bytes / 4, 6));
}

}  // namespace

CHECK_CASE_SIZES("async", "allocate, use and free in a stream", plain) {
  expect_pools();
  const Stream stream;
  for (int round = 0; round < 3; ++round) {
    CUdeviceptr ptr = 0;
    GIVES(0, cu.cuMemAllocAsync(&ptr, size.bytes, stream));
    expect_usable(ptr, size.bytes, stream);
    GIVES(0, cu.cuMemFreeAsync(ptr, stream));
  }
  stream.finish();
}

CHECK_CASE_SIZES("async", "allocate, use and free on the per-thread default stream (_ptsz)",
                 plain) {
  expect_pools();
  CUdeviceptr ptr = 0;
  GIVES(0, cu.cuMemAllocAsync_ptsz(&ptr, size.bytes, nullptr));
  expect_usable(ptr, size.bytes, CU_STREAM_PER_THREAD);
  GIVES(0, cu.cuMemFreeAsync_ptsz(ptr, nullptr));
  GIVES(0, cu.cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

CHECK_CASE_SIZES("async", "allocate from the default pool by name", plain) {
  expect_pools();
  const Stream stream;
  CUmemoryPool pool = nullptr;
  CALL(cu.cuDeviceGetDefaultMemPool(&pool, first_device()));
  CUdeviceptr ptr = 0;
  GIVES(0, cu.cuMemAllocFromPoolAsync(&ptr, size.bytes, pool, stream));
  expect_usable(ptr, size.bytes, stream);
  GIVES(0, cu.cuMemFreeAsync(ptr, stream));
  stream.finish();
  GIVES(0, cu.cuMemAllocFromPoolAsync_ptsz(&ptr, size.bytes, pool, nullptr));
  expect_usable(ptr, size.bytes, CU_STREAM_PER_THREAD);
  GIVES(0, cu.cuMemFreeAsync_ptsz(ptr, nullptr));
  GIVES(0, cu.cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

CHECK_CASE_SIZES("async", "allocate from a pool of the program's own", plain) {
  expect_pools();
  const Stream stream;
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = first_device();
  CUmemoryPool pool = nullptr;
  GIVES(0, cu.cuMemPoolCreate(&pool, &props));
  CUdeviceptr ptr = 0;
  GIVES(0, cu.cuMemAllocFromPoolAsync(&ptr, size.bytes, pool, stream));
  expect_usable(ptr, size.bytes, stream);
  CUmemoryPool owner = nullptr;
  GIVES(0, cu.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
  EXPECT(owner == pool);
  GIVES(0, cu.cuMemFreeAsync(ptr, stream));
  stream.finish();
  GIVES(0, cu.cuMemPoolDestroy(pool));
}

CHECK_CASE_SIZES("async", "a stream-ordered block may be freed by cuMemFree, once", plain) {
  expect_pools();
  const Stream stream;
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAllocAsync(&ptr, size.bytes, stream));
  stream.finish();
  GIVES(0, cu.cuMemFree(ptr));
  GIVES(1, cu.cuMemFree(ptr));
}

CHECK_CASE_SIZES("async", "a plain block may be freed by cuMemFreeAsync, once", plain | observes) {
  expect_pools();
  const Stream stream;
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAlloc(&ptr, size.bytes));
  GIVES(0, cu.cuMemFreeAsync(ptr, stream));
  stream.finish();
  const CUresult again = cu.cuMemFreeAsync(ptr, stream);
  REFUSES(again);
  observe("a second cuMemFreeAsync", again);
  const CUresult plain_free = cu.cuMemFree(ptr);
  REFUSES(plain_free);
  observe("cuMemFree afterwards", plain_free);
  const Block next(size.bytes);
  expect_usable(next, size.bytes, nullptr);
}

CHECK_CASE_SIZES("async", "a plain block freed by cuMemFreeAsync on the per-thread stream (_ptsz)",
                 plain) {
  expect_pools();
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAlloc(&ptr, size.bytes));
  GIVES(0, cu.cuMemFreeAsync_ptsz(ptr, nullptr));
  GIVES(0, cu.cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

CHECK_CASE_SIZES("async", "work before cuMemFreeAsync of a plain block still sees the memory",
                 plain | observes) {
  expect_pools();
  const Stream stream;
  HostFlag flag;
  const std::size_t words = size.bytes / 4;
  const Block result(size.bytes);
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAlloc(&ptr, size.bytes));
  load_kernels();
  flag.hold(stream);
  fill(stream, ptr, words, 0xfeed);
  copy_words(stream, result, ptr, words);
  // Should the call wait for the stream, then this thread lets it go on.
  std::thread later([&] {
    sleep_for(0.4);
    flag.raise();
  });
  GIVES(0, cu.cuMemFreeAsync(ptr, stream));
  observe_yes("returned before the work was done", stream.busy());
  later.join();
  stream.finish();
  EXPECT(holds_word(result, words, 0xfeed));
}

CHECK_CASE_SIZES("async", "memory taken while a freed block's work still runs does not mix with it",
                 plain) {
  expect_pools();
  const Stream stream;
  const std::size_t words = size.bytes / 4;
  const Block result(size.bytes);
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAlloc(&ptr, size.bytes));
  load_kernels();
  fill(stream, ptr, words, 0xfeed);
  spin(stream, 0.1);
  copy_words(stream, result, ptr, words);
  GIVES(0, cu.cuMemFreeAsync(ptr, stream));
  const Block next(size.bytes);
  CALL(cu.cuMemsetD8(next, 0, size.bytes));
  stream.finish();
  EXPECT(holds_word(result, words, 0xfeed));
  EXPECT(holds_word(next, words, 0));
}

CHECK_CASE("async", "a pool block freed and taken again in one stream keeps the order", plain) {
  expect_pools();
  const Stream stream;
  const std::size_t bytes = 4 * kMiB, words = bytes / 4;
  const Block result(bytes);
  for (unsigned round = 0; round < 5; ++round) {
    CUdeviceptr first = 0, second = 0;
    GIVES(0, cu.cuMemAllocAsync(&first, bytes, stream));
    fill(stream, first, words, round);
    copy_words(stream, result, first, words);
    GIVES(0, cu.cuMemFreeAsync(first, stream));
    GIVES(0, cu.cuMemAllocAsync(&second, bytes, stream));
    fill(stream, second, words, 77);
    GIVES(0, cu.cuMemFreeAsync(second, stream));
    stream.finish();
    EXPECT(holds_word(result, words, round));
  }
}

CHECK_CASE_SIZES("async", "a stream-ordered block is device memory with a range",
                 plain | observes) {
  expect_pools();
  const Stream stream;
  CUdeviceptr ptr = 0, base = 0;
  std::size_t bytes = 0;
  unsigned type = 0;
  CALL(cu.cuMemAllocAsync(&ptr, size.bytes, stream));
  stream.finish();
  GIVES(0, cu.cuMemGetAddressRange(&base, &bytes, ptr + 9));
  EXPECT_EQ(base, ptr);
  observe("bytes over those asked for", static_cast<long long>(bytes - size.bytes));
  GIVES(0, cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  GIVES(0, cu.cuMemsetD8Async(ptr, 4, size.bytes, stream));
  stream.finish();
  EXPECT(holds_byte(ptr, size.bytes, 4));
  GIVES(0, cu.cuMemFreeAsync(ptr, stream));
  stream.finish();
}

CHECK_CASE("async", "what is refused", plain | observes) {
  expect_pools();
  const Stream stream;
  CUdeviceptr ptr = 0;
  const CUresult unknown = cu.cuMemFreeAsync(kNowhere, stream);
  REFUSES(unknown);
  observe("free of an unknown address", unknown);
  observe("free of 0", cu.cuMemFreeAsync(0, stream));
  observe("no output", cu.cuMemAllocAsync(nullptr, 4096, stream));
  const CUresult huge = cu.cuMemAllocAsync(&ptr, std::size_t{1} << 50, stream);
  REFUSES(huge);
  observe("more than any machine has", huge);
  const CUresult zero = cu.cuMemAllocAsync(&ptr, 0, stream);
  observe("zero bytes", zero);
  if (zero == CUDA_SUCCESS && ptr != 0) cu.cuMemFreeAsync(ptr, stream);
  stream.finish();
}

CHECK_CASE_SIZES("async", "an interior address is refused", plain | observes) {
  expect_pools();
  const Stream stream;
  const Block block(size.bytes);
  const CUresult code = cu.cuMemFreeAsync(block + 512, stream);
  REFUSES(code);
  observe("code", code);
  stream.finish();
  CALL(cu.cuMemsetD8(block, 1, size.bytes));
  EXPECT(holds_byte(block, size.bytes, 1));
}

CHECK_CASE("async", "plain and stream-ordered blocks live side by side", plain) {
  expect_pools();
  const Stream stream;
  std::vector<std::pair<CUdeviceptr, std::size_t>> ranges;
  for (unsigned i = 0; i < 40; ++i) {
    CUdeviceptr ptr = 0;
    const std::size_t bytes = 1000 + i * 5000;
    if (i % 2 == 0) {
      CALL(cu.cuMemAlloc(&ptr, bytes));
    } else {
      CALL(cu.cuMemAllocAsync(&ptr, bytes, stream));
    }
    CALL(cu.cuMemsetD32Async(ptr, i, bytes / 4, stream));
    ranges.emplace_back(ptr, bytes);
  }
  stream.finish();
  for (unsigned i = 0; i < 40; ++i) EXPECT(holds_word(ranges[i].first, ranges[i].second / 4, i));
  for (unsigned i = 0; i < 40; ++i) {  // each by the other's function
    if (i % 2 == 0) {
      GIVES(0, cu.cuMemFreeAsync(ranges[i].first, stream));
    } else {
      GIVES(0, cu.cuMemFree(ranges[i].first));
    }
  }
  stream.finish();
}
