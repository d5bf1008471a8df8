// Who may access vmm blocks, and copies that the driver refuses, on a simulated driver with three
// devices.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "memory/transfers/copies.h"
#include "sim_fixture.h"

using namespace kvshim;
using copies::Linear;
using copies::Retry;
using copies::Verdict;

namespace {

using Devices = std::vector<int>;

Devices access(CUdeviceptr ptr) {
  int devices[16] = {};
  const int count = kvsim_access_list(ptr, devices, 16);
  REQUIRE(count >= 0);
  return Devices(devices, devices + count);
}

class Machine : public Engine {
 public:
  Machine() {
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) kvsim_set_p2p(from, to, 1);
    }
    for (int device = 0; device < 3; ++device) {
      REQUIRE(cuDevicePrimaryCtxRetain(&contexts[device], device) == CUDA_SUCCESS);
    }
    kvsim_log_clear();
  }
  ~Machine() {
    cuDevicePrimaryCtxReset(1);
    cuDevicePrimaryCtxReset(2);
  }
  void on(int device) { REQUIRE(cuCtxSetCurrent(contexts[device]) == CUDA_SUCCESS); }
  CUdeviceptr allocated(int device, std::size_t bytes) {
    on(device);
    CUdeviceptr out = 0;
    REQUIRE(allocate(&out, bytes) == CUDA_SUCCESS);
    return out;
  }
  // As the hook does it.
  bool enable(int device, int owner) {
    on(device);
    REQUIRE(cuCtxEnablePeerAccess(contexts[owner], 0) == CUDA_SUCCESS);
    return peers::enable(device, owner);
  }
  CUcontext contexts[3] = {};
};

// As the hook does it.
CUresult copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
              CUstream stream = CU_STREAM_LEGACY) {
  const Linear request{to, from, bytes, stream, true};
  const auto real = [&] {
    const CUresult code = cuMemcpyAsync(to, from, bytes, stream);
    return code == CUDA_SUCCESS ? cuStreamSynchronize(stream) : code;
  };
  const Verdict verdict = copies::judge(request);
  if (verdict == Verdict::refused) return CUDA_ERROR_INVALID_VALUE;
  CUresult code = real();
  if (verdict == Verdict::forward || code != CUDA_ERROR_INVALID_VALUE) return code;
  while (code == CUDA_ERROR_INVALID_VALUE && copies::retry(request, &code) == Retry::again) {
    code = real();
  }
  return code == CUDA_SUCCESS ? cuStreamSynchronize(stream) : code;
}

bool all(const std::vector<unsigned char>& bytes, unsigned char value) {
  return std::count(bytes.begin(), bytes.end(), value) == static_cast<long>(bytes.size());
}

bool holds(CUdeviceptr ptr, unsigned char value, std::size_t count) {
  std::vector<unsigned char> bytes(count);
  REQUIRE(kvsim_peek(ptr, bytes.data(), count) == 0);
  return all(bytes, value);
}

void put(CUdeviceptr ptr, unsigned char value, std::size_t count) {
  const std::vector<unsigned char> bytes(count, value);
  REQUIRE(kvsim_poke(ptr, bytes.data(), count) == 0);
}

}  // namespace

TEST_CASE("a process that uses one device makes no call for peers") {
  Machine machine;
  CUdeviceptr block = machine.allocated(0, 5 * kMiB2);
  CUdeviceptr small = machine.allocated(0, 512);
  CHECK(access(block) == Devices{0});
  CHECK(access(small) == Devices{0});
  CHECK(kvsim_log_count("cuMemSetAccess") == 2);
  CHECK(kvsim_log_count("cuDeviceGetCount") == 0);
  CHECK(kvsim_log_count("cuDeviceCanAccessPeer") == 0);
}

