// The order of frees and work, and stream-ordered allocation. cudaFree used to wait and cuMemUnmap
// does not: memory that running work uses must not go under it.
#include <thread>

#include "host.h"

using namespace cases;

namespace {

std::atomic<bool> opened{false};

void wait_for_it(void*) {
  for (int round = 0; round < 4000 && !opened; ++round) usleep(1000);
}
void take_a_while(void*) {
  usleep(3000);
}

CUstream new_stream() {
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

}  // namespace

CASE("200 rounds of alloc, busy stream, free at once: never freed under running work") {
  const Result result = run(kPreloaded, "free_busy", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.count("cuMemAllocManaged bytes=67108864") == 3, result.show());
}
SCENE(free_busy) {
  use_device();
  const CUstream stream = new_stream();
  for (int round = 0; round < 200; ++round) {
    const std::size_t sizes[] = {4096, 3 * kMiB, 1 * kMiB};
    const std::size_t bytes = round % 80 == 7 ? 64 * kMiB : sizes[round % 3];
    const CUdeviceptr block = allocate(bytes);
    if (round % 4 == 0) OK(cuLaunchHostFunc(stream, take_a_while, nullptr));
    OK(cuMemsetD8Async(block, 1, 4096, stream));
    OK(cuMemcpyDtoDAsync(block + 2048, block, 2048, stream));
    OK(cuMemFree(block));
    EXPECT(kvsim_work_in_flight() == 0);
  }
  EXPECT(kvsim_violations() == 0 && kvsim_illegal_accesses() == 0);
  // The check can fail: the same with a mapping of the program's own, which nobody waits for.
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr mapping = 0;
  OK(cuMemCreate(&handle, 2 * kMiB, &prop, 0));
  OK(cuMemAddressReserve(&mapping, 2 * kMiB, 0, 0, 0));
  OK(cuMemMap(mapping, 2 * kMiB, 0, handle, 0));
  OK(cuMemSetAccess(mapping, 2 * kMiB, &access, 1));
  OK(cuLaunchHostFunc(stream, take_a_while, nullptr));
  OK(cuMemsetD8Async(mapping, 1, 4096, stream));
  OK(cuMemUnmap(mapping, 2 * kMiB));
  EXPECT(kvsim_violations() == 1);
  _exit(0);
}

CASE("a free waits on the owning device, whichever device is current") {
  const Result result = run(kPreloaded, "free_elsewhere", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(free_elsewhere) {
  const CUcontext first = use_device(0);
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB, 64 * kMiB}) {
    OK(cuCtxSetCurrent(first));
    const CUstream stream = new_stream();
    const CUdeviceptr block = allocate(bytes);
    OK(cuLaunchHostFunc(stream, take_a_while, nullptr));
    OK(cuMemsetD8Async(block, 1, bytes, stream));
    use_device(1);
    OK(cuMemFree(block));
    OK(cuCtxSetCurrent(first));
    OK(cuStreamQuery(stream));
    EXPECT(kvsim_violations() == 0);
  }
  return 0;
}

CASE("cuMemFreeAsync of a kvshim block returns at once, and the block goes after the work") {
  const Result result = run(kPreloaded, "free_async", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(free_async) {
  use_device();
  const CUstream stream = new_stream();
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB, 64 * kMiB}) {
    opened = false;
    const CUdeviceptr block = allocate(bytes);
    OK(cuLaunchHostFunc(stream, wait_for_it, nullptr));
    OK(cuMemsetD8Async(block, 1, bytes, stream));
    OK(cuMemFreeAsync(block, stream));  // would hang 4 s if it waited
    EXPECT(kvsim_work_in_flight() != 0);
    CODE(cuMemFreeAsync(block, stream), CUDA_ERROR_INVALID_VALUE);
    opened = true;
    OK(cuStreamSynchronize(stream));
    OK(cuMemFree(allocate(512)));  // whatever was due is given back by now
    EXPECT(kvsim_violations() == 0);
    if (bytes != 4096) EXPECT(!kvsim_knows(block));
  }
  return 0;
}

CASE("stream-ordered allocations stay native and are named, with what to do about it") {
  const Result result = run(kPreloaded, "pools", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.count("cuMemAllocManaged") == 0 && result.count("cuMemCreate") == 0,
            result.show());
  const Summary summary = summary_of(result.err);
  EXPECT_IN(summary.says("132 MiB in 3 stream-ordered allocations, 2 of them (128 MiB) at or over"),
            result.err);
  EXPECT_IN(summary.says("KVSHIM_ASYNC=route") && summary.says("cuda_async"), summary.text);
}
SCENE(pools) {
  use_device();
  CUmemoryPool pool = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  CUdeviceptr blocks[3] = {};
  OK(cuMemAllocAsync(&blocks[0], 64 * kMiB, nullptr));
  OK(cuMemAllocFromPoolAsync(&blocks[1], 64 * kMiB, pool, nullptr));
  OK(cuMemAllocAsync(&blocks[2], 4 * kMiB, nullptr));
  for (const CUdeviceptr block : blocks) {
    unsigned answer = 1;
    OK(cuPointerGetAttribute(&answer, CU_POINTER_ATTRIBUTE_IS_MANAGED, block));
    EXPECT(answer == 0);
  }
  OK(cuMemFreeAsync(blocks[0], nullptr));
  OK(cuMemFree(blocks[1]));
  OK(cuMemFreeAsync(blocks[2], nullptr));
  OK(cuCtxSynchronize());
  return 0;
}

CASE("KVSHIM_ASYNC=route routes those at and over the threshold; a capture keeps its node") {
  const Result result = run(kPreloaded, "routed", small_threshold({{"KVSHIM_ASYNC", "route"}}));
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.count("cuMemAllocManaged bytes=67108864") == 2, result.show());
  EXPECT_IN(result.count("cuMemAllocAsync bytes=67108864") == 1, result.show());
  Summary summary = summary_of(result.err);
  EXPECT_IN(summary.kinds["managed"].blocks == 2 && summary.kinds["managed"].live == 0, result.err);
}
SCENE(routed) {
  use_device();
  CUmemoryPool pool = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  const CUstream stream = new_stream();
  CUdeviceptr block = 0;
  OK(cuMemAllocAsync(&block, 64 * kMiB, stream));
  EXPECT(managed(block));
  OK(cuMemsetD8Async(block, 1, 64 * kMiB, stream));
  OK(cuMemFreeAsync(block, stream));
  OK(cuMemAllocFromPoolAsync(&block, 64 * kMiB, pool, stream));
  EXPECT(managed(block));
  OK(cuMemFree(block));
  OK(cuMemAllocAsync(&block, 64 * kMiB - 1, stream));
  EXPECT(!managed(block));
  OK(cuMemFreeAsync(block, stream));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  cuMemAllocAsync(&block, 64 * kMiB, stream);  // the driver's to allow or refuse
  CUgraph graph = nullptr;
  cuStreamEndCapture(stream, &graph);
  OK(cuCtxSynchronize());
  OK(cuMemFree(allocate(512)));
  return 0;
}

