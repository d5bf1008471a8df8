// The budget of spilled bytes, and what a program is told of it. The environment of this program
// (meson.build): a device of 1 GiB, at most 192 MiB of each device and 256 MiB of all in host
// memory, blocks from 32 MiB on are managed, KVSHIM_MEMINFO=virtual.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/sizes.h"
#include "changed_options.h"
#include "memory/kinds/managed.h"
#include "sim_fixture.h"

using namespace kvshim;
namespace files = std::filesystem;

namespace {

constexpr std::uint64_t kOwn = kGiB;          // of the device
constexpr std::uint64_t kLimit = 192 * kMiB;  // of one device
constexpr std::uint64_t kAll = 256 * kMiB;    // of all

struct Info {
  std::size_t free = 0;
  std::size_t total = 0;
};
Info info() {
  Info now;
  CHECK(engine::mem_info(&now.free, &now.total) == CUDA_SUCCESS);
  CHECK(now.free <= now.total);
  CHECK(now.total == kOwn + kLimit);
  return now;
}

Kind kind_of(CUdeviceptr ptr) {
  engine::BlockView view{};
  return engine::find(ptr, &view) == Place::block ? view.kind : Kind::native;
}

CUdeviceptr have(std::size_t bytes) {
  CUdeviceptr ptr = 0;
  REQUIRE(allocate(&ptr, bytes) == CUDA_SUCCESS);
  return ptr;
}

// A machine of our making: so much memory is available.
class Machine {
 public:
  explicit Machine(std::uint64_t available) {
    char name[] = "/tmp/kvshim-capacity-XXXXXX";
    root_ = mkdtemp(name);
    files::create_directories(root_ + "/proc");
    set(available);
    host_budget::look_below(root_.c_str());
  }
  ~Machine() {
    host_budget::look_below("");
    files::remove_all(root_);
  }
  void set(std::uint64_t available) const {
    // In place: the file is what others lock.
    std::string text = "MemAvailable: " + std::to_string(available / kKiB) + " kB";
    text.resize(60, ' ');
    text += '\n';
    const int file = open((root_ + "/proc/meminfo").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    close(file);
  }

 private:
  std::string root_;
};

}  // namespace

TEST_CASE("free falls by what is allocated in any kind and returns; total never changes") {
  const Engine engine;
  have(4096);  // the first block's spares and slab
  const Info before = info();
  CHECK(before.free > kOwn);
  const CUdeviceptr device = have(20 * kMiB);
  CHECK(kind_of(device) == Kind::vmm);
  CHECK(info().free == before.free - 20 * kMiB);
  const CUdeviceptr host = have(64 * kMiB);
  CHECK(kind_of(host) == Kind::managed);
  CHECK(info().free == before.free - 84 * kMiB);
  CHECK(release(device) == CUDA_SUCCESS);
  CHECK(info().free == before.free - 64 * kMiB);
  CHECK(release(host) == CUDA_SUCCESS);
  CHECK(info().free == before.free);
  CHECK(telemetry::counters.devices[0].real_total == kOwn);
  CHECK(telemetry::counters.devices[0].real_free < kOwn);
  CHECK(telemetry::counters.devices[0].spilled.peak_bytes == 64 * kMiB);
}

TEST_CASE("each device is told the same of itself whatever the others hold") {
  const Engine engine;
  const CUdeviceptr host = have(64 * kMiB);
  CHECK(spill::told(0).free == kLimit - 64 * kMiB);
  CHECK(spill::told(1).total == kLimit);
  CHECK(spill::told(1).free == kLimit);
  CHECK(spill::told(-1).total == 0);
  CHECK(spill::told(driver::kMaxDevices).total == 0);
  CHECK(release(host) == CUDA_SUCCESS);
}

TEST_CASE("bytes come back when the block's context ends, is freed in stream order, or never was") {
  const Engine engine;
  have(64 * kMiB);
  const auto gone = engine::before_destroy(engine.context);
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  engine::after_destroy(gone, true);
  CHECK(spill::told(0).free == kLimit);

  REQUIRE(cuDevicePrimaryCtxRetain(const_cast<CUcontext*>(&engine.context), 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(engine.context) == CUDA_SUCCESS);
  const CUdeviceptr async = have(150 * kMiB);
  CUresult code = CUDA_SUCCESS;
  REQUIRE(engine::free_async(async, CU_STREAM_LEGACY, &code));
  CHECK(code == CUDA_SUCCESS);
  // The next one needs its bytes, and gets them.
  const CUdeviceptr next = have(150 * kMiB);
  CHECK(kind_of(next) == Kind::managed);
  CHECK(release(next) == CUDA_SUCCESS);
  CHECK(spill::told(0).free == kLimit);

  for (const char* failure : {"cuMemAllocManaged:1:2:*", "cuMemAllocManaged:1:999:*"}) {
    CAPTURE(failure);
    kvsim_fail(failure);
    CUdeviceptr out = 77;
    CHECK(managed::create(*driver::device(0), 64 * kMiB, &out, nullptr) != CUDA_SUCCESS);
    CHECK(out == 77);
    kvsim_fail_none();
    driver::forget_devices();
    CHECK(spill::told(0).free == kLimit);
  }
}

TEST_CASE("a block whose context dies while its stream-ordered free waits gives its bytes back") {
  const Engine engine;
  const CUdeviceptr block = have(64 * kMiB);
  CUresult code = CUDA_SUCCESS;
  REQUIRE(engine::free_async(block, CU_STREAM_LEGACY, &code));
  const auto gone = engine::before_destroy(engine.context);
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  engine::after_destroy(gone, true);
  CHECK(spill::told(0).free == kLimit);
}

TEST_CASE("over the host's budget a block goes to the device, where there is room for it") {
  const Engine engine;
  const Info before = info();
  std::vector<CUdeviceptr> blocks;
  for (int index = 0; index < 12; ++index) blocks.push_back(have(64 * kMiB));
  for (int index = 0; index < 12; ++index) {
    CHECK(kind_of(blocks[static_cast<std::size_t>(index)]) ==
          (index < 3 ? Kind::managed : Kind::vmm));
  }
  CHECK(before.free - info().free >= 768 * kMiB);
  CHECK(before.free - info().free <= 770 * kMiB);
  for (const CUdeviceptr block : blocks) CHECK(release(block) == CUDA_SUCCESS);
  CHECK(before.free - info().free <= 2 * kMiB);
}

TEST_CASE("a block larger than the device and than the budget lies on both, front on the device") {
  const Engine engine;
  constexpr std::size_t kBytes = kOwn + 50 * kMiB;
  const CUdeviceptr block = have(kBytes);
  CHECK(kind_of(block) == Kind::managed);
  const std::uint64_t on_device = kvsim_resident_on_device(block, kBytes);
  CHECK(on_device > 900 * kMiB);
  CHECK(on_device < kOwn);
  CHECK(kvsim_resident_on_host(block, kBytes) == kBytes - on_device);
  CHECK(spill::told(0).free == kLimit - (kBytes - on_device));
  // A memset by the CPU would draw all of it into host memory: that is left to the driver.
  CUresult code = CUDA_SUCCESS;
  CHECK(!engine::memset({block, 0, kBytes, 1, {7, 1}, CU_STREAM_LEGACY, true}, &code));
  CHECK(release(block) == CUDA_SUCCESS);
  CHECK(spill::told(0).free == kLimit);
}

TEST_CASE("the device's part of a block on both is nobody else's while it lives") {
  const Engine engine;
  const Info before = info();
  const CUdeviceptr both = have(kOwn + 64 * kMiB);
  CHECK(kind_of(both) == Kind::managed);
  Info now = info();
  CHECK(before.free - now.free - (kOwn + 64 * kMiB) <= 4 * kMiB);  // spare blocks of the context
  // All that is told is there, and no more.
  std::vector<CUdeviceptr> small;
  CUdeviceptr next = 0;
  while (allocate(&next, 16 * kMiB) == CUDA_SUCCESS && small.size() < 100) small.push_back(next);
  CHECK(small.size() == now.free / (16 * kMiB));
  CHECK(info().free < 16 * kMiB);
  for (const CUdeviceptr ptr : small) CHECK(release(ptr) == CUDA_SUCCESS);
  CHECK(info().free >= now.free);
  CHECK(info().free <= now.free + 4 * kMiB);  // the spare blocks' page came after the claim
  CHECK(release(both) == CUDA_SUCCESS);
  CHECK(info().free >= before.free - 4 * kMiB);
}

TEST_CASE("what was freed in stream order makes room for a block on both") {
  const Engine engine;
  HeldStream busy;
  CUstream quick = nullptr;
  REQUIRE(cuStreamCreate(&quick, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr waiting[10];
  for (CUdeviceptr& ptr : waiting) ptr = have(2 * kMiB);
  const CUdeviceptr own = [] {
    With options;
    options->threshold = kNever;
    return have(800 * kMiB);
  }();
  CHECK(kind_of(own) == Kind::vmm);
  CUresult code = CUDA_ERROR_UNKNOWN;
  // Many that wait hide none that has come.
  for (const CUdeviceptr ptr : waiting) REQUIRE(engine::free_async(ptr, busy, &code));
  REQUIRE(engine::free_async(own, quick, &code));
  REQUIRE(cuStreamSynchronize(quick) == CUDA_SUCCESS);
  const CUdeviceptr both = have(kOwn + 32 * kMiB);
  CHECK(kind_of(both) == Kind::managed);
  busy.finish();
  CHECK(release(both) == CUDA_SUCCESS);
  cuStreamDestroy(quick);
}

TEST_CASE("many threads that want device and host together get it once") {
  const Engine engine;
  std::atomic<int> got{0};
  std::vector<std::thread> threads;
  std::vector<CUdeviceptr> blocks(4);
  for (CUdeviceptr& block : blocks) {
    threads.emplace_back([&] {
      cuCtxSetCurrent(engine.context);
      if (allocate(&block, kOwn + 32 * kMiB) == CUDA_SUCCESS) ++got;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(got == 1);
  for (const CUdeviceptr block : blocks) {
    if (block != 0) CHECK(release(block) == CUDA_SUCCESS);
  }
  CHECK(spill::told(0).free == kLimit);
}

TEST_CASE("a block on both that fails half way is unwound: the driver's code, nothing left") {
  const Engine engine;
  const CUdeviceptr first = have(4096);
  REQUIRE(cuStreamSynchronize(CU_STREAM_LEGACY) == CUDA_SUCCESS);  // the simulation makes it now
  const auto alive = engine.alive();
  for (const char* failure : {"cuMemAllocManaged:1:2:*", "cuStreamCreate:1:2",
                              "cuMemsetD8Async:1:2", "cuStreamSynchronize:1:2"}) {
    CAPTURE(failure);
    kvsim_fail(failure);
    CUdeviceptr out = 77;
    CHECK(allocate(&out, kOwn + 50 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(out == 77);
    kvsim_fail_none();
    CHECK(engine.alive().managed_blocks == 0);
    CHECK(engine.alive().streams == alive.streams);
    CHECK(engine.alive().device_bytes == alive.device_bytes);
    CHECK(spill::told(0).free == kLimit);
  }
  CHECK(release(first) == CUDA_SUCCESS);
}

TEST_CASE("over device and budget together: 2, the driver is not asked, nothing was counted") {
  const Engine engine;
  have(4096);
  const Info before = info();
  kvsim_log_clear();
  for (const std::size_t bytes :
       {kOwn + kLimit, std::size_t{1} << 50, std::size_t{1} << 63, ~std::size_t{0}}) {
    CUdeviceptr out = 77;
    CHECK(allocate(&out, bytes) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(out == 77);
    CHECK(info().free == before.free);
  }
  CHECK(kvsim_log_count("cuMemAllocManaged") == 0);
}

TEST_CASE("a device that refuses managed memory after all: total stays, free is its own") {
  const Engine engine;
  const Info before = info();
  kvsim_fail("cuMemAllocManaged:1:801:*");
  const CUdeviceptr block = have(64 * kMiB);
  CHECK(kind_of(block) == Kind::vmm);
  CHECK(info().free <= kOwn - 64 * kMiB);
  CHECK(info().total == before.total);
  CHECK(release(block) == CUDA_SUCCESS);
}

TEST_CASE("a device that cannot spill is told nothing, and its own total stays its own") {
  for (const int attribute : {83, 89}) {
    const Engine engine;
    kvsim_set_attribute(0, attribute, 0);
    std::size_t free = 0;
    std::size_t total = 0;
    CHECK(engine::mem_info(&free, &total) == CUDA_SUCCESS);
    CHECK(total == kOwn);
    CHECK(spill::told(1).total == kLimit);
  }
}

TEST_CASE("the limit of all devices binds beyond the limit of each") {
  const Engine engine;
  const CUdeviceptr first = have(160 * kMiB);
  CHECK(spill::told(1).total == kLimit);
  CHECK(spill::told(1).free == kAll - 160 * kMiB);  // no more than there is for all
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  const CUdeviceptr fits = have(kAll - 160 * kMiB);
  CHECK(kind_of(fits) == Kind::managed);
  const CUdeviceptr not_any_more = have(32 * kMiB);
  CHECK(kind_of(not_any_more) == Kind::vmm);
  CHECK(release(not_any_more) == CUDA_SUCCESS);
  CHECK(release(fits) == CUDA_SUCCESS);
  CHECK(release(first) == CUDA_SUCCESS);
  cuDevicePrimaryCtxReset(1);
}

TEST_CASE("what is told is decided once: a machine that fills up later does not change it") {
  const Engine engine;
  const Machine machine(4 * kGiB);
  const Info before = info();
  machine.set(10 * kMiB);
  CHECK(info().free == before.free);
  // But what is not there is not taken: the device has room.
  const CUdeviceptr block = have(64 * kMiB);
  CHECK(kind_of(block) == Kind::vmm);
  CHECK(release(block) == CUDA_SUCCESS);
}

TEST_CASE("a machine with less than the limits has that to tell, less the reserve") {
  const Engine engine;
  const Machine machine(293 * kMiB);
  CHECK(spill::told(0).total == 164 * kMiB);  // 128 MiB are the reserve; in whole pages
  const Machine empty(0);
  spill::forget();
  CHECK(spill::told(0).total == 0);
  std::size_t free = 0;
  std::size_t total = 0;
  CHECK(engine::mem_info(&free, &total) == CUDA_SUCCESS);
  CHECK(total == kOwn);
}

TEST_CASE("bytes that are promised and not placed are told once") {
  const Engine engine;
  const Machine machine(300 * kMiB);
  spill::Promise promise(1, 160 * kMiB, "managed");
  REQUIRE(promise.granted());
  CHECK(spill::told(0).total == 172 * kMiB);  // 300 less the reserve of 128
}

TEST_CASE("memory that others take while a block is placed ends it: unwound, and all given back") {
  const Engine engine;
  const Machine machine(kGiB);
  {
    spill::Promise promise(0, 190 * kMiB, "managed");
    REQUIRE(promise.granted());
    CHECK(spill::told(0).free == 2 * kMiB);
    REQUIRE(promise.next_piece() == 56 * kMiB);  // a sixteenth of what is there
    promise.placed(56 * kMiB);
    machine.set(20 * kMiB);
    CHECK(promise.next_piece() == 0);
  }
  CHECK(spill::told(0).free == kLimit);

  // The same through the engine: whoever sees the block appear takes the memory.
  machine.set(kGiB);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    kvsim_counts now{};
    while (!stop && now.managed_blocks == 0) kvsim_get_counts(&now);
    machine.set(20 * kMiB);
  });
  CUdeviceptr out = 77;
  std::uint64_t spilled = 0;
  const CUresult code = managed::create(*driver::device(0), 190 * kMiB, &out, &spilled);
  stop = true;
  other.join();
  CHECK(code == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(out == 77);
  CHECK(engine.alive().managed_blocks == 0);
  CHECK(spill::told(0).free == kLimit);
}

TEST_CASE("two processes that ask for more than there is: the first has it, until it dies") {
  const Engine engine;
  const Machine machine(320 * kMiB);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    spill::forget();
    const spill::Promise mine(0, 120 * kMiB, "managed");
    const char answer = mine.granted() ? 'y' : 'n';
    if (write(ready[1], &answer, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char answer = 0;
  REQUIRE(read(ready[0], &answer, 1) == 1);
  CHECK(answer == 'y');
  CHECK(!spill::Promise(0, 120 * kMiB, "managed").granted());
  CHECK(spill::Promise(0, 70 * kMiB, "managed").granted());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(spill::Promise(0, 120 * kMiB, "managed").granted());
}

TEST_CASE("many threads that ask at once never get more than the limits together") {
  const Engine engine;
  std::atomic<std::uint64_t> now{0};
  std::atomic<bool> over{false};
  std::atomic<unsigned> granted{0};
  std::vector<std::thread> threads;
  for (int index = 0; index < 6; ++index) {
    threads.emplace_back([&, index] {
      const std::uint64_t bytes = static_cast<std::uint64_t>(30 + 10 * index) * kMiB;
      for (int round = 0; round < 100; ++round) {
        const spill::Promise promise(index % 2, bytes, "managed");
        if (!promise.granted()) continue;
        ++granted;
        if (now.fetch_add(bytes) + bytes > kAll) over = true;
        sched_yield();
        now.fetch_sub(bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(granted > 0);
  CHECK(!over);
  CHECK(spill::told(0).free == kLimit);
}

TEST_CASE("a forked child begins with an empty account") {
  const Engine engine;
  REQUIRE(engine::active());
  const CUdeviceptr block = have(64 * kMiB);
  const pid_t child = fork();
  if (child == 0) {
    _exit(cuInit(0) == CUDA_SUCCESS && spill::told(0).free == kLimit ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(spill::told(0).free == kLimit - 64 * kMiB);
  CHECK(release(block) == CUDA_SUCCESS);
}