TEST_CASE("a device that comes into use gets access to live blocks and slabs, and gives it") {
  Machine machine;
  const CUdeviceptr block = machine.allocated(0, 5 * kMiB2);
  const CUdeviceptr small = machine.allocated(0, 512);
  const CUdeviceptr other = machine.allocated(1, 3 * kMiB2);
  const CUdeviceptr other_small = machine.allocated(1, 512);
  CHECK(access(block) == Devices{0, 1});
  CHECK(access(small) == Devices{0, 1});
  CHECK(access(other) == Devices{0, 1});
  CHECK(access(other_small) == Devices{0, 1});
  const CUdeviceptr third = machine.allocated(2, 512);
  for (const CUdeviceptr ptr : {block, small, other, other_small, third}) {
    CHECK(access(ptr) == Devices{0, 1, 2});
  }
  CHECK(access(machine.allocated(0, kMiB2)) == Devices{0, 1, 2});
}

TEST_CASE("a cached slab has access too, before and after it is used again") {
  Machine machine;
  const CUdeviceptr first = machine.allocated(0, 4096);
  REQUIRE(release(first) == CUDA_SUCCESS);
  machine.allocated(1, 4096);
  const auto created = kvsim_log_count("cuMemCreate");
  const CUdeviceptr again = machine.allocated(0, 4096);
  CHECK(kvsim_log_count("cuMemCreate") == created);
  CHECK(access(again) == Devices{0, 1});
}

TEST_CASE("more blocks than one batch of the walk, and none of them twice") {
  Machine machine;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 200; ++i) blocks.push_back(machine.allocated(0, i % 3 == 0 ? kMiB2 : 300000));
  kvsim_log_clear();
  machine.enable(1, 0);
  CHECK(kvsim_log_count("cuMemSetAccess") == machine.alive().mappings);
  for (const CUdeviceptr block : blocks) CHECK(access(block) == Devices{0, 1});
}

TEST_CASE("enabling peer access opens live and future blocks, disabling leaves them open") {
  Machine machine;
  const CUdeviceptr before = machine.allocated(0, 3 * kMiB2);
  machine.enable(1, 0);
  const CUdeviceptr after = machine.allocated(0, 3 * kMiB2);
  REQUIRE(cuCtxSetCurrent(machine.contexts[1]) == CUDA_SUCCESS);
  REQUIRE(cuCtxDisablePeerAccess(machine.contexts[0]) == CUDA_SUCCESS);
  CHECK(access(before) == Devices{0, 1});
  CHECK(access(after) == Devices{0, 1});
  // A second time there is nothing to do.
  kvsim_log_clear();
  machine.enable(1, 0);
  CHECK(kvsim_log_count("cuMemSetAccess") == 0);
}

TEST_CASE("peer access that the driver refuses for vmm memory is told when it is enabled") {
  for (const bool with_block : {true, false}) {
    for (const int code : {1, 217, 999}) {
      CAPTURE(with_block, code);
      Machine machine;
      kvsim_set_peer_access(1, code);
      const CUdeviceptr block = with_block ? machine.allocated(0, 3 * kMiB2) : 0;
      const kvsim_counts before = machine.alive();
      CHECK_FALSE(machine.enable(1, 0));
      REQUIRE(cuCtxDisablePeerAccess(machine.contexts[0]) == CUDA_SUCCESS);
      kvsim_log_clear();
      CHECK_FALSE(machine.enable(1, 0));  // remembered
      CHECK(kvsim_log_count("cuMemSetAccess") == 0);
      CHECK(machine.alive().handles == before.handles);
      CHECK(machine.alive().mappings == before.mappings);
      CHECK(machine.alive().reservations == before.reservations);
      if (with_block) CHECK(release(block) == CUDA_SUCCESS);
    }
  }
}

TEST_CASE("whether peer access works is tried once, on memory that is gone at once") {
  Machine machine;
  CHECK(machine.enable(1, 0));
  const auto tried = kvsim_log_count("cuMemCreate");
  CHECK(tried != 0);
  CHECK(machine.alive().handles == 0);
  CHECK(machine.alive().mappings == 0);
  CHECK(machine.alive().reservations == 0);
  REQUIRE(cuCtxDisablePeerAccess(machine.contexts[0]) == CUDA_SUCCESS);
  CHECK(machine.enable(1, 0));
  CHECK(kvsim_log_count("cuMemCreate") == tried);
  // A block has shown it already.
  machine.allocated(0, 3 * kMiB2);
  machine.allocated(2, 3 * kMiB2);
  const auto created = kvsim_log_count("cuMemCreate");
  CHECK(machine.enable(2, 0));
  CHECK(kvsim_log_count("cuMemCreate") == created);
}

