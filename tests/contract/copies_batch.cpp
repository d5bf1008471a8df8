// Boxes and batches: their shape, their order in the stream, and the end of a block.
#include <algorithm>
#include <string>
#include <vector>

#include "gpu.h"

using namespace contract;

namespace {

CUDA_MEMCPY3D box(CUdeviceptr to, CUdeviceptr from, std::size_t width, std::size_t height,
                  std::size_t depth) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.dstDevice = to;
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = width;
  copy.srcHeight = copy.dstHeight = copy.Height = height;
  copy.Depth = depth;
  return copy;
}

CUDA_MEMCPY3D_BATCH_OP op(CUdeviceptr to, CUdeviceptr from, std::size_t width, std::size_t height,
                          std::size_t depth) {
  CUDA_MEMCPY3D_BATCH_OP one{};
  one.src.type = one.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  one.src.op.ptr.ptr = from;
  one.dst.op.ptr.ptr = to;
  one.extent = {width, height, depth};
  one.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  return one;
}

struct Batch {
  std::vector<CUdeviceptr> to, from;
  std::vector<std::size_t> bytes;
  CUmemcpyAttributes order{};
  std::size_t first = 0, failed = 77;

  Batch() { order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM; }
  void add(CUdeviceptr a, CUdeviceptr b, std::size_t n) {
    to.push_back(a);
    from.push_back(b);
    bytes.push_back(n);
  }
  CUresult run_v1(CUstream stream) {
    return cu.cuMemcpyBatchAsync_v1(to.data(), from.data(), bytes.data(), to.size(), &order, &first,
                                    1, &failed, stream);
  }
  CUresult run_v2(CUstream stream) {
    return cu.cuMemcpyBatchAsync_v2(to.data(), from.data(), bytes.data(), to.size(), &order, &first,
                                    1, stream);
  }
};

void expect_batches() {
  if (cu.cuMemcpyBatchAsync_v1 == nullptr || cu.cuMemcpyBatchAsync_v2 == nullptr ||
      cu.cuMemcpy3DBatchAsync_v1 == nullptr || cu.cuMemcpy3DBatchAsync_v2 == nullptr) {
    SKIP("the driver has no batched copies of CUDA 13");
  }
}

}  // namespace

CHECK_CASE_SIZES("copies", "a box with a pitch, a height and offsets of its own", plain) {
  const Block block(size.bytes), packed(size.bytes);
  CALL(cu.cuMemsetD8(block, 0xaa, size.bytes));
  const auto data = pattern(3 * 4 * 50, 5);
  write_bytes(packed, data);
  CUDA_MEMCPY3D copy = box(block, packed, 50, 4, 3);
  copy.dstPitch = 100;
  copy.dstHeight = 6;
  copy.dstXInBytes = 7;
  copy.dstY = 1;
  copy.dstZ = 2;
  GIVES(0, cu.cuMemcpy3D(&copy));
  CALL(cu.cuCtxSynchronize());
  const auto at = [](std::size_t z, std::size_t y) { return ((z + 2) * 6 + y + 1) * 100 + 7; };
  for (std::size_t z = 0; z < 3; ++z) {
    for (std::size_t y = 0; y < 4; ++y) {
      const auto first = data.begin() + static_cast<long>((z * 4 + y) * 50);
      EXPECT(read_bytes(block + at(z, y), 50) == std::vector<std::uint8_t>(first, first + 50));
      EXPECT(holds_byte(block + at(z, y) - 7, 7, 0xaa));
      EXPECT(holds_byte(block + at(z, y) + 50, 43, 0xaa));
    }
  }
  // And back, into another place, in a stream.
  const Stream stream;
  CUDA_MEMCPY3D back = box(packed + 1000, block, 50, 4, 3);
  back.srcPitch = 100;
  back.srcHeight = 6;
  back.srcXInBytes = 7;
  back.srcY = 1;
  back.srcZ = 2;
  GIVES(0, cu.cuMemcpy3DAsync(&back, stream));
  stream.finish();
  EXPECT(read_bytes(packed + 1000, data.size()) == data);
}

