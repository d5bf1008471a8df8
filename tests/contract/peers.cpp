// Two devices: memory of cuMemAlloc reaches the other one as soon as peer access is enabled, and
// is copied between them without any call. The expectation is the native driver's.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "gpu.h"

using namespace contract;

namespace {

void expect_peers() {
  int can = 0;
  CALL(cu.cuDeviceCanAccessPeer(&can, second_device(), first_device()));
  if (can == 0) SKIP("the second device cannot access the first one");
}

// The second device's context is current for the scope.
class OnSecond {
 public:
  OnSecond() { CALL(cu.cuCtxSetCurrent(primary_of(second_device()))); }
  ~OnSecond() { use_primary(); }
};

void let_second_see_first() {
  const CUcontext first = primary_of(first_device());
  const OnSecond second;
  CALL(cu.cuCtxEnablePeerAccess(first, 0));
}

}  // namespace

CHECK_CASE("peers", "each device has a context and memory of its own", needs2) {
  const Block here(4096);
  int ordinal = -1;
  const OnSecond second;
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB, option_large()}) {
    const Block there(bytes);
    GIVES(0, cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there));
    EXPECT_EQ(ordinal, second_device());
    fill(nullptr, there, bytes / 4, 2);
    EXPECT(holds_word(there, bytes / 4, 2));
  }
  GIVES(0, cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, here));
  EXPECT_EQ(ordinal, first_device());
}

CHECK_CASE_SIZES("peers", "a block is freed while the other device is current", needs2) {
  Block block(size.bytes);
  const OnSecond second;
  GIVES(0, cu.cuMemFree(block.leave()));
}

CHECK_CASE_SIZES("peers",
                 "a kernel on the other device reads a block made before access was enabled",
                 isolated | needs2) {
  expect_peers();
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  CALL(cu.cuMemsetD32(block, 4, words));
  CALL(cu.cuCtxSynchronize());
  let_second_see_first();
  const OnSecond second;
  EXPECT_EQ(sum(nullptr, block, words), 4 * words);
}

CHECK_CASE_SIZES("peers",
                 "a kernel on the other device reads a block made after access was enabled",
                 isolated | needs2) {
  expect_peers();
  let_second_see_first();
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  CALL(cu.cuMemsetD32(block, 4, words));
  CALL(cu.cuCtxSynchronize());
  const OnSecond second;
  EXPECT_EQ(sum(nullptr, block, words), 4 * words);
}

CHECK_CASE_SIZES("peers", "a kernel on the other device writes the block", isolated | needs2) {
  expect_peers();
  let_second_see_first();
  const Block block(size.bytes);
  {
    const OnSecond second;
    fill(nullptr, block, size.bytes / 4, 6);
    CALL(cu.cuCtxSynchronize());
  }
  EXPECT(holds_word(block, size.bytes / 4, 6));
}

CHECK_CASE("peers", "enabling twice gives 704, disabling twice gives 705", isolated | needs2) {
  expect_peers();
  let_second_see_first();
  const CUcontext first = primary_of(first_device());
  const OnSecond second;
  GIVES(704, cu.cuCtxEnablePeerAccess(first, 0));
  GIVES(0, cu.cuCtxDisablePeerAccess(first));
  GIVES(705, cu.cuCtxDisablePeerAccess(first));
  GIVES(0, cu.cuCtxEnablePeerAccess(first, 0));
}

CHECK_CASE_SIZES("peers", "the copy that finds the devices itself, without peer access",
                 isolated | needs2) {
  const Block here(size.bytes);
  const std::size_t words = size.bytes / 4;
  CALL(cu.cuMemsetD32(here, 5, words));
  CALL(cu.cuCtxSynchronize());
  const OnSecond second;
  const Block there(size.bytes);
  GIVES(0, cu.cuMemcpy(there, here, words * 4));
  CALL(cu.cuCtxSynchronize());
  EXPECT(holds_word(there, words, 5));
}

CHECK_CASE_SIZES("peers", "a device to device copy in a stream, with peer access",
                 isolated | needs2) {
  expect_peers();
  let_second_see_first();
  const Block here(size.bytes);
  const std::size_t words = size.bytes / 4;
  CALL(cu.cuMemsetD32(here, 5, words));
  CALL(cu.cuCtxSynchronize());
  const OnSecond second;
  const Stream stream;
  const Block there(size.bytes);
  GIVES(0, cu.cuMemcpyDtoDAsync(there, here, words * 4, stream));
  stream.finish();
  EXPECT(holds_word(there, words, 5));
}