TEST_CASE("a trial that fails for another reason than a refusal is no refusal") {
  for (const char* rule : {"cuMemCreate:1:2", "cuMemAddressReserve:1:2", "cuMemMap:1:999",
                           "cuMemSetAccess:1:2", "cuMemSetAccess@device=1:1:2"}) {
    INFO(rule);
    Machine machine;
    REQUIRE(kvsim_fail(rule) == 0);
    CHECK(machine.enable(1, 0));
    CHECK(machine.alive().handles == 0);
    CHECK(machine.alive().mappings == 0);
    CHECK(machine.alive().reservations == 0);
    CHECK(access(machine.allocated(0, 3 * kMiB2)) == Devices{0, 1});
  }
}

TEST_CASE("devices without P2P are not asked to share") {
  Machine machine;
  for (int other = 1; other < 3; ++other) {
    kvsim_set_p2p(0, other, 0);
    kvsim_set_p2p(other, 0, 0);
  }
  const CUdeviceptr zero = machine.allocated(0, 3 * kMiB2);
  const CUdeviceptr one = machine.allocated(1, 3 * kMiB2);
  const CUdeviceptr two = machine.allocated(2, 3 * kMiB2);
  CHECK(access(zero) == Devices{0});
  CHECK(access(one) == Devices{1, 2});
  CHECK(access(two) == Devices{1, 2});
}

TEST_CASE("P2P in one direction gives access in that direction") {
  Machine machine;
  kvsim_set_p2p(0, 1, 0);
  const CUdeviceptr zero = machine.allocated(0, 3 * kMiB2);
  const CUdeviceptr one = machine.allocated(1, 3 * kMiB2);
  CHECK(access(zero) == Devices{0, 1});
  CHECK(access(one) == Devices{1});
}

TEST_CASE("a peer that the driver refuses costs the allocation nothing and is asked once") {
  for (const int code : {1, 217, 999}) {
    Machine machine;
    kvsim_set_peer_access(1, code);
    const CUdeviceptr zero = machine.allocated(0, 3 * kMiB2);
    const CUdeviceptr one = machine.allocated(1, 3 * kMiB2);
    CHECK(access(zero) == Devices{0});
    CHECK(access(one) == Devices{1});
    kvsim_log_clear();
    const CUdeviceptr more = machine.allocated(0, 3 * kMiB2);
    CHECK(kvsim_log_count("cuMemSetAccess") == 1);
    CHECK(release(more) == CUDA_SUCCESS);
    CHECK(release(zero) == CUDA_SUCCESS);
    CHECK(release(one) == CUDA_SUCCESS);
  }
}

TEST_CASE("one refused peer does not keep the others out") {
  Machine machine;
  REQUIRE(kvsim_fail("cuMemSetAccess@device=1:1:217:*") == 0);
  kvsim_fail_none();
  machine.allocated(1, 3 * kMiB2);
  machine.allocated(2, 3 * kMiB2);
  REQUIRE(kvsim_fail("cuMemSetAccess@device=1:1:217:*") == 0);
  const CUdeviceptr zero = machine.allocated(0, 3 * kMiB2);
  CHECK(access(zero) == Devices{0, 2});
}

TEST_CASE("out of memory for a peer's page tables is not remembered") {
  Machine machine;
  machine.allocated(1, 3 * kMiB2);
  machine.allocated(0, 3 * kMiB2);
  REQUIRE(kvsim_fail("cuMemSetAccess@device=1:1:2:2") == 0);
  const CUdeviceptr lacking = machine.allocated(0, 3 * kMiB2);
  CHECK(access(lacking) == Devices{0});
  CHECK(access(machine.allocated(0, 3 * kMiB2)) == Devices{0, 1});
  put(lacking, 9, 64);
  const CUdeviceptr there = machine.allocated(1, 3 * kMiB2);
  CHECK(copy(there, lacking, 64) == CUDA_SUCCESS);
  CHECK(holds(there, 9, 64));
}

