// What the engine promises a host program, on the simulated driver.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "sim_fixture.h"

using namespace kvshim;

namespace {

constexpr std::size_t kLarge = std::size_t{64} << 20;  // at the threshold of these tests

CUdeviceptr allocated(std::size_t bytes) {
  CUdeviceptr out = 0;
  REQUIRE(allocate(&out, bytes) == CUDA_SUCCESS);
  return out;
}

Kind kind_of(CUdeviceptr ptr) {
  engine::BlockView block;
  REQUIRE(engine::find(ptr, &block) == Place::block);
  return block.kind;
}

}  // namespace

TEST_CASE("the threshold decides, to the byte") {
  const Engine engine;
  const CUdeviceptr below = allocated(kLarge - 1);
  const CUdeviceptr at = allocated(kLarge);
  CHECK(kind_of(below) == Kind::vmm);
  CHECK(kind_of(at) == Kind::managed);
  CHECK(release(below) == CUDA_SUCCESS);
  CHECK(release(at) == CUDA_SUCCESS);
}

TEST_CASE("a managed block is zero, and its pages are in host memory") {
  const Engine engine;
  const CUdeviceptr ptr = allocated(kLarge + 777);
  CHECK(kvsim_resident_on_host(ptr, kLarge + 777) >= kLarge + 777);
  CHECK(kvsim_resident_on_device(ptr, kLarge + 777) == 0);
  unsigned char last = 1;
  std::memcpy(&last, reinterpret_cast<void*>(ptr + kLarge + 776), 1);
  CHECK(last == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("a block of 2 MiB and more is one handle, one mapping, access for its own device") {
  const Engine engine;
  const CUdeviceptr ptr = allocated(20 * kMiB2 + 5);
  CHECK(engine.alive().handles == 1);
  CHECK(engine.alive().mappings == 1);
  CHECK(engine.alive().reservations == 1);
  CHECK(ptr % kMiB2 == 0);
  CHECK(kvsim_log_count("cuMemMap") == 1);
  CHECK(release(ptr) == CUDA_SUCCESS);
  CHECK(engine.alive().handles == 0);
  CHECK(engine.alive().reservations == 0);
}

TEST_CASE("twenty thousand blocks of 256 bytes and four thousand of 1 MiB take what native takes") {
  struct Row {
    std::size_t bytes;
    std::size_t count;
  };
  for (const Row row : {Row{256, 20000}, Row{1u << 20, 4000}}) {
    std::uint64_t native = 0;
    {
      const Engine engine;
      std::vector<CUdeviceptr> blocks(row.count);
      for (CUdeviceptr& block : blocks) REQUIRE(cuMemAlloc(&block, row.bytes) == CUDA_SUCCESS);
      native = engine.alive().device_bytes;
    }
    const Engine engine;
    std::vector<CUdeviceptr> blocks(row.count);
    for (CUdeviceptr& block : blocks) block = allocated(row.bytes);
    CHECK(engine.alive().device_bytes <= native * 11 / 10 + kMiB2);  // the spare blocks' one page
    for (const CUdeviceptr block : blocks) CHECK(release(block) == CUDA_SUCCESS);
  }
}

TEST_CASE("small blocks are 512-byte aligned, apart, and their room is used again") {
  const Engine engine;
  std::vector<CUdeviceptr> blocks;
  for (std::size_t bytes = 1; bytes < 40000; bytes += 397) blocks.push_back(allocated(bytes));
  std::size_t bytes = 1;
  for (std::size_t i = 0; i < blocks.size(); ++i, bytes += 397) {
    CHECK(blocks[i] % 512 == 0);
    for (std::size_t j = 0; j < blocks.size(); ++j) {
      CHECK((i == j || blocks[j] >= blocks[i] + bytes || blocks[j] < blocks[i]));
    }
  }
  const std::uint64_t mappings = engine.alive().mappings;
  for (const CUdeviceptr block : blocks) REQUIRE(release(block) == CUDA_SUCCESS);
  for (bytes = 1; bytes < 40000; bytes += 397) allocated(bytes);
  CHECK(engine.alive().mappings == mappings);
}

TEST_CASE("free memory as reported falls by what is used and returns, slabs and cache included") {
  const Engine engine;
  std::size_t free_before = 0;
  std::size_t total = 0;
  release(allocated(512));
  REQUIRE(engine::mem_info(&free_before, &total) == CUDA_SUCCESS);
  CHECK(free_before <= total);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(allocated(1 << 20));
  std::size_t now = 0;
  REQUIRE(engine::mem_info(&now, nullptr) == CUDA_SUCCESS);
  CHECK(free_before - now == std::size_t{100} << 20);
  for (const CUdeviceptr block : blocks) release(block);
  REQUIRE(engine::mem_info(&now, nullptr) == CUDA_SUCCESS);
  CHECK(now == free_before);
}

TEST_CASE("a free waits for the owner context's work, from a thread without a context too") {
  for (const std::size_t bytes : {std::size_t{512}, 3 * kMiB2, kLarge}) {
    const Engine engine;
    const CUdeviceptr ptr = allocated(bytes);
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    static std::atomic<bool> done{false};
    done = false;
    REQUIRE(cuLaunchHostFunc(
                stream,
                [](void*) {
                  usleep(50000);
                  done = true;
                },
                nullptr) == CUDA_SUCCESS);
    std::thread([&] {
      CHECK(release(ptr) == CUDA_SUCCESS);
      CHECK(done.load());
    }).join();
    cuStreamDestroy(stream);
  }
}

TEST_CASE("a free in a relaxed capture waits and the capture survives; in the others it is 900") {
  struct Row {
    CUstreamCaptureMode mode;
    CUresult code;
    CUresult end;
  };
  for (const Row row :
       {Row{CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_SUCCESS, CUDA_SUCCESS},
        Row{CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED},
        Row{CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED}}) {
    for (const std::size_t bytes : {std::size_t{512}, 3 * kMiB2}) {
      const Engine engine;
      const CUdeviceptr ptr = allocated(bytes);
      CUstream stream = nullptr;
      CUgraph graph = nullptr;
      REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
      REQUIRE(cuStreamBeginCapture(stream, row.mode) == CUDA_SUCCESS);
      CHECK(release(ptr) == row.code);
      CHECK(cuStreamEndCapture(stream, &graph) == row.end);
      if (row.code != CUDA_SUCCESS) CHECK(release(ptr) == CUDA_SUCCESS);

      CUdeviceptr out = 7;
      REQUIRE(cuStreamBeginCapture(stream, row.mode) == CUDA_SUCCESS);
      CHECK(allocate(&out, bytes) == row.code);
      if (row.code != CUDA_SUCCESS) CHECK(out == 7);
      CHECK(cuStreamEndCapture(stream, &graph) == row.end);
      cuStreamDestroy(stream);
    }
  }
}

TEST_CASE("a stream-ordered free does not wait, frees later, and is not undone by a second free") {
  for (const std::size_t bytes : {std::size_t{512}, 3 * kMiB2, kLarge}) {
    const Engine engine;
    const CUdeviceptr ptr = allocated(bytes);
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    static std::atomic<bool> go{false};
    go = false;
    REQUIRE(cuLaunchHostFunc(
                stream,
                [](void*) {
                  while (!go) usleep(100);
                },
                nullptr) == CUDA_SUCCESS);
    CUresult result = CUDA_ERROR_UNKNOWN;
    REQUIRE(engine::free_async(ptr, stream, &result));
    CHECK(result == CUDA_SUCCESS);
    CHECK(release(ptr) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(engine::free_async(ptr, stream, &result));
    CHECK(result == CUDA_ERROR_INVALID_VALUE);
    const std::uint64_t held = engine.alive().handles + engine.alive().managed_blocks;
    CHECK(held == 1);
    go = true;
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    release(allocated(512));  // any later call looks
    CHECK(registry::size() == 0);
    if (bytes >= kMiB2) CHECK(engine.alive().handles + engine.alive().managed_blocks == 1);
    cuStreamDestroy(stream);
  }
}

TEST_CASE("many stream-ordered frees that wait hide none that has come, where memory is short") {
  const Engine engine;
  HeldStream busy;
  std::vector<CUdeviceptr> waiting(40);
  for (CUdeviceptr& ptr : waiting) ptr = allocated(kMiB2);
  const CUdeviceptr large = allocated(20 * kMiB2);
  const std::uint64_t full = kvsim_device_bytes(0);
  CUresult result = CUDA_ERROR_UNKNOWN;
  for (const CUdeviceptr ptr : waiting) REQUIRE(engine::free_async(ptr, busy, &result));
  REQUIRE(engine::free_async(large, CU_STREAM_LEGACY, &result));
  REQUIRE(cuStreamSynchronize(CU_STREAM_LEGACY) == CUDA_SUCCESS);
  kvsim_set_memory(0, full);
  CUdeviceptr again = 0;
  SECTION("an allocation") {
    again = allocated(20 * kMiB2);
    CHECK(kind_of(again) == Kind::vmm);
  }
  SECTION("a query") {
    std::size_t free_bytes = 0;
    CHECK(engine::mem_info(&free_bytes, nullptr) == CUDA_SUCCESS);
    CHECK(free_bytes >= 20 * kMiB2);
  }
  SECTION("the program's own allocation") {
    CHECK(engine::make_room());
  }
  // Those in front of it still wait.
  CHECK(engine.alive().handles == waiting.size() + (again != 0 ? 1 : 0));
  busy.finish();
  if (again != 0) CHECK(release(again) == CUDA_SUCCESS);
  engine::make_room();
  CHECK(engine.alive().handles == 0);
}

TEST_CASE("no lock is held while in the driver: another thread can ask meanwhile") {
  for (const char* function : {"cuMemCreate", "cuMemUnmap", "cuMemFree_v2", "cuMemAllocManaged"}) {
    const Engine engine;
    const CUdeviceptr other = allocated(3 * kMiB2);
    const CUdeviceptr victim = allocated(3 * kMiB2);
    kvsim_hold(function);
    std::thread blocked([&] {
      cuCtxSetCurrent(engine.context);
      CUdeviceptr out = 0;
      if (std::strcmp(function, "cuMemUnmap") == 0 || std::strcmp(function, "cuMemFree_v2") == 0) {
        CHECK(release(victim) == CUDA_SUCCESS);
      } else {
        const bool managed = std::strcmp(function, "cuMemAllocManaged") == 0;
        CHECK(allocate(&out, managed ? kLarge : 5 * kMiB2) == CUDA_SUCCESS);
      }
    });
    for (int i = 0; i < 5000 && kvsim_waiting(function) == 0; ++i) usleep(1000);
    REQUIRE(kvsim_waiting(function) == 1);
    engine::BlockView block;
    CHECK(engine::find(other, &block) == Place::block);
    std::size_t free_bytes = 0;
    CHECK(engine::mem_info(&free_bytes, nullptr) == CUDA_SUCCESS);
    kvsim_release(function);
    blocked.join();
    CHECK(kvsim_gate_timeouts() == 0);
  }
}

TEST_CASE("a hundred threads allocate and free at once, and nothing is left or mixed up") {
  const Engine engine;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 100; ++t) {
    threads.emplace_back([&, t] {
      cuCtxSetCurrent(engine.context);
      for (int i = 0; i < 40; ++i) {
        const std::size_t bytes =
            i % 8 == 0 ? 3 * kMiB2 : static_cast<std::size_t>(300 * t + i + 1);
        CUdeviceptr ptr = 0;
        if (engine::allocate(&ptr, bytes) != CUDA_SUCCESS) ++wrong;
        engine::BlockView block;
        if (engine::find(ptr + bytes - 1, &block) != Place::block || block.base != ptr) ++wrong;
        CUresult result = CUDA_ERROR_UNKNOWN;
        if (!engine::free(ptr, &result) || result != CUDA_SUCCESS) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(registry::size() == 0);
  engine::trim();
  CHECK(engine.alive().handles == 0);
  CHECK(engine.alive().mappings == 0);
}

TEST_CASE("a block belongs to the context that made it, and goes with it") {
  const Engine engine;
  CUcontext second = nullptr;
  REQUIRE(cuCtxCreate(&second, nullptr, 0, 0) == CUDA_SUCCESS);
  const CUdeviceptr small = allocated(512);
  const CUdeviceptr medium = allocated(3 * kMiB2);
  const CUdeviceptr large = allocated(kLarge);
  engine::BlockView block;
  REQUIRE(engine::find(medium, &block) == Place::block);
  CHECK(block.context == second);
  const engine::Destruction end = engine::before_destroy(second);
  REQUIRE(cuCtxDestroy(second) == CUDA_SUCCESS);
  engine::after_destroy(end, true);
  for (const CUdeviceptr ptr : {small, medium, large}) {
    CHECK(engine::find(ptr, &block) == Place::foreign);
    CHECK(release(ptr) == static_cast<CUresult>(-1));
  }
  CHECK(engine.alive().handles == 0);
  CHECK(engine.alive().reservations == 0);
}

TEST_CASE("a cuMemset on a managed block stays in host memory and keeps the stream's order") {
  const Engine engine;
  const CUdeviceptr ptr = allocated(kLarge);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  static std::atomic<bool> go{false};
  static unsigned char* bytes = nullptr;
  static unsigned char seen_before = 9;
  go = false;
  bytes = reinterpret_cast<unsigned char*>(ptr);
  REQUIRE(cuLaunchHostFunc(
              stream,
              [](void*) {
                while (!go) usleep(100);
                seen_before = bytes[100];
              },
              nullptr) == CUDA_SUCCESS);
  CUresult result = CUDA_ERROR_UNKNOWN;
  REQUIRE(engine::memset({ptr, 0, kLarge, 1, {5, 1}, stream, false}, &result));
  CHECK(result == CUDA_SUCCESS);  // returned although the stream cannot go on
  go = true;
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(seen_before == 0);
  CHECK(bytes[0] == 5);
  CHECK(bytes[kLarge - 1] == 5);
  CHECK(kvsim_resident_on_device(ptr, kLarge) == 0);
  CHECK(telemetry::counters.memset_calls == 1);
  cuStreamDestroy(stream);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("a memset that is captured is the driver's, one past a vmm block's end is refused") {
  const Engine engine;
  const CUdeviceptr large = allocated(kLarge);
  const CUdeviceptr small = allocated(1000);
  CUresult result = CUDA_SUCCESS;
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK_FALSE(engine::memset({large, 0, 100, 1, {0, 1}, stream, false}, &result));
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  cuStreamDestroy(stream);

  CHECK_FALSE(engine::memset({small, 0, 1000, 1, {0, 1}, CU_STREAM_LEGACY, true}, &result));
  REQUIRE(engine::memset({small, 0, 1001, 1, {0, 1}, CU_STREAM_LEGACY, true}, &result));
  CHECK(result == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(engine::memset({small + 1000, 0, 1, 1, {0, 1}, CU_STREAM_LEGACY, true}, &result));
  CHECK(result == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(engine::memset({0x1000, 0, 1, 1, {0, 1}, CU_STREAM_LEGACY, true}, &result));
}

TEST_CASE("a forked child knows nothing of its parent's blocks and counts from zero") {
  const Engine engine;
  const CUdeviceptr ptr = allocated(3 * kMiB2);
  REQUIRE(engine::active());
  const pid_t child = fork();
  if (child == 0) {
    engine::BlockView block;
    const bool clean = engine::find(ptr, &block) == Place::foreign && registry::size() == 0 &&
                       !telemetry::anything_happened();
    _exit(clean ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("a thread without a context gets 201, whatever it asks for") {
  const Engine engine;
  std::thread([] {
    for (const std::size_t bytes : {std::size_t{1}, 3 * kMiB2, kLarge}) {
      CUdeviceptr out = 7;
      CHECK(allocate(&out, bytes) == CUDA_ERROR_INVALID_CONTEXT);
      CHECK(out == 7);
    }
  }).join();
}

TEST_CASE(
    "neither an allocation nor a query waits for a managed block that was freed in stream order") {
  const Engine engine;
  const CUdeviceptr large = allocated(kLarge);
  CUstream free_stream = nullptr;
  REQUIRE(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUresult result = CUDA_ERROR_UNKNOWN;
  REQUIRE(engine::free_async(large, free_stream, &result));
  REQUIRE(result == CUDA_SUCCESS);
  HeldStream busy;
  const CUdeviceptr small = allocated(512);
  std::size_t free_bytes = 0;
  CHECK(engine::mem_info(&free_bytes, nullptr) == CUDA_SUCCESS);
  busy.finish();
  CHECK_FALSE(busy.gave_up());
  CHECK(release(small) == CUDA_SUCCESS);  // this one may wait, and gives the managed block back
  CHECK(engine.alive().managed_blocks == 0);
  cuStreamDestroy(free_stream);
}

TEST_CASE(
    "a block may be freed on a stream of another context, and goes when either context does") {
  const Engine engine;
  CUcontext other = nullptr;
  CUstream stream = nullptr;
  REQUIRE(cuCtxCreate(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(engine.context) == CUDA_SUCCESS);
  const CUdeviceptr ptr = allocated(3 * kMiB2);
  CUresult result = CUDA_ERROR_UNKNOWN;
  REQUIRE(engine::free_async(ptr, stream, &result));
  CHECK(result == CUDA_SUCCESS);
  const engine::Destruction end = engine::before_destroy(other);
  REQUIRE(cuCtxDestroy(other) == CUDA_SUCCESS);
  engine::after_destroy(end, true);
  release(allocated(512));
  CHECK(engine.alive().handles == 1);  // the kept slab: the block itself is gone
}

TEST_CASE("an accepted stream-ordered free succeeds even where no event can be had") {
  for (const char* rule : {"cuEventCreate:1:2", "cuEventRecord:1:999"}) {
    const Engine engine;
    const CUdeviceptr ptr = allocated(3 * kMiB2);
    REQUIRE(kvsim_fail(rule) == 0);
    CUresult result = CUDA_ERROR_UNKNOWN;
    REQUIRE(engine::free_async(ptr, CU_STREAM_LEGACY, &result));
    CHECK(result == CUDA_SUCCESS);
    CHECK(registry::size() == 0);
    CHECK(engine.alive().handles == 0);
  }
}

TEST_CASE(
    "pending stream-ordered frees of a context end with it, and stay where it is not destroyed") {
  for (const bool destroyed : {true, false}) {
    const Engine engine;
    CUcontext second = nullptr;
    REQUIRE(cuCtxCreate(&second, nullptr, 0, 0) == CUDA_SUCCESS);
    const CUdeviceptr ptr = allocated(3 * kMiB2);
    CUresult result = CUDA_ERROR_UNKNOWN;
    REQUIRE(engine::free_async(ptr, CU_STREAM_LEGACY, &result));
    const engine::Destruction end = engine::before_destroy(second);
    if (destroyed) REQUIRE(cuCtxDestroy(second) == CUDA_SUCCESS);
    engine::after_destroy(end, destroyed);
    CHECK(retired::contains(ptr) == !destroyed);
    if (!destroyed) {
      CHECK(engine.alive().handles == 1);
      const engine::Destruction last = engine::before_destroy(second);
      REQUIRE(cuCtxDestroy(second) == CUDA_SUCCESS);
      engine::after_destroy(last, true);
    }
    CHECK(engine.alive().handles == 0);
  }
}

TEST_CASE("a context of twenty thousand blocks ends in one pass") {
  const Engine engine;
  CUcontext second = nullptr;
  REQUIRE(cuCtxCreate(&second, nullptr, 0, 0) == CUDA_SUCCESS);
  for (int i = 0; i < 20000; ++i) allocated(256);
  const engine::Destruction end = engine::before_destroy(second);
  REQUIRE(cuCtxDestroy(second) == CUDA_SUCCESS);
  timespec begun{};
  clock_gettime(CLOCK_MONOTONIC, &begun);
  engine::after_destroy(end, true);
  timespec ended{};
  clock_gettime(CLOCK_MONOTONIC, &ended);
  CHECK(ended.tv_sec - begun.tv_sec < 2);  // walking from the start each time took more than 5 s
  CHECK(registry::size() == 0);
  CHECK(engine.alive().handles == 0);
}

TEST_CASE("what kvshim holds is given back once when the program's own allocation fails") {
  const Engine engine;
  CHECK(engine::make_room() == false);  // nothing is held: no second try for nothing
  release(allocated(512));
  CHECK(engine::make_room());
}