CHECK_CASE_SIZES("peers", "a device to device copy in a stream, without peer access",
                 isolated | needs2) {
  const Block here(size.bytes);
  const std::size_t words = size.bytes / 4;
  CALL(cu.cuMemsetD32(here, 5, words));
  CALL(cu.cuCtxSynchronize());
  const OnSecond second;
  const Stream stream;
  const Block there(size.bytes), back(size.bytes);
  GIVES(0, cu.cuMemcpyDtoDAsync(there, here, words * 4, stream));
  GIVES(0, cu.cuMemcpyAsync(back, there, words * 4, stream));
  fill(stream, there, words, 6);
  GIVES(0, cu.cuMemcpyAsync(here, there, words * 4, stream));
  stream.finish();
  EXPECT(holds_word(back, words, 5));
  use_primary();
  EXPECT(holds_word(here, words, 6));
}

CHECK_CASE_SIZES("peers", "copies between the host and the device that is not current",
                 isolated | needs2) {
  const Block here(size.bytes);
  const OnSecond second;
  std::vector<std::uint8_t> data = pattern(size.bytes, 3), back(size.bytes);
  GIVES(0, cu.cuMemcpyHtoD(here, data.data(), size.bytes));
  GIVES(0, cu.cuMemcpyDtoH(back.data(), here, size.bytes));
  EXPECT(back == data);
  const Stream stream;
  void* pinned = nullptr;
  CALL(cu.cuMemHostAlloc(&pinned, size.bytes, CU_MEMHOSTALLOC_PORTABLE));
  std::memset(pinned, 7, size.bytes);
  GIVES(0, cu.cuMemcpyHtoDAsync(here, pinned, size.bytes, stream));
  GIVES(0, cu.cuMemcpyDtoHAsync(back.data(), here, size.bytes, stream));
  stream.finish();
  EXPECT(back == std::vector<std::uint8_t>(size.bytes, 7));
  CALL(cu.cuMemFreeHost(pinned));
}

CHECK_CASE_SIZES("peers", "a rectangle between the devices, without peer access",
                 isolated | needs2) {
  const Block here(size.bytes);
  const auto data = pattern(4096, 8);
  write_bytes(here, data);
  const OnSecond second;
  const Stream stream;
  const Block there(size.bytes);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = here;
  copy.dstDevice = there;
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 1024;
  copy.Height = 4;
  GIVES(0, cu.cuMemcpy2DAsync(&copy, stream));
  stream.finish();
  EXPECT(read_bytes(there, 4096) == data);
}

CHECK_CASE_SIZES("peers", "past the end of the other device's block is refused",
                 isolated | needs2) {
  const Block here(size.bytes);
  const OnSecond second;
  const Block there(2 * size.bytes);
  GIVES(1, cu.cuMemcpyDtoD(there, here, size.bytes + 1));
  GIVES(1, cu.cuMemcpyDtoD(here + 1, there, size.bytes));
}

CHECK_CASE_SIZES("peers", "the copy that names both contexts", isolated | needs2) {
  const CUcontext first = primary_of(first_device());
  const CUcontext other = primary_of(second_device());
  const Block here(size.bytes);
  const std::size_t words = size.bytes / 4;
  CALL(cu.cuMemsetD32(here, 5, words));
  CALL(cu.cuCtxSynchronize());
  const OnSecond second;
  const Block there(size.bytes);
  GIVES(0, cu.cuMemcpyPeer(there, other, here, first, words * 4));
  CALL(cu.cuCtxSynchronize());
  EXPECT(holds_word(there, words, 5));
}

CHECK_CASE("peers", "managed memory of the program is read by both",
           isolated | needs2 | needs_managed) {
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAllocManaged(&ptr, kMiB, CU_MEM_ATTACH_GLOBAL));
  fill(nullptr, ptr, kMiB / 4, 3);
  CALL(cu.cuCtxSynchronize());
  {
    const OnSecond second;
    EXPECT_EQ(sum(nullptr, ptr, kMiB / 4), 3 * (kMiB / 4));
  }
  GIVES(0, cu.cuMemFree(ptr));
}

CHECK_CASE("peers", "free and total are each device's own", needs2) {
  const MemoryInfo first = memory_info();
  const OnSecond second;
  const std::size_t before = memory_info().free;
  {
    std::vector<Block> blocks;
    for (int i = 0; i < 64; ++i) blocks.emplace_back(4 * kMiB);
    EXPECT(memory_info().free + 200 * kMiB < before);
    use_primary();
    EXPECT(memory_info().free + 100 * kMiB > first.free);
    CALL(cu.cuCtxSetCurrent(primary_of(second_device())));
  }
}