TEST_CASE("a copy between devices works with and without P2P, from either side or a third one") {
  for (const int p2p : {1, 0}) {
    for (const int current : {0, 1, 2}) {
      Machine machine;
      for (int from = 0; from < 3; ++from) {
        for (int to = 0; to < 3; ++to) kvsim_set_p2p(from, to, p2p);
      }
      for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB2}) {
        CAPTURE(p2p, current, bytes);
        const CUdeviceptr zero = machine.allocated(0, bytes);
        const CUdeviceptr one = machine.allocated(1, bytes);
        machine.on(current);
        put(zero, 4, bytes);
        CHECK(copy(one, zero, bytes) == CUDA_SUCCESS);
        CHECK(holds(one, 4, bytes));
        put(one, 5, bytes);
        CHECK(copy(zero, one, bytes) == CUDA_SUCCESS);
        CHECK(holds(zero, 5, bytes));
        // Within the other device, and to and from the host.
        const CUdeviceptr more = machine.allocated(0, bytes);
        machine.on(current);
        CHECK(copy(more, zero, bytes) == CUDA_SUCCESS);
        CHECK(holds(more, 5, bytes));
        std::vector<unsigned char> host(bytes, 6);
        const auto address = reinterpret_cast<CUdeviceptr>(host.data());
        CHECK(copy(zero, address, bytes) == CUDA_SUCCESS);
        host.assign(bytes, 0);
        CHECK(copy(address, zero, bytes) == CUDA_SUCCESS);
        CHECK(all(host, 6));
      }
    }
  }
}

TEST_CASE("a copy by a device that has allocated nothing gains access and is tried again") {
  Machine machine;
  const CUdeviceptr zero = machine.allocated(0, 3 * kMiB2);
  put(zero, 7, 64);
  machine.on(1);
  CUdeviceptr native = 0;
  REQUIRE(cuMemAlloc(&native, 64) == CUDA_SUCCESS);
  CHECK(copy(native, zero, 64) == CUDA_SUCCESS);
  CHECK(kvsim_log_count("cuMemcpyPeerAsync") == 0);
  CHECK(access(zero) == Devices{0, 1});
}

TEST_CASE("a copy by a new device that is refused access is carried out all the same") {
  Machine machine;
  kvsim_set_peer_access(1, 217);
  const CUdeviceptr zero = machine.allocated(0, 3 * kMiB2);
  put(zero, 7, 64);
  machine.on(1);
  CUdeviceptr native = 0;
  REQUIRE(cuMemAlloc(&native, 64) == CUDA_SUCCESS);
  CHECK(copy(native, zero, 64) == CUDA_SUCCESS);
  CHECK(holds(native, 7, 64));
  CHECK(kvsim_log_count("cuMemcpyPeerAsync") == 1);
}

TEST_CASE("a genuine mistake stays one, with nothing done") {
  Machine machine;
  const CUdeviceptr zero = machine.allocated(0, 3 * kMiB2);
  const CUdeviceptr nowhere = 0x3dead0000000;
  CHECK(copy(zero, 16, 64) == CUDA_ERROR_INVALID_VALUE);
  machine.on(1);
  kvsim_set_p2p(1, 0, 0);
  CHECK(copies::judge({zero, 16, 64, CU_STREAM_LEGACY, true}) == Verdict::ours);
  CHECK(copy(zero, 16, 64) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copies::judge({nowhere, nowhere, 64, CU_STREAM_LEGACY, true}) == Verdict::forward);
}