CHECK_CASE_SIZES("copies", "a box past the end is refused with 1", plain) {
  const Block block(size.bytes), other(size.bytes);
  const Stream stream;
  const std::size_t whole = size.bytes / 4;
  CUDA_MEMCPY3D copy = box(other, block, whole / 2, 2, 4);
  GIVES(0, cu.cuMemcpy3D(&copy));
  copy.srcXInBytes = size.bytes % 4 + 1;
  GIVES(1, cu.cuMemcpy3D(&copy));
  GIVES(1, cu.cuMemcpy3DAsync(&copy, stream));
  copy.srcXInBytes = 0;
  copy.dstZ = 1;
  GIVES(1, cu.cuMemcpy3D(&copy));
  GIVES(1, cu.cuMemcpy3D_v2_ptds(&copy));
  GIVES(1, cu.cuMemcpy3DAsync_v2_ptsz(&copy, nullptr));
  GIVES(0, cu.cuCtxSynchronize());
}

CHECK_CASE_SIZES("copies", "the copy that names both contexts, past the end, is refused with 1",
                 plain) {
  const CUcontext context = use_primary();
  const Block block(size.bytes), other(2 * size.bytes);
  GIVES(0, cu.cuMemcpyPeer(other, context, block, context, size.bytes));
  GIVES(1, cu.cuMemcpyPeer(other, context, block, context, size.bytes + 1));
  GIVES(1, cu.cuMemcpyPeerAsync(block + 1, context, other, context, size.bytes, nullptr));
  GIVES(0, cu.cuCtxSynchronize());
}

CHECK_CASE_SIZES("copies", "empty boxes", plain | observes) {
  const Block block(size.bytes);
  CUDA_MEMCPY3D copy = box(block, block + 512, 0, 2, 2);
  observe("no width", cu.cuMemcpy3D(&copy));
  copy = box(block, block + 512, 16, 0, 2);
  observe("no height", cu.cuMemcpy3D(&copy));
  copy = box(block, block + 512, 16, 2, 0);
  observe("no depth", cu.cuMemcpy3D(&copy));
  copy = box(block + size.bytes, block, 0, 2, 2);
  observe("no width, past the end", cu.cuMemcpy3D(&copy));
  observe("no description", cu.cuMemcpy3D(nullptr));
}

CHECK_CASE_SIZES("copies", "a batch comes after the work before it and before what follows",
                 plain) {
  expect_batches();
  constexpr std::size_t kParts = 16;
  const std::size_t part = size.bytes / kParts / 4 * 4;
  const Stream stream;
  HostFlag flag;
  const Block block(size.bytes), other(size.bytes);
  void* pinned = nullptr;
  CALL(cu.cuMemHostAlloc(&pinned, size.bytes, CU_MEMHOSTALLOC_PORTABLE));
  load_kernels();
  for (const bool newer : {false, true}) {
    Batch batch;
    for (std::size_t i = 0; i < kParts; ++i) {
      // In reverse order; every other part by way of the host.
      const std::size_t at = (kParts - 1 - i) * part;
      const CUdeviceptr host = reinterpret_cast<CUdeviceptr>(pinned) + at;
      batch.add(i % 2 == 0 ? other + at : host, block + at, part);
    }
    flag.lower();
    flag.hold(stream);
    fill(stream, block, size.bytes / 4, newer ? 5 : 4);
    GIVES(0, newer ? batch.run_v2(stream) : batch.run_v1(stream));
    fill(stream, block, size.bytes / 4, 9);
    EXPECT(stream.busy());
    flag.raise();
    stream.finish();
    for (std::size_t i = 0; i < kParts; i += 2) {
      const std::size_t at = (kParts - 1 - i) * part;
      EXPECT(holds_word(other + at, part / 4, newer ? 5 : 4));
    }
    EXPECT_EQ(static_cast<std::uint32_t*>(pinned)[0], newer ? 5u : 4u);
  }
  CALL(cu.cuMemFreeHost(pinned));
}