CASE("an address in a captured graph stays where it is while its neighbours come and go") {
  const Result result = run(kPreloaded, "replay", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(replay) {
  use_device();
  const CUstream stream = new_stream();
  const CUdeviceptr neighbour = allocate(64 * kMiB);
  const CUdeviceptr block = allocate(3 * kMiB);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemsetD8Async(block, 9, 3 * kMiB, stream));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuMemFree(neighbour));
  for (int round = 0; round < 20; ++round) OK(cuMemFree(allocate(2 * kMiB + round * kMiB)));
  OK(cuMemsetD8(block, 0, 3 * kMiB));
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  unsigned char last = 0;
  OK(cuMemcpyDtoH(&last, block + 3 * kMiB - 1, 1));
  EXPECT(last == 9);
  EXPECT(kvsim_violations() == 0 && kvsim_illegal_accesses() == 0);
  return 0;
}

namespace {

bool filled_with(CUdeviceptr block, std::size_t bytes, unsigned char value) {
  const auto* at = reinterpret_cast<const unsigned char*>(block);
  for (std::size_t index = 0; index < bytes; index += 4096) {
    if (at[index] != value) return false;
  }
  return at[bytes - 1] == value;
}

// As captured so far; destroys the graph.
CUgraphExec end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  CUgraphExec replay = nullptr;
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiateWithFlags(&replay, graph, 0));
  OK(cuGraphDestroy(graph));
  return replay;
}