TEST_CASE("a copy ends where its blocks end, also in a slab, and holes are nobody's") {
  Machine machine;
  const CUdeviceptr first = machine.allocated(0, 1000);
  const CUdeviceptr second = machine.allocated(0, 1000);
  const CUdeviceptr large = machine.allocated(0, 3 * kMiB2 + 100);
  REQUIRE(second == first + 1024);
  const auto verdict = [](CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return copies::judge({to, from, bytes, CU_STREAM_LEGACY, true});
  };
  unsigned char host[64] = {};
  const auto address = reinterpret_cast<CUdeviceptr>(host);
  CHECK(verdict(first, large, 1000) == Verdict::ours);
  CHECK(verdict(first, large, 1001) == Verdict::refused);
  CHECK(verdict(first + 937, address, 63) == Verdict::ours);
  CHECK(verdict(first + 937, address, 64) == Verdict::refused);
  CHECK(verdict(address, first + 937, 64) == Verdict::refused);
  CHECK(verdict(first + 1000, address, 1) == Verdict::refused);
  CHECK(verdict(first, address, 0) == Verdict::forward);
  CHECK(verdict(large + 3 * kMiB2, address, 100) == Verdict::ours);
  CHECK(verdict(large + 3 * kMiB2, address, 101) == Verdict::refused);
  CHECK(verdict(large + 3 * kMiB2 + 100, address, 1) == Verdict::refused);
  CHECK(verdict(first, address, ~std::size_t{0}) == Verdict::refused);
  REQUIRE(release(first) == CUDA_SUCCESS);
  CHECK(verdict(first, address, 1) == Verdict::refused);
  CHECK(verdict(second, address, 1) == Verdict::ours);
}

TEST_CASE("while the stream captures the driver decides about the end of a block") {
  Machine machine;
  const CUdeviceptr block = machine.allocated(0, 1000);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(copies::judge({block, block, 4000, stream, false}) == Verdict::forward);
  CHECK(copies::judge({block, block, 4000, CU_STREAM_LEGACY, false}) == Verdict::refused);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  if (graph != nullptr) cuGraphDestroy(graph);
  cuStreamDestroy(stream);
}

TEST_CASE("a rectangle ends where its blocks end") {
  Machine machine;
  const CUdeviceptr block = machine.allocated(0, 4 * 512 - 100);
  std::vector<unsigned char> host(4 * 412);
  CUDA_MEMCPY2D what{};
  what.srcMemoryType = CU_MEMORYTYPE_HOST;
  what.srcHost = host.data();
  what.srcPitch = 412;
  what.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  what.dstDevice = block;
  what.dstPitch = 512;
  what.WidthInBytes = 412;
  what.Height = 4;
  const auto verdict = [&] {
    return copies::judge(copies::Rectangle{&what, CU_STREAM_LEGACY, true});
  };
  CHECK(verdict() == Verdict::ours);
  what.dstXInBytes = 1;
  CHECK(verdict() == Verdict::refused);
  what.dstXInBytes = 0;
  what.dstY = 1;
  CHECK(verdict() == Verdict::refused);
  what.Height = 3;
  CHECK(verdict() == Verdict::ours);
  what.Height = 0;
  CHECK(verdict() == Verdict::forward);
}

namespace {

bool comes(CUstream stream) {
  for (int i = 0; i < 2000 && cuStreamQuery(stream) == CUDA_ERROR_NOT_READY; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return cuStreamQuery(stream) == CUDA_SUCCESS;
}

// Created and not destroyed since the test began, those included that were refused.
std::uint64_t streams() {
  return kvsim_log_count("cuStreamCreate") - kvsim_log_count("cuStreamDestroy_v2");
}

void wait_for_flag(void* flag) {
  while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
}

// Without P2P: host memory and a block of device 0, in a stream of device 1.
struct Detour : Machine {
  Detour() {
    kvsim_set_p2p(1, 0, 0);
    block = allocated(0, 3 * kMiB2);
    on(1);
    REQUIRE(cuMemAllocHost(&pinned, 4096) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(peers::use(1));
  }
  ~Detour() {
    cuStreamDestroy(stream);
    cuMemFreeHost(pinned);
  }
  CUresult read(CUstream in) {
    CUresult code = CUDA_ERROR_UNKNOWN;
    const Linear request{reinterpret_cast<CUdeviceptr>(pinned), block, 64, in, false};
    CHECK(copies::retry(request, &code) == Retry::done);
    return code;
  }
  CUdeviceptr block = 0;
  void* pinned = nullptr;
  CUstream stream = nullptr;
};

}  // namespace

TEST_CASE("a copy made for another device is in no stream of the program's") {
  Detour machine;
  machine.on(0);
  REQUIRE(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
          CUDA_SUCCESS);
  machine.on(1);
  CHECK(machine.read(machine.stream) == CUDA_SUCCESS);
  machine.on(0);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph) == CUDA_SUCCESS);
  std::size_t nodes = 7;
  CHECK(cuGraphGetNodes(graph, nullptr, &nodes) == CUDA_SUCCESS);
  CHECK(nodes == 0);
  cuGraphDestroy(graph);
}