CHECK_CASE("copies", "a batch from the host's stack is read before the call returns", plain) {
  expect_batches();
  const Stream stream;
  const Block small(6000), medium(3 * kMiB), large(option_large());
  for (const Block* block : {&small, &medium, &large}) {
    auto data = pattern(5000, 8);
    Batch batch;
    batch.order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    batch.add(*block, reinterpret_cast<CUdeviceptr>(data.data()), 2500);
    batch.add(*block + 2500, reinterpret_cast<CUdeviceptr>(data.data()) + 2500, 2500);
    spin(stream, 0.02);
    GIVES(0, batch.run_v2(stream));
    std::fill(data.begin(), data.end(), std::uint8_t{0});
    stream.finish();
    EXPECT(read_bytes(*block, 5000) == pattern(5000, 8));
  }
}

CHECK_CASE("copies",
           "an asynchronous copy from ordinary host memory is read before the call returns",
           plain) {
  const Stream stream;
  const Block small(6000), medium(3 * kMiB), large(option_large());
  for (const Block* block : {&small, &medium, &large}) {
    // Under and over the 64 KiB that travel in the command itself.
    for (const std::size_t bytes : {std::size_t{5000}, std::size_t{300000}}) {
      if (bytes > block->bytes()) continue;
      for (const bool typed : {false, true}) {
        auto data = pattern(bytes, 8);
        spin(stream, 0.02);
        if (typed) {
          CALL(cu.cuMemcpyHtoDAsync(*block, data.data(), bytes, stream));
        } else {
          CALL(cu.cuMemcpyAsync(*block, reinterpret_cast<CUdeviceptr>(data.data()), bytes, stream));
        }
        std::fill(data.begin(), data.end(), std::uint8_t{0});
        stream.finish();
        EXPECT(read_bytes(*block, bytes) == pattern(bytes, 8));
      }
    }
  }
}

CHECK_CASE_SIZES("copies", "a batch with one copy past the end is refused with 1",
                 plain | observes) {
  expect_batches();
  const Stream stream;
  const Block block(size.bytes), other(size.bytes);
  Batch batch;
  batch.add(other, block, 16);
  batch.add(other + 1024, block.end() - 15, 16);
  batch.add(other + 2048, block, 16);
  GIVES(1, batch.run_v1(stream));
  observe("which", static_cast<long long>(batch.failed));
  GIVES(1, batch.run_v2(stream));
  CUDA_MEMCPY3D_BATCH_OP ops[] = {op(other, block, 16, 1, 1), op(other, block, size.bytes, 1, 2)};
  std::size_t failed = 77;
  GIVES(1, cu.cuMemcpy3DBatchAsync_v1(2, ops, &failed, 0, stream));
  observe("which box", static_cast<long long>(failed));
  GIVES(1, cu.cuMemcpy3DBatchAsync_v2(2, ops, 0, stream));
  stream.finish();
}

