// The host kind: built of handles of the host's NUMA node, unwound completely, answered for as the
// vmm kind is. Runs with KVSHIM_LARGE=host; the pieces are 16 MiB, so that a block has several.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "memory/kinds/progress.h"
#include "memory/transfers/copies.h"
#include "sharing/ipc.h"
#include "sim_fixture.h"
#include "support/child.h"

using namespace kvshim;
using driver::HandleStep;

namespace {

constexpr CUdeviceptr kUntouched = 0xabcdef;
constexpr std::size_t kPiece = std::size_t{16} << 20;
constexpr std::size_t kLarge = std::size_t{64} << 20;  // the threshold: four pieces
constexpr std::size_t kOdd = kLarge + kPiece + 4097;   // six pieces, the last one of 2 MiB

class HostEngine : public Engine {
 public:
  HostEngine() { host::handle_bytes = kPiece; }
};

CUdeviceptr allocated(std::size_t bytes) {
  CUdeviceptr out = 0;
  REQUIRE(allocate(&out, bytes) == CUDA_SUCCESS);
  return out;
}

engine::BlockView view(CUdeviceptr ptr) {
  engine::BlockView block;
  REQUIRE(engine::find(ptr, &block) == Place::block);
  return block;
}

Kind kind_of(CUdeviceptr ptr) {
  return view(ptr).kind;
}

Place place_at(CUdeviceptr ptr) {
  engine::BlockView block;
  return engine::find(ptr, &block);
}

unsigned long long access_of(CUdeviceptr ptr, CUmemLocationType type, int id) {
  CUmemLocation location{};
  location.type = type;
  location.id = id;
  unsigned long long flags = 0;
  REQUIRE(cuMemGetAccess(&flags, &location, ptr) == CUDA_SUCCESS);
  return flags;
}

// Lines of the call log that hold `text`.
unsigned lines_with(const char* text) {
  unsigned count = 0;
  char line[512];
  for (std::size_t i = 0; i < kvsim_log_size(); ++i) {
    if (kvsim_log_line(i, line, sizeof(line)) >= 0 && std::strstr(line, text) != nullptr) ++count;
  }
  return count;
}

void nothing_left(const Engine& engine, const kvsim_counts& was) {
  const kvsim_counts now = engine.alive();
  CHECK(now.handles == was.handles);
  CHECK(now.mappings == was.mappings);
  CHECK(now.reservations == was.reservations);
  CHECK(now.native_blocks == was.native_blocks);
  CHECK(now.managed_blocks == was.managed_blocks);
  CHECK(kvsim_host_bytes() == 0);
}

}  // namespace

TEST_CASE("a host block is one reservation of several handles on the nearest node, and zero") {
  const HostEngine engine;
  const CUdeviceptr ptr = allocated(kOdd);
  CHECK(kind_of(ptr) == Kind::host);
  CHECK(engine.alive().reservations == 1);
  CHECK(engine.alive().mappings == 6);
  CHECK(engine.alive().handles == 0);  // the mappings keep the memory
  CHECK(kvsim_host_bytes() == kLarge + kPiece + kMiB2);
  CHECK(lines_with("location=3:0 handles=1") == 7);  // the granularity, six handles
  for (const std::size_t at : {std::size_t{0}, kPiece, kOdd - 1}) {
    CHECK(access_of(ptr + at, CU_MEM_LOCATION_TYPE_DEVICE, 0) == 3);
    CHECK(access_of(ptr + at, CU_MEM_LOCATION_TYPE_HOST_NUMA, 0) == 3);
    unsigned char byte = 1;
    REQUIRE(kvsim_peek(ptr + at, &byte, 1) == 0);
    CHECK(byte == 0);
  }
  CHECK(telemetry::counters.zero_bytes == kLarge + kPiece + kMiB2);
  CHECK(release(ptr) == CUDA_SUCCESS);
  nothing_left(engine, engine.alive());
  CHECK(engine.alive().reservations == 0);
}

TEST_CASE("memory that held other bytes comes back as zeroes, by the CPU or by the device") {
  for (const bool by_cpu : {true, false}) {
    const HostEngine engine;
    // A driver that does not zero what it hands out: filled before kvshim has the address.
    if (!by_cpu) REQUIRE(kvsim_fail("cuMemSetAccess@location=3:1:801:*") == 0);
    kvsim_fill_new_memory(0x5a);
    const CUdeviceptr ptr = allocated(kOdd);
    kvsim_fill_new_memory(0);
    std::vector<unsigned char> bytes(kOdd);
    REQUIRE(kvsim_peek(ptr, bytes.data(), kOdd) == 0);
    unsigned char any = 0;
    for (const unsigned char byte : bytes) any = static_cast<unsigned char>(any | byte);
    CHECK(any == 0);
    CHECK((kvsim_log_count("cuMemsetD8Async") != 0) == !by_cpu);
    CHECK(kvsim_work_in_flight() == 0);  // done, not only begun
    CHECK(release(ptr) == CUDA_SUCCESS);
  }
}