TEST_CASE("copies made for two streams do not wait for each other, and leave one stream behind") {
  Detour machine;
  const auto before = streams();
  CUstream other = nullptr;
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  std::atomic<bool> flag{false};
  REQUIRE(cuLaunchHostFunc(machine.stream, wait_for_flag, &flag) == CUDA_SUCCESS);
  CHECK(machine.read(machine.stream) == CUDA_SUCCESS);
  CHECK(machine.read(other) == CUDA_SUCCESS);
  CHECK(comes(other));
  flag = true;
  CHECK(comes(machine.stream));
  for (int i = 0; i < 50; ++i) CHECK(machine.read(i % 2 == 0 ? other : machine.stream) == 0);
  CHECK(comes(machine.stream));
  cuStreamDestroy(other);
  CHECK(streams() == before + 1);
  // It goes with its context, and another one comes with the next.
  const auto destruction = engine::before_destroy(machine.contexts[0]);
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  engine::after_destroy(destruction, true);
  REQUIRE(cuDevicePrimaryCtxRetain(&machine.contexts[0], 0) == CUDA_SUCCESS);
  machine.block = machine.allocated(0, kMiB2);
  machine.on(1);
  CHECK(machine.read(machine.stream) == CUDA_SUCCESS);
}

TEST_CASE("a copy made for another device that fails on its way leaves nothing behind") {
  for (const char* rule : {"cuStreamCreate:1:2", "cuEventCreate:1:2", "cuEventCreate:2:2",
                           "cuStreamWaitEvent:1:2", "cuEventRecord:2:2"}) {
    CAPTURE(rule);
    Detour machine;
    const auto before = streams() + (std::string(rule) == "cuStreamCreate:1:2" ? 1 : 0);
    REQUIRE(kvsim_fail(rule) == 0);
    CHECK(machine.read(machine.stream) == CUDA_ERROR_OUT_OF_MEMORY);
    kvsim_fail_none();
    CHECK(streams() <= before + 1);
    CHECK(kvsim_log_count("cuEventDestroy_v2") <= 2);
    CHECK(machine.read(machine.stream) == CUDA_SUCCESS);
    CHECK(streams() == before + 1);
    CHECK(comes(machine.stream));
  }
}

TEST_CASE("a copy made for another device refuses what its named form refuses") {
  Detour machine;
  std::vector<unsigned char> host(64, 3);
  const auto address = reinterpret_cast<CUdeviceptr>(host.data());
  const auto made = [&](CUdeviceptr to, CUdeviceptr from, copies::Form form) {
    CUresult code = CUDA_ERROR_UNKNOWN;
    CHECK(copies::retry(Linear{to, from, 64, machine.stream, true, form}, &code) == Retry::done);
    return code;
  };
  const CUdeviceptr block = machine.block;
  CHECK(made(block, address, copies::Form::on_device) == CUDA_ERROR_INVALID_VALUE);
  CHECK(made(address, block, copies::Form::on_device) == CUDA_ERROR_INVALID_VALUE);
  CHECK(made(address, block, copies::Form::to_device) == CUDA_ERROR_INVALID_VALUE);
  CHECK(made(block, address, copies::Form::to_host) == CUDA_ERROR_INVALID_VALUE);
  CHECK(made(block, address, copies::Form::to_device) == CUDA_SUCCESS);
  CHECK(made(address, block, copies::Form::to_host) == CUDA_SUCCESS);
  CHECK(made(block, address, copies::Form::any) == CUDA_SUCCESS);
}

