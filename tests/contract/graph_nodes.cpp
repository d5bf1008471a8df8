// Graphs built by hand: memcpy and memset nodes on blocks of each size, changed in an executable
// graph, replayed while other memory comes and goes.
#include <vector>

#include "capture.h"

using namespace contract;

namespace {

CUDA_MEMCPY3D linear(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.dstDevice = to;
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = bytes;
  copy.srcHeight = copy.dstHeight = copy.Height = copy.Depth = 1;
  return copy;
}

CUDA_MEMSET_NODE_PARAMS words_of(CUdeviceptr ptr, std::size_t words, unsigned value) {
  return {ptr, words * 4, value, 4, words, 1};
}

}  // namespace

CHECK_CASE_SIZES("graphs", "a memset node and a memcpy node after it", plain) {
  const CUcontext context = use_primary();
  const Stream stream;
  const std::size_t words = size.bytes / 4;
  const Block block(size.bytes), copy(size.bytes);
  CALL(cu.cuMemsetD32(copy, 1, words));
  CALL(cu.cuCtxSynchronize());
  CUgraph graph = nullptr;
  CUgraphNode set = nullptr, move = nullptr;
  CALL(cu.cuGraphCreate(&graph, 0));
  const CUDA_MEMSET_NODE_PARAMS seven = words_of(block, words, 7);
  const CUDA_MEMCPY3D over = linear(copy, block, words * 4);
  GIVES(0, cu.cuGraphAddMemsetNode(&set, graph, nullptr, 0, &seven, context));
  GIVES(0, cu.cuGraphAddMemcpyNode(&move, graph, &set, 1, &over, context));
  const Graph executable(graph);
  EXPECT(holds_word(copy, words, 1));
  for (unsigned round = 0; round < 3; ++round) {
    fill(stream, block, words, 1000 + round);
    fill(stream, copy, words, 1000 + round);
    executable.launch(stream);
    stream.finish();
    EXPECT(holds_word(block, words, 7));
    EXPECT(holds_word(copy, words, 7));
  }
}

CHECK_CASE("graphs", "memcpy nodes between blocks of all sizes and the host", plain) {
  const CUcontext context = use_primary();
  const Stream stream;
  const Block small(small_size().bytes), medium(medium_size().bytes), large(option_large());
  std::vector<std::uint8_t> back(5000);
  const auto data = pattern(5000, 4);
  write_bytes(small, data);
  CUgraph graph = nullptr;
  CUgraphNode nodes[3] = {};
  CALL(cu.cuGraphCreate(&graph, 0));
  const CUDA_MEMCPY3D first = linear(large.end() - 5000, small, 5000);
  const CUDA_MEMCPY3D second = linear(medium.end() - 5000, large.end() - 5000, 5000);
  CUDA_MEMCPY3D third = linear(0, medium.end() - 5000, 5000);
  third.dstMemoryType = CU_MEMORYTYPE_HOST;
  third.dstHost = back.data();
  GIVES(0, cu.cuGraphAddMemcpyNode(&nodes[0], graph, nullptr, 0, &first, context));
  GIVES(0, cu.cuGraphAddMemcpyNode(&nodes[1], graph, &nodes[0], 1, &second, context));
  GIVES(0, cu.cuGraphAddMemcpyNode(&nodes[2], graph, &nodes[1], 1, &third, context));
  const Graph executable(graph);
  executable.launch(stream);
  stream.finish();
  EXPECT(back == data);
}

CHECK_CASE_SIZES("graphs", "nodes of an executable graph take other blocks of the same size",
                 plain) {
  const CUcontext context = use_primary();
  const Stream stream;
  const std::size_t words = size.bytes / 4;
  const Block first(size.bytes), second(size.bytes), third(size.bytes);
  CUgraph graph = nullptr;
  CUgraphNode set = nullptr, move = nullptr;
  CUgraphExec executable = nullptr;
  CALL(cu.cuGraphCreate(&graph, 0));
  const CUDA_MEMSET_NODE_PARAMS before = words_of(first, words, 3);
  const CUDA_MEMCPY3D over = linear(second, first, words * 4);
  CALL(cu.cuGraphAddMemsetNode(&set, graph, nullptr, 0, &before, context));
  CALL(cu.cuGraphAddMemcpyNode(&move, graph, &set, 1, &over, context));
  CALL(cu.cuGraphInstantiateWithFlags(&executable, graph, 0));
  CALL(cu.cuGraphLaunch(executable, stream));
  stream.finish();
  EXPECT(holds_word(second, words, 3));
  const CUDA_MEMSET_NODE_PARAMS after = words_of(third, words, 5);
  const CUDA_MEMCPY3D back = linear(first, third, words * 4);
  GIVES(0, cu.cuGraphExecMemsetNodeSetParams(executable, set, &after, context));
  GIVES(0, cu.cuGraphExecMemcpyNodeSetParams(executable, move, &back, context));
  CALL(cu.cuGraphLaunch(executable, stream));
  stream.finish();
  EXPECT(holds_word(third, words, 5));
  EXPECT(holds_word(first, words, 5));
  EXPECT(holds_word(second, words, 3));
  CALL(cu.cuGraphExecDestroy(executable));
  CALL(cu.cuGraphDestroy(graph));
}