TEST_CASE("a CPU that may not touch host memory is asked once") {
  const HostEngine engine;
  REQUIRE(kvsim_fail("cuMemSetAccess@location=3:1:801:*") == 0);
  const CUdeviceptr first = allocated(kLarge);
  const CUdeviceptr second = allocated(kLarge);
  CHECK(kind_of(second) == Kind::host);
  CHECK(lines_with("location=3:0 access=3") == 1);
  CHECK(release(first) == CUDA_SUCCESS);
  CHECK(release(second) == CUDA_SUCCESS);
}

TEST_CASE("every step of a host block that fails is undone, whichever piece it was") {
  struct Step {
    const char* function;
    int nth;
  };
  for (const Step step :
       {Step{"cuMemAddressReserve", 1}, Step{"cuMemCreate@location=3", 1},
        Step{"cuMemCreate@location=3", 4}, Step{"cuMemCreate@location=3", 6}, Step{"cuMemMap", 1},
        Step{"cuMemMap", 3}, Step{"cuMemSetAccess@location=1", 1},
        Step{"cuMemSetAccess@location=1", 6}}) {
    for (const int code : {2, 600, 719}) {
      const HostEngine engine;
      const CUdeviceptr warm = allocated(5 * kMiB2);  // the device is known, spares are there
      const kvsim_counts was = engine.alive();
      const std::string rule =
          std::string(step.function) + ":" + std::to_string(step.nth) + ":" + std::to_string(code);
      REQUIRE(kvsim_fail(rule.c_str()) == 0);
      CUdeviceptr out = kUntouched;
      INFO(rule);
      CHECK(allocate(&out, kOdd) == code);
      CHECK(out == kUntouched);
      nothing_left(engine, was);
      CHECK(registry::size() == 1);
      CHECK(allocate(&out, kOdd) == CUDA_SUCCESS);
      CHECK(kind_of(out) == Kind::host);
      CHECK(release(out) == CUDA_SUCCESS);
      CHECK(release(warm) == CUDA_SUCCESS);
    }
  }
}

TEST_CASE("the device's zeroes fail: undone, with the driver's code") {
  for (const char* function : {"cuStreamCreate", "cuMemsetD8Async", "cuStreamSynchronize"}) {
    const HostEngine engine;
    const CUdeviceptr warm = allocated(5 * kMiB2);
    const kvsim_counts was = engine.alive();
    REQUIRE(kvsim_fail("cuMemSetAccess@location=3:1:801:*") == 0);
    REQUIRE(kvsim_fail((std::string(function) + ":1:719").c_str()) == 0);
    CUdeviceptr out = kUntouched;
    INFO(function);
    CHECK(allocate(&out, kOdd) == 719);
    CHECK(out == kUntouched);
    nothing_left(engine, was);
    CHECK(release(warm) == CUDA_SUCCESS);
  }
}

TEST_CASE("who waits for a large block is told how far it is") {
  const auto child = test::in_child({}, [] {
    const_cast<Options&>(options()).log = LogLevel::info;
    const Engine engine;
    host::handle_bytes = 16 * kMiB;
    Progress::every_us = 0;
    CUdeviceptr out = 0;
    return allocate(&out, 64 * kMiB) == CUDA_SUCCESS && release(out) == CUDA_SUCCESS ? 0 : 1;
  });
  CHECK(child.status == 0);
  const std::string lines = child.lines();
  CHECK(lines.find("building a host block: 48 MiB of 64 MiB after 0 s\n") != std::string::npos);
  CHECK(lines.find(": 64 MiB of 64 MiB after") == std::string::npos);
}