TEST_CASE("a side called host memory that is a block has its end, and is reached like one") {
  Detour machine;
  const CUdeviceptr small = machine.allocated(1, 1000);
  put(machine.block, 5, 1000);
  CUDA_MEMCPY2D what{};
  what.srcMemoryType = what.dstMemoryType = CU_MEMORYTYPE_HOST;
  what.srcHost = reinterpret_cast<void*>(machine.block);
  what.dstHost = reinterpret_cast<void*>(small);
  what.srcPitch = what.dstPitch = what.WidthInBytes = 100;
  what.Height = 10;
  const copies::Rectangle request{&what, machine.stream, true};
  CHECK(copies::judge(request) == Verdict::ours);
  CUresult code = CUDA_ERROR_UNKNOWN;
  CHECK(copies::retry(request, &code) == Retry::done);
  CHECK(code == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(machine.stream) == CUDA_SUCCESS);
  CHECK(holds(small, 5, 1000));
  what.Height = 11;
  CHECK(copies::judge(request) == Verdict::refused);
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = machine.pinned;
  box.dstHost = what.dstHost;
  box.srcPitch = box.dstPitch = box.WidthInBytes = 100;
  box.srcHeight = box.dstHeight = box.Height = 5;
  box.Depth = 2;
  CHECK(copies::judge(copies::Box{&box, machine.stream, true}) == Verdict::ours);
  box.Depth = 3;
  CHECK(copies::judge(copies::Box{&box, machine.stream, true}) == Verdict::refused);
}

TEST_CASE("a block freed in stream order takes no copy and no memset any more") {
  Machine machine;
  const CUdeviceptr live = machine.allocated(0, 3 * kMiB2);
  const CUdeviceptr block = machine.allocated(0, 3 * kMiB2);
  CUresult code = CUDA_ERROR_UNKNOWN;
  REQUIRE(engine::free_async(block, CU_STREAM_LEGACY, &code));
  REQUIRE(code == CUDA_SUCCESS);
  CHECK(copies::judge({live, block + 5, 64, CU_STREAM_LEGACY, true}) == Verdict::refused);
  CHECK(copies::judge({block, live, 64, CU_STREAM_LEGACY, true}) == Verdict::refused);
  CHECK(engine::memset({block + 8, 0, 4, 1, {0, 1}, CU_STREAM_LEGACY, true}, &code));
  CHECK(code == CUDA_ERROR_INVALID_VALUE);
  // Released, what lies there is nobody's business.
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(retired::reap(nullptr) != 0);
  CHECK(copies::judge({block, block, 64, CU_STREAM_LEGACY, true}) == Verdict::forward);
  CHECK_FALSE(engine::memset({block, 0, 4, 1, {0, 1}, CU_STREAM_LEGACY, true}, &code));
}

TEST_CASE("a forked child begins without peers") {
  Machine machine;
  machine.allocated(0, 512);
  machine.allocated(1, 512);
  peers::forget();
  CHECK(peers::use(0) == false);
  CHECK(peers::use(1) == true);
}

TEST_CASE("a second thread goes on only when it has access to all that lives") {
  // The first one is still giving access; the second one asks for the same.
  enum { by_use, by_enable };
  for (const int first : {by_use, by_enable}) {
    for (const int second : {by_use, by_enable}) {
      CAPTURE(first, second);
      Machine machine;
      std::vector<CUdeviceptr> blocks;
      for (int i = 0; i < 3; ++i) blocks.push_back(machine.allocated(0, 3 * kMiB2));
      const auto ask = [](int how) {
        how == by_use ? void(peers::use(1)) : void(peers::enable(1, 0));
      };
      kvsim_hold("cuMemSetAccess");
      std::thread giving([&] { ask(first); });
      while (kvsim_waiting("cuMemSetAccess") == 0) usleep(100);
      std::atomic<bool> done{false};
      int shared = 0;
      std::thread asking([&] {
        ask(second);
        int devices[16] = {};
        for (const CUdeviceptr block : blocks) {
          shared += kvsim_access_list(block, devices, 16) == 2;
        }
        done = true;
      });
      while (kvsim_waiting("cuMemSetAccess") < 2 && !done) usleep(100);
      kvsim_release("cuMemSetAccess");
      asking.join();
      giving.join();
      CHECK(shared == 3);
      CHECK(kvsim_gate_timeouts() == 0);
    }
  }
}