CHECK_CASE_SIZES("graphs", "replays while other blocks come and go, and a block made after it",
                 plain) {
  const CUcontext context = use_primary();
  const Stream stream;
  const std::size_t words = size.bytes / 4;
  const Block block(size.bytes);
  CUgraph graph = nullptr;
  CUgraphNode set = nullptr;
  CALL(cu.cuGraphCreate(&graph, 0));
  const CUDA_MEMSET_NODE_PARAMS params = words_of(block, words, 8);
  CALL(cu.cuGraphAddMemsetNode(&set, graph, nullptr, 0, &params, context));
  const Graph executable(graph);
  for (int round = 0; round < 3; ++round) {
    Block other(size.bytes);
    CALL(cu.cuMemsetD32(other, 2, words));
    CALL(cu.cuMemsetD32(block, 1, words));
    CALL(cu.cuCtxSynchronize());
    executable.launch(stream);
    GIVES(0, cu.cuMemFree(other.leave()));
    stream.finish();
    EXPECT(holds_word(block, words, 8));
  }
}

CHECK_CASE_SIZES("capture", "copies of every form are captured and replayed", plain) {
  const Stream stream;
  const Block block(size.bytes), other(size.bytes);
  void* pinned = nullptr;
  CALL(cu.cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE));
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = block;
  rows.dstDevice = other + 1024;
  rows.srcPitch = rows.dstPitch = rows.WidthInBytes = 128;
  rows.Height = 4;
  const CUDA_MEMCPY3D box = linear(other + 2048, block, 512);
  CALL(cu.cuStreamBeginCapture(stream, kGlobal));
  GIVES(0, cu.cuMemcpyDtoDAsync(other, block, 512, stream));
  GIVES(0, cu.cuMemcpy2DAsync(&rows, stream));
  GIVES(0, cu.cuMemcpy3DAsync(&box, stream));
  GIVES(0, cu.cuMemcpyAsync(other + 3072, block, 512, stream));
  GIVES(0, cu.cuMemcpyDtoHAsync(pinned, block, 512, stream));
  GIVES(0, cu.cuMemcpyHtoDAsync(other + 4096, pinned, 512, stream));
  CUgraph graph = nullptr;
  GIVES(0, cu.cuStreamEndCapture(stream, &graph));
  REQUIRE(graph != nullptr);
  const Graph executable(graph);
  for (unsigned seed = 1; seed < 4; ++seed) {
    write_bytes(block, pattern(512, seed));
    executable.launch(stream);
    stream.finish();
    for (std::size_t at = 0; at <= 4096; at += 1024) {
      EXPECT(read_bytes(other + at, 512) == pattern(512, seed));
    }
  }
  CALL(cu.cuMemFreeHost(pinned));
}

CHECK_CASE("graphs", "nodes that make no sense", plain | observes) {
  const CUcontext context = use_primary();
  const Block block(4096);
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CALL(cu.cuGraphCreate(&graph, 0));
  CUDA_MEMSET_NODE_PARAMS set = words_of(block, 16, 1);
  set.elementSize = 3;
  observe("elements of 3 bytes", cu.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, context));
  set = words_of(kNowhere, 16, 1);
  observe("memset nowhere", cu.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, context));
  const CUDA_MEMCPY3D copy = linear(block, kNowhere, 16);
  observe("memcpy from nowhere", cu.cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, context));
  observe("no parameters", cu.cuGraphAddMemsetNode(&node, graph, nullptr, 0, nullptr, context));
  CALL(cu.cuGraphDestroy(graph));
}