CHECK_CASE_SIZES("peers", "a box between the devices, without peer access", isolated | needs2) {
  const Block here(size.bytes);
  const auto data = pattern(3072, 8);
  write_bytes(here, data);
  const OnSecond second;
  const Stream stream;
  const Block there(size.bytes);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = here;
  copy.dstDevice = there;
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 256;
  copy.srcHeight = copy.dstHeight = copy.Height = 4;
  copy.Depth = 3;
  GIVES(0, cu.cuMemcpy3DAsync(&copy, stream));
  stream.finish();
  EXPECT(read_bytes(there, 3072) == data);
  // And to the host, which no other device's context can do for it.
  std::vector<std::uint8_t> back(3072);
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = back.data();
  GIVES(0, cu.cuMemcpy3D(&copy));
  EXPECT(back == data);
}

CHECK_CASE_SIZES("peers", "batches between the devices and the host, without peer access",
                 isolated | needs2) {
  if (cu.cuMemcpyBatchAsync_v2 == nullptr || cu.cuMemcpy3DBatchAsync_v2 == nullptr) {
    SKIP("the driver has no batched copies of CUDA 13");
  }
  const Block here(size.bytes);
  const auto data = pattern(4096, 3);
  write_bytes(here, data);
  const OnSecond second;
  const Stream stream;
  const Block there(size.bytes), near(size.bytes);
  std::vector<std::uint8_t> host(1024);
  // From the other device, to it, beside it, and from it to the host.
  CUdeviceptr to[] = {there, here + 4096, near, reinterpret_cast<CUdeviceptr>(host.data())};
  CUdeviceptr from[] = {here, there + 2048, there + 2048, here + 1024};
  std::size_t bytes[] = {1024, 1024, 1024, 1024};
  CUmemcpyAttributes order{};
  order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  CALL(cu.cuMemsetD8(there + 2048, 0x5a, 1024));
  CALL(cu.cuCtxSynchronize());
  GIVES(0, cu.cuMemcpyBatchAsync_v2(to, from, bytes, 4, &order, &first, 1, stream));
  stream.finish();
  const auto part = [&](std::size_t at) {
    return std::vector<std::uint8_t>(data.begin() + static_cast<long>(at),
                                     data.begin() + static_cast<long>(at) + 1024);
  };
  EXPECT(read_bytes(there, 1024) == part(0));
  EXPECT(holds_byte(near, 1024, 0x5a));
  EXPECT(host == part(1024));
  CUDA_MEMCPY3D_BATCH_OP op{};
  op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  op.src.op.ptr.ptr = here + 2048;
  op.dst.op.ptr.ptr = there;
  op.extent = {64, 4, 4};
  op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  GIVES(0, cu.cuMemcpy3DBatchAsync_v2(1, &op, 0, stream));
  stream.finish();
  EXPECT(read_bytes(there, 1024) == part(2048));
  use_primary();
  EXPECT(holds_byte(here + 4096, 1024, 0x5a));
}

