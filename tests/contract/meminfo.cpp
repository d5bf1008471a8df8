// cuMemGetInfo: what a program that plans its memory by these two numbers may rely on.
#include <cstdlib>
#include <string>
#include <vector>

#include "gpu.h"

using namespace contract;

namespace {

// Other programs on the device, and the driver's own pools, move the number too.
constexpr std::size_t kNoise = 48 * kMiB;

void expect_fall(std::size_t before, std::size_t after, std::size_t least, std::size_t most) {
  const std::size_t fall = before > after ? before - after : 0;
  if (fall + kNoise < least || fall > most + kNoise) {
    fail(__FILE__, __LINE__,
         "free memory fell by " + std::to_string(fall / kMiB) + " MiB, not by " +
             std::to_string(least / kMiB) + " to " + std::to_string(most / kMiB) + " MiB");
  }
}

void expect_back(std::size_t before) {
  const std::size_t now = memory_info().free;
  if (now + kNoise < before) {
    fail(__FILE__, __LINE__,
         std::to_string((before - now) / kMiB) + " MiB of free memory did not come back");
  }
}

}  // namespace

CHECK_CASE("meminfo", "free is not more than total, and total is not zero", plain) {
  const MemoryInfo info = memory_info();
  EXPECT(info.free > 0);
  EXPECT(info.free <= info.total);
  EXPECT(info.total >= 256 * kMiB);
}

CHECK_CASE("meminfo", "whether total is what the device says it has", plain | observes) {
  std::size_t device = 0;
  CALL(cu.cuDeviceTotalMem(&device, first_device()));
  EXPECT(memory_info().total <= device + kNoise);
  observe_yes("equal", memory_info().total == device);
}

CHECK_CASE("meminfo", "each output may be NULL alone", plain) {
  std::size_t free = 0, total = 0;
  GIVES(0, cu.cuMemGetInfo(&free, nullptr));
  GIVES(0, cu.cuMemGetInfo(nullptr, &total));
  EXPECT(free > 0);
  EXPECT(total >= free);
  EXPECT_EQ(total, memory_info().total);
}

CHECK_CASE("meminfo", "both outputs NULL", plain | observes) {
  observe("code", cu.cuMemGetInfo(nullptr, nullptr));
}

CHECK_CASE("meminfo", "total does not change with allocation", plain) {
  const std::size_t before = memory_info().total;
  const Block small(4096), medium(4 * kMiB), large(option_large());
  EXPECT_EQ(memory_info().total, before);
}

CHECK_CASE("meminfo", "20000 blocks of 256 bytes use about 8 MiB, and give it back", plain) {
  const Block warm(256);
  const std::size_t before = memory_info().free;
  {
    std::vector<Block> blocks;
    for (int i = 0; i < 20000; ++i) blocks.emplace_back(256);
    expect_fall(before, memory_info().free, 0, 32 * kMiB);
  }
  expect_back(before);
}

CHECK_CASE("meminfo", "512 blocks of 1 MiB use about 512 MiB, and give it back", plain) {
  const std::size_t before = memory_info().free;
  {
    std::vector<Block> blocks;
    for (int i = 0; i < 512; ++i) blocks.emplace_back(kMiB);
    expect_fall(before, memory_info().free, 512 * kMiB, 560 * kMiB);
  }
  expect_back(before);
}

CHECK_CASE("meminfo", "100 blocks of 2 MiB use 200 MiB, and give it back", plain) {
  const std::size_t before = memory_info().free;
  {
    std::vector<Block> blocks;
    for (int i = 0; i < 100; ++i) blocks.emplace_back(2 * kMiB);
    expect_fall(before, memory_info().free, 200 * kMiB, 230 * kMiB);
  }
  expect_back(before);
}

CHECK_CASE("meminfo", "100 blocks of 2 MiB + 512 use 400 MiB at most, and give it back", plain) {
  const std::size_t before = memory_info().free;
  {
    std::vector<Block> blocks;
    for (int i = 0; i < 100; ++i) blocks.emplace_back(2 * kMiB + 512);
    expect_fall(before, memory_info().free, 200 * kMiB, 430 * kMiB);
  }
  expect_back(before);
}

CHECK_CASE("meminfo", "large blocks are taken from the device",
           differs("blocks over the threshold live in host memory until the device touches them")) {
  const std::size_t before = memory_info().free;
  {
    std::vector<Block> blocks;
    const std::size_t count = 256 * kMiB / option_large();
    for (std::size_t i = 0; i < count; ++i) blocks.emplace_back(option_large());
    const std::size_t bytes = count * option_large();
    // With the host's memory told as the device's it is as natively.
    const char* const told = std::getenv("KVSHIM_MEMINFO");
    const bool with_host = told != nullptr && std::string(told) == "virtual";
    const Memory kind = memory_of(option_large());
    if ((kind == Memory::managed || kind == Memory::host) && !with_host) {
      expect_fall(before, memory_info().free, 0, bytes / 8);
    } else {
      expect_fall(before, memory_info().free, bytes, bytes + bytes / 8);
    }
  }
  expect_back(before);
}

CHECK_CASE("meminfo", "a refused allocation takes nothing", plain) {
  const std::size_t before = memory_info().free;
  CUdeviceptr ptr = 0;
  for (int i = 0; i < 20; ++i) GIVES(2, cu.cuMemAlloc(&ptr, std::size_t{1} << 50));
  expect_back(before);
}

CHECK_CASE("meminfo", "the numbers are the same on every thread with the context", plain) {
  const MemoryInfo here = memory_info();
  on_thread([&] {
    use_primary();
    const MemoryInfo there = memory_info();
    EXPECT_EQ(there.total, here.total);
    EXPECT(there.free + kNoise > here.free && here.free + kNoise > there.free);
  });
}

CHECK_CASE("meminfo", "the 32-bit form of old", plain | observes) {
  using Info32 = CUresult (*)(unsigned*, unsigned*);
  const auto info32 = reinterpret_cast<Info32>(by_name("cuMemGetInfo"));
  if (info32 == nullptr) return;  // a driver may drop it
  unsigned free = 0, total = 0;
  observe("code", info32(&free, &total));
  observe_yes("total is the most that it can say", total == ~0u);
  EXPECT(total <= memory_info().total);
}