CHECK_CASE_SIZES("copies", "which copy a batch names", isolated | observes) {
  expect_batches();
  const Stream stream;
  const Block block(size.bytes), other(size.bytes);
  const auto said = [&](const char* what, CUresult code, std::size_t failed) {
    observe(what, code);
    observe(what, static_cast<long long>(failed));
  };
  const auto lines = [&](const char* what, CUstream where, auto change) {
    Batch batch;
    batch.add(other, block, 16);
    batch.add(other + 1024, block + 64, 16);
    change(batch);
    const CUresult code = batch.run_v1(where);
    said(what, code, batch.failed);
  };
  lines("success", stream, [](Batch&) {});
  lines("no bytes", stream, [](Batch& batch) { batch.bytes[1] = 0; });
  lines("access order", stream,
        [](Batch& batch) { batch.order.srcAccessOrder = static_cast<CUmemcpySrcAccessOrder>(9); });
  lines("first attribute", stream, [](Batch& batch) { batch.first = 1; });
  lines("an empty batch", stream, [](Batch& batch) { batch.to.clear(); });
  lines("the legacy stream", nullptr, [](Batch&) {});
  const auto boxes = [&](const char* what, CUstream where, std::size_t count,
                         unsigned long long flags, std::size_t height) {
    CUDA_MEMCPY3D_BATCH_OP ops[] = {op(other, block, 16, 1, 1),
                                    op(other + 64, block, 16, height, 1)};
    std::size_t failed = 77;
    const CUresult code = cu.cuMemcpy3DBatchAsync_v1(count, ops, &failed, flags, where);
    said(what, code, failed);
  };
  boxes("boxes", stream, 2, 0, 1);
  boxes("an empty box", stream, 2, 0, 0);
  boxes("no boxes", stream, 0, 0, 1);
  boxes("flags", stream, 2, 1, 1);
  boxes("boxes in the legacy stream", nullptr, 2, 0, 1);
  stream.finish();
}

CHECK_CASE_SIZES("copies", "batched boxes with rows and layers of their own", plain) {
  expect_batches();
  const Stream stream;
  const Block block(size.bytes), other(size.bytes);
  const auto data = pattern(3000, 6);
  write_bytes(block, data);
  CALL(cu.cuMemsetD8(other, 0, size.bytes));
  CALL(cu.cuCtxSynchronize());
  // 2 layers of 3 rows of 40 bytes out of layers of 5 rows of 100, packed; and one plain row.
  CUDA_MEMCPY3D_BATCH_OP ops[] = {op(other, block, 40, 3, 2), op(other + 1000, block, 77, 1, 1)};
  ops[0].src.op.ptr.rowLength = 100;
  ops[0].src.op.ptr.layerHeight = 5;
  GIVES(0, cu.cuMemcpy3DBatchAsync_v2(2, ops, 0, stream));
  stream.finish();
  for (std::size_t line = 0; line < 6; ++line) {
    const auto first = data.begin() + static_cast<long>((line / 3 * 5 + line % 3) * 100);
    EXPECT(read_bytes(other + line * 40, 40) == std::vector<std::uint8_t>(first, first + 40));
  }
  EXPECT(read_bytes(other + 1000, 77) ==
         std::vector<std::uint8_t>(data.begin(), data.begin() + 77));
}

CHECK_CASE_SIZES("copies", "what batches refuse", plain | observes) {
  expect_batches();
  const Stream stream;
  const Block block(size.bytes);
  Batch batch;
  batch.add(block, block + 1024, 16);
  observe("the legacy stream", batch.run_v2(nullptr));
  observe("the legacy stream by name", batch.run_v2(CU_STREAM_LEGACY));
  batch.order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  observe("no order", batch.run_v2(stream));
  batch.order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  batch.bytes[0] = 0;
  observe("no bytes", batch.run_v2(stream));
  observe("nothing at all",
          cu.cuMemcpyBatchAsync_v2(nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0, stream));
  GIVES(0, cu.cuStreamSynchronize(stream));
}

CHECK_CASE_SIZES("capture", "a batch into a capturing stream", plain | observes) {
  expect_batches();
  const Block block(size.bytes);
  const Stream stream;
  Batch batch;
  batch.add(block, block + 1024, 16);
  CALL(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  observe("code", batch.run_v2(stream));
  CUgraph graph = nullptr;
  const CUresult ended = cu.cuStreamEndCapture(stream, &graph);
  observe("end of the capture", ended);
  if (ended == CUDA_SUCCESS) CALL(cu.cuGraphDestroy(graph));
}