namespace {

void expect_captured_copy(std::size_t bytes) {
  const Block here(bytes);
  const OnSecond second;
  const Stream stream;
  const Block there(bytes);
  CALL(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  GIVES(0, cu.cuMemcpyAsync(there, here, bytes, stream));
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  GIVES(0, cu.cuStreamEndCapture(stream, &graph));
  REQUIRE(graph != nullptr);
  CALL(cu.cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (unsigned seed = 1; seed < 3; ++seed) {
    write_bytes(here, pattern(bytes, seed));
    CALL(cu.cuGraphLaunch(executable, stream));
    stream.finish();
    EXPECT(read_bytes(there, bytes) == pattern(bytes, seed));
  }
  CALL(cu.cuGraphExecDestroy(executable));
  CALL(cu.cuGraphDestroy(graph));
}

}  // namespace

CHECK_CASE_SIZES("peers", "a captured copy between the devices, with peer access",
                 isolated | needs2) {
  expect_peers();
  let_second_see_first();
  expect_captured_copy(size.bytes);
}

CHECK_CASE_SIZES("peers", "a captured copy between the devices, without peer access",
                 isolated | needs2) {
  // Two cases in which only the bare driver can: docs/compatibility.md.
  expect_peers();
  const char* peers = std::getenv("KVSHIM_PEERS");
  if (preloaded() && peers != nullptr && std::string(peers) != "auto") {
    SKIP("KVSHIM_PEERS gives access only to those who ask for it");
  }
  expect_captured_copy(size.bytes);
}

CHECK_CASE_SIZES("peers", "a batch on a device that has not been used before", isolated | needs2) {
  if (cu.cuMemcpyBatchAsync_v2 == nullptr) SKIP("the driver has no batched copies of CUDA 13");
  const Block here(size.bytes);
  const auto data = pattern(1024, 3);
  write_bytes(here, data);
  const OnSecond second;
  const Stream stream;
  void* pinned = nullptr;
  CALL(cu.cuMemHostAlloc(&pinned, 1024, CU_MEMHOSTALLOC_PORTABLE));
  CUdeviceptr to = reinterpret_cast<CUdeviceptr>(pinned), from = here;
  std::size_t bytes = 1024, first = 0;
  CUmemcpyAttributes order{};
  order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
  GIVES(0, cu.cuMemcpyBatchAsync_v2(&to, &from, &bytes, 1, &order, &first, 1, stream));
  stream.finish();
  EXPECT(std::memcmp(pinned, data.data(), 1024) == 0);
  CALL(cu.cuMemFreeHost(pinned));
}

// Refused natively, as a kernel is. Under kvshim VMM memory may be open to the other device
// already, and the CPU sets managed memory.
CHECK_CASE_SIZES("peers", "a memset of the other device's block without peer access sets nothing",
                 isolated | needs2) {
  const Block here(size.bytes);
  CALL(cu.cuMemsetD8(here, 1, size.bytes));
  CALL(cu.cuCtxSynchronize());
  const OnSecond second;
  const CUresult code = cu.cuMemsetD8(here, 9, size.bytes);
  CALL(cu.cuCtxSynchronize());
  EXPECT(code == CUDA_ERROR_INVALID_VALUE || (preloaded() && code == CUDA_SUCCESS));
  EXPECT(holds_byte(here, size.bytes, code == CUDA_SUCCESS ? 9 : 1));
}

CHECK_CASE_SIZES("peers", "a memset of the other device's block with peer access",
                 isolated | needs2) {
  expect_peers();
  const Block here(size.bytes);
  CALL(cu.cuMemsetD8(here, 1, size.bytes));
  CALL(cu.cuCtxSynchronize());
  let_second_see_first();
  const OnSecond second;
  const Stream stream;
  GIVES(0, cu.cuMemsetD8(here, 2, 100));
  GIVES(0, cu.cuMemsetD16(here + 100, 0x0303, 50));
  GIVES(0, cu.cuMemsetD32Async(here + 200, 0x04040404, 25, nullptr));
  GIVES(0, cu.cuMemsetD2D8(here + 512, 100, 5, 60, 4));
  CALL(cu.cuCtxSynchronize());
  GIVES(0, cu.cuMemsetD8Async(here + 300, 6, 100, stream));
  stream.finish();
  GIVES(1, cu.cuMemsetD8(here.end() - 3, 7, 4));
  for (unsigned part = 0; part < 3; ++part) {
    EXPECT(holds_byte(here + 100 * part, 100, static_cast<std::uint8_t>(2 + part)));
  }
  EXPECT(holds_byte(here + 300, 100, 6));
  for (unsigned row = 0; row < 4; ++row) {
    EXPECT(holds_byte(here + 512 + 100 * row, 60, 5));
    EXPECT(holds_byte(here + 512 + 100 * row + 60, 40, 1));
  }
}

CHECK_CASE_SIZES("peers", "a batch between the devices that succeeds names no copy",
                 isolated | needs2) {
  if (cu.cuMemcpyBatchAsync_v1 == nullptr || cu.cuMemcpy3DBatchAsync_v1 == nullptr) {
    SKIP("the driver has no batched copies of CUDA 12.8");
  }
  const Block here(size.bytes);
  const OnSecond second;
  const Stream stream;
  const Block there(size.bytes);
  CUdeviceptr to = there, from = here;
  std::size_t bytes = 64, first = 0, failed = 77;
  CUmemcpyAttributes order{};
  order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  GIVES(0, cu.cuMemcpyBatchAsync_v1(&to, &from, &bytes, 1, &order, &first, 1, &failed, stream));
  EXPECT_EQ(failed, ~std::size_t{0});
  CUDA_MEMCPY3D_BATCH_OP op{};
  op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  op.src.op.ptr.ptr = here;
  op.dst.op.ptr.ptr = there;
  op.extent = {16, 2, 2};
  op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  GIVES(0, cu.cuMemcpy3DBatchAsync_v1(1, &op, &failed, 0, stream));
  EXPECT_EQ(failed, ~std::size_t{0});
  stream.finish();
}