void replay_once(CUgraphExec replay, CUstream stream) {
  OK(cuGraphLaunch(replay, stream));
  OK(cuStreamSynchronize(stream));
}

}  // namespace

CASE("a captured memset of a managed block is the driver's node, and sets what it says each time") {
  const Result result = run(kPreloaded, "captured_memset", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(captured_memset) {
  use_device();
  const CUstream stream = new_stream();
  const CUdeviceptr block = allocate(64 * kMiB);
  const CUdeviceptr other = allocate(64 * kMiB);
  kvsim_log_clear();
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD8Async(block, 0xaa, 64 * kMiB, stream));
  const CUgraphExec replay = end_capture(stream);
  EXPECT(kvsim_log_count("cuLaunchHostFunc") == 0);
  EXPECT(kvsim_log_count("cuMemsetD8Async") == 1);
  EXPECT(filled_with(block, 64 * kMiB, 0));  // captured is not done
  for (unsigned char round = 1; round <= 3; ++round) {
    OK(cuMemsetD8Async(block, round, 64 * kMiB, stream));  // by the CPU, in stream order
    OK(cuMemsetD8Async(other, round, 64 * kMiB, stream));
    replay_once(replay, stream);
    EXPECT(filled_with(block, 64 * kMiB, 0xaa) && filled_with(other, 64 * kMiB, round));
  }
  EXPECT(kvsim_log_count("cuLaunchHostFunc") == 6);
  OK(cuMemFree(other));  // blocks that come and go beside it change nothing
  OK(cuMemFree(allocate(64 * kMiB)));
  OK(cuMemsetD8(block, 1, 64 * kMiB));
  replay_once(replay, stream);
  EXPECT(filled_with(block, 64 * kMiB, 0xaa));
  OK(cuGraphExecDestroy(replay));
  OK(cuMemFree(block));
  EXPECT(kvsim_violations() == 0);
  return 0;
}

CASE("a capture that another thread begins during a memset: each replay repeats that very memset") {
  const Result result = run(kPreloaded, "memset_meets_capture", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(memset_meets_capture) {
  const CUcontext context = use_device();
  const CUstream stream = new_stream();
  const CUdeviceptr block = allocate(64 * kMiB);
  const CUdeviceptr other = allocate(64 * kMiB);
  kvsim_hold("cuLaunchHostFunc");  // kvshim has seen that nothing captures, and goes on
  std::thread memset([&] {
    OK(cuCtxSetCurrent(context));
    OK(cuMemsetD8Async(block, 0xaa, 64 * kMiB, stream));
  });
  for (int round = 0; round < 50000 && kvsim_waiting("cuLaunchHostFunc") == 0; ++round) usleep(100);
  EXPECT(kvsim_waiting("cuLaunchHostFunc") == 1);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  kvsim_release("cuLaunchHostFunc");
  memset.join();
  const CUgraphExec replay = end_capture(stream);
  EXPECT(filled_with(block, 64 * kMiB, 0));
  for (unsigned char round = 1; round <= 3; ++round) {
    replay_once(replay, stream);
    EXPECT(filled_with(block, 64 * kMiB, 0xaa));
    // Other memsets take no node's place.
    OK(cuMemsetD8Async(block, round, 64 * kMiB, stream));
    OK(cuMemsetD8Async(other, 0x22, 64 * kMiB, stream));
    OK(cuMemsetD8Async(other, round, 64 * kMiB, stream));
    OK(cuStreamSynchronize(stream));
    replay_once(replay, stream);
    EXPECT(filled_with(block, 64 * kMiB, 0xaa) && filled_with(other, 64 * kMiB, round));
    OK(cuMemsetD8Async(block, round, 64 * kMiB, stream));
    OK(cuStreamSynchronize(stream));
  }
  OK(cuMemFree(block));
  OK(cuMemFree(other));
  return 0;
}