TEST_CASE("a host that runs full while a block is built: 2, and everything is given back") {
  const HostEngine engine;
  REQUIRE(setenv("KVSIM_HOST_MEMORY", "50M", 1) == 0);
  kvsim_reset();
  unsetenv("KVSIM_HOST_MEMORY");
  CUdeviceptr out = kUntouched;
  CHECK(allocate(&out, kLarge) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(out == kUntouched);
  CHECK(kvsim_host_bytes() == 0);
  CHECK(engine.alive().reservations == 0);
  CHECK(telemetry::counters.out_of_memory == 1);
  CHECK(driver::host_memory(*driver::device(0)).step() == HandleStep::posix);  // no reason to step
  kvsim_reset();
  CHECK(allocate(&out, kLarge) == CUDA_SUCCESS);
  CHECK(release(out) == CUDA_SUCCESS);
}

TEST_CASE("more than any host has is refused before the driver is asked") {
  const HostEngine engine;
  for (const std::size_t bytes : {std::size_t{1} << 50, ~std::size_t{0}, ~std::size_t{0} - 4096}) {
    CUdeviceptr out = kUntouched;
    CHECK(allocate(&out, bytes) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(out == kUntouched);
  }
  CHECK(kvsim_log_count("cuMemAddressReserve") == 0);
}

TEST_CASE("a driver that refuses host memory: managed instead, the driver is not asked again") {
  for (const int code : {800, 801, 1, 999}) {
    const HostEngine engine;
    const std::string rule = "cuMemCreate@location=3:1:" + std::to_string(code) + ":*";
    REQUIRE(kvsim_fail(rule.c_str()) == 0);
    const CUdeviceptr first = allocated(kLarge);
    CHECK(kind_of(first) == Kind::managed);
    CHECK(engine.alive().reservations == 0);
    const std::uint64_t asked = kvsim_log_count("cuMemCreate");
    CHECK(asked == 3);  // the device's trial of fabric; with a POSIX FD, and without any export
    const CUdeviceptr second = allocated(kLarge);
    CHECK(kind_of(second) == Kind::managed);
    CHECK(kvsim_log_count("cuMemCreate") == asked);
    CHECK(telemetry::counters.fallbacks == 2);
    CHECK(release(first) == CUDA_SUCCESS);
    CHECK(release(second) == CUDA_SUCCESS);
  }
}

TEST_CASE("a driver that refuses to map host memory: managed for good; no managed memory: vmm") {
  for (const char* function : {"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess@location=1"}) {
    const HostEngine engine;
    REQUIRE(kvsim_fail((std::string(function) + ":1:801").c_str()) == 0);
    for (int i = 0; i < 2; ++i) {
      const CUdeviceptr ptr = allocated(kLarge);
      INFO(function);
      CHECK(kind_of(ptr) == Kind::managed);
      CHECK(release(ptr) == CUDA_SUCCESS);
    }
    CHECK(kvsim_host_bytes() == 0);
  }
  const HostEngine engine;
  kvsim_set_attribute(0, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
  kvsim_set_attribute(0, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
  const CUdeviceptr ptr = allocated(kLarge);
  CHECK(kind_of(ptr) == Kind::vmm);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("a device without the attribute never asks for a host location") {
  const HostEngine engine;
  kvsim_set_host_numa_crash(1);
  kvsim_fail_attribute(0, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1);
  const CUdeviceptr ptr = allocated(kLarge);
  CHECK(kind_of(ptr) == Kind::managed);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("nobody asks for host locations but a block that is to be there") {
  const HostEngine engine;
  kvsim_set_host_numa_crash(1);  // as some drivers do
  for (const std::size_t bytes : {std::size_t{512}, 3 * kMiB2, kLarge - 1}) {
    CHECK(release(allocated(bytes)) == CUDA_SUCCESS);
  }
  CHECK(driver::used_host_memory(0) == nullptr);
  CHECK(lines_with("location=3") == 0);
}

TEST_CASE("a block under the granularity shares a page of the device") {
  const HostEngine engine;
  const CUdeviceptr small = allocated(4096);
  CHECK(kind_of(small) == Kind::vmm);
  CHECK(kvsim_host_bytes() == 0);
  CHECK(telemetry::counters.fallbacks == 0);
  CHECK(release(small) == CUDA_SUCCESS);
}

TEST_CASE("handles are multiples of the granularity, however large that is") {
  const HostEngine engine;
  kvsim_set_granularity(std::size_t{32} << 20);
  const CUdeviceptr ptr = allocated(kLarge + 1);
  CHECK(kind_of(ptr) == Kind::host);
  CHECK(engine.alive().mappings == 3);
  CHECK(kvsim_host_bytes() == std::size_t{96} << 20);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("a fabric handle only where creation and export work for this location") {
  {
    const HostEngine engine;
    kvsim_set_fabric(0, 0);
    const CUdeviceptr ptr = allocated(kLarge);
    CHECK(driver::host_memory(*driver::device(0)).step() == HandleStep::fabric);
    CHECK(kvsim_log_count("cuMemExportToShareableHandle") ==
          2);  // the device's proof, and one here
    CHECK(release(ptr) == CUDA_SUCCESS);
  }
  for (const char* rule : {"cuMemCreate@location=3:1:801", "cuMemExportToShareableHandle:2:800"}) {
    const HostEngine engine;
    kvsim_set_fabric(0, 0);
    REQUIRE(kvsim_fail(rule) == 0);
    const CUdeviceptr ptr = allocated(kLarge);
    INFO(rule);
    CHECK(kind_of(ptr) == Kind::host);
    CHECK(driver::host_memory(*driver::device(0)).step() == HandleStep::posix);
    CHECK(driver::device(0)->step() == HandleStep::fabric);  // the device's own memory keeps it
    CHECK(release(ptr) == CUDA_SUCCESS);
    CHECK(kvsim_host_bytes() == 0);
  }
}

TEST_CASE("each piece can be exported by whoever takes its handle") {
  const HostEngine engine;
  const CUdeviceptr ptr = allocated(kOdd);
  for (const std::size_t at : {std::size_t{0}, kPiece * 2}) {
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(ptr + at)) ==
            CUDA_SUCCESS);
    int fd = -1;
    CHECK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
          CUDA_SUCCESS);
    close(fd);
    CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  }
  CHECK_FALSE(view(ptr).exportable);  // not as one handle
  CHECK(release(ptr) == CUDA_SUCCESS);
  host::handle_bytes = std::size_t{1} << 30;
  const CUdeviceptr whole = allocated(kLarge);
  CHECK(view(whole).exportable);
  CHECK(release(whole) == CUDA_SUCCESS);
  CHECK(engine.alive().handles == 0);
}

TEST_CASE(
    "IPC: a block of one handle has one, a block of several is refused before any process opens "
    "it") {
  const HostEngine engine;
  CUipcMemHandle handle{};
  CUresult result = CUDA_ERROR_UNKNOWN;
  const CUdeviceptr pieces = allocated(kLarge);
  CHECK_FALSE(sharing::get_mem_handle(&handle, pieces, &result));  // the driver's word, which is 1
  CHECK(cuIpcGetMemHandle(&handle, pieces) == CUDA_ERROR_INVALID_VALUE);
  host::handle_bytes = std::size_t{1} << 30;
  const CUdeviceptr whole = allocated(kLarge);
  CHECK(sharing::get_mem_handle(&handle, whole, &result));
  CHECK(result == CUDA_SUCCESS);
  CHECK(release(pieces) == CUDA_SUCCESS);
  CHECK(release(whole) == CUDA_SUCCESS);
}

TEST_CASE("a free of a host block waits for the owner context's work") {
  const HostEngine engine;
  const CUdeviceptr ptr = allocated(kLarge);
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
  REQUIRE(cuMemsetD8Async(ptr, 7, kLarge, stream) == CUDA_SUCCESS);
  std::thread([&] {
    CHECK(release(ptr) == CUDA_SUCCESS);
    CHECK(done.load());
  }).join();
  CHECK(kvsim_host_bytes() == 0);
  cuStreamDestroy(stream);
}

TEST_CASE("a stream-ordered free of a host block does not wait, and gives it back later") {
  const HostEngine engine;
  const CUdeviceptr ptr = allocated(kLarge);
  HeldStream stream;
  REQUIRE(cuMemsetD8Async(ptr, 7, kLarge, stream) == CUDA_SUCCESS);
  CUresult result = CUDA_ERROR_UNKNOWN;
  REQUIRE(engine::free_async(ptr, stream, &result));
  CHECK(result == CUDA_SUCCESS);
  CHECK(kvsim_host_bytes() == kLarge);
  stream.finish();
  const CUdeviceptr other = allocated(512);
  CHECK(kvsim_host_bytes() == 0);
  CHECK(release(other) == CUDA_SUCCESS);
}

TEST_CASE("a context takes its host blocks with it") {
  const HostEngine engine;
  CUcontext own = nullptr;
  REQUIRE(cuCtxCreate(&own, nullptr, 0, 0) == CUDA_SUCCESS);
  const CUdeviceptr ptr = allocated(kOdd);
  const engine::Destruction destruction = engine::before_destroy(own);
  REQUIRE(cuCtxDestroy(own) == CUDA_SUCCESS);
  engine::after_destroy(destruction, true);
  CHECK(kvsim_host_bytes() == 0);
  CHECK(engine.alive().reservations == 0);
  engine::BlockView block;
  CHECK(engine::find(ptr, &block) == Place::foreign);
  REQUIRE(cuCtxSetCurrent(engine.context) == CUDA_SUCCESS);
}

TEST_CASE("a memset of a host block is the device's, and ends where the block ends") {
  const HostEngine engine;
  const CUdeviceptr ptr = allocated(kLarge + 100);
  CUresult result = CUDA_SUCCESS;
  engine::Memset request{ptr, 0, kLarge + 100, 1, {7, 1}, CU_STREAM_LEGACY, true};
  CHECK_FALSE(engine::memset(request, &result));  // the driver's turn
  request.width = kLarge + 101;                   // still inside the mapping
  REQUIRE(engine::memset(request, &result));
  CHECK(result == CUDA_ERROR_INVALID_VALUE);
  CHECK(copies::judge(copies::Linear{ptr, ptr + 50, kLarge + 50, CU_STREAM_LEGACY, true}) ==
        copies::Verdict::ours);
  CHECK(copies::judge(copies::Linear{ptr, ptr + 50, kLarge + 51, CU_STREAM_LEGACY, true}) ==
        copies::Verdict::refused);
  CHECK(place_at(ptr + kLarge + 100) == Place::hole);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("another device in use reaches host blocks, made before and after") {
  const HostEngine engine;
  const CUdeviceptr before = allocated(kOdd);
  CUcontext second = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
  const CUdeviceptr there = allocated(kLarge);
  REQUIRE(cuCtxSetCurrent(engine.context) == CUDA_SUCCESS);
  const CUdeviceptr after = allocated(kOdd);
  for (const CUdeviceptr ptr : {before, there, after}) {
    for (const int device : {0, 1}) {
      CHECK(access_of(ptr, CU_MEM_LOCATION_TYPE_DEVICE, device) == 3);
      CHECK(access_of(ptr + kLarge - 1, CU_MEM_LOCATION_TYPE_DEVICE, device) == 3);
    }
    CHECK(release(ptr) == CUDA_SUCCESS);
  }
  cuDevicePrimaryCtxReset(1);
}

TEST_CASE("host bytes are not device bytes") {
  const HostEngine engine;
  CHECK(release(allocated(5 * kMiB2)) == CUDA_SUCCESS);
  std::size_t before = 0;
  std::size_t after = 0;
  REQUIRE(engine::mem_info(&before, nullptr) == CUDA_SUCCESS);
  const CUdeviceptr ptr = allocated(kOdd);
  REQUIRE(engine::mem_info(&after, nullptr) == CUDA_SUCCESS);
  CHECK(before == after);
  CHECK(telemetry::counters.kinds[static_cast<unsigned>(Kind::host)].live_bytes == kOdd);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("a failing unmap quarantines the address of a host block") {
  const HostEngine engine;
  const CUdeviceptr ptr = allocated(kLarge);
  REQUIRE(kvsim_fail("cuMemUnmap:1:999") == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
  CHECK(engine.alive().reservations == 1);
  const CUdeviceptr other = allocated(kLarge);
  CHECK(other != ptr);
  CHECK(release(other) == CUDA_SUCCESS);
  REQUIRE(cuMemUnmap(ptr, kLarge) == CUDA_SUCCESS);  // for the tests after this one
  REQUIRE(cuMemAddressFree(ptr, kLarge) == CUDA_SUCCESS);
}

TEST_CASE("host blocks built by many threads at once are apart and all given back") {
  const HostEngine engine;
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      if (cuCtxSetCurrent(engine.context) != CUDA_SUCCESS) return;
      for (int round = 0; round < 3; ++round) {
        CUdeviceptr ptr = 0;
        if (allocate(&ptr, kLarge) == CUDA_SUCCESS && release(ptr) == CUDA_SUCCESS) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == 12);
  CHECK(kvsim_host_bytes() == 0);
  CHECK(engine.alive().reservations == 0);
}

TEST_CASE("a forked child may build host blocks of its own") {
  const HostEngine engine;
  REQUIRE(engine::active());  // sets the fork handler up
  const CUdeviceptr ptr = allocated(kLarge);
  const pid_t child = fork();
  if (child == 0) {
    CUcontext context = nullptr;
    CUdeviceptr own = 0;
    const bool good = cuInit(0) == CUDA_SUCCESS &&
                      cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                      cuCtxSetCurrent(context) == CUDA_SUCCESS && registry::size() == 0 &&
                      allocate(&own, kLarge) == CUDA_SUCCESS && kind_of(own) == Kind::host &&
                      release(own) == CUDA_SUCCESS;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}
