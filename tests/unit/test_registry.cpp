// The table of live blocks, by base and by interior address.
#include "memory/registry.h"

#include <thread>
#include <vector>

#include "support/catch.h"

using namespace kvshim;

namespace {

Block block_at(CUdeviceptr base, std::uint64_t bytes) {
  Block block;
  block.base = base;
  block.bytes = bytes;
  return block;
}

}  // namespace

TEST_CASE("a block is found by every address inside it and by none outside") {
  registry::forget();
  REQUIRE(registry::reserve());
  registry::insert(block_at(0x10000, 1000));
  Block found;
  CHECK(registry::find(0x10000, &found));
  CHECK(registry::find(0x10000 + 999, &found));
  CHECK(found.base == 0x10000);
  CHECK(found.bytes == 1000);
  CHECK_FALSE(registry::find(0x10000 + 1000, &found));
  CHECK_FALSE(registry::find(0xffff, &found));
  CHECK_FALSE(registry::find(0, &found));
}

TEST_CASE("a block is taken by its base only, and once") {
  registry::forget();
  REQUIRE(registry::reserve());
  registry::insert(block_at(0x20000, 4096));
  Block taken;
  CHECK_FALSE(registry::take(0x20001, &taken));
  CHECK(registry::take(0x20000, &taken));
  CHECK(taken.bytes == 4096);
  CHECK_FALSE(registry::take(0x20000, &taken));
  CHECK(registry::size() == 0);
}

TEST_CASE("neighbouring blocks are told apart at their common border") {
  registry::forget();
  REQUIRE(registry::reserve());
  registry::insert(block_at(0x1000, 0x1000));
  registry::insert(block_at(0x2000, 0x1000));
  Block found;
  REQUIRE(registry::find(0x1fff, &found));
  CHECK(found.base == 0x1000);
  REQUIRE(registry::find(0x2000, &found));
  CHECK(found.base == 0x2000);
}

TEST_CASE("fifty thousand blocks are kept, and eight threads may come and go at once") {
  registry::forget();
  for (CUdeviceptr i = 1; i <= 50000; ++i) {
    REQUIRE(registry::reserve());
    registry::insert(block_at(i << 20, 1 << 20));
  }
  CHECK(registry::size() == 50000);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (CUdeviceptr t = 0; t < 8; ++t) {
    threads.emplace_back([t, &wrong] {
      for (CUdeviceptr i = 0; i < 2000; ++i) {
        const CUdeviceptr base = (100000 + t * 10000 + i) << 20;
        if (!registry::reserve()) ++wrong;
        registry::insert(block_at(base, 512));
        Block block;
        if (!registry::find(base + 511, &block) || block.base != base) ++wrong;
        if (!registry::take(base, &block)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(registry::size() == 50000);
}

TEST_CASE("a forked child's table is empty and usable") {
  REQUIRE(registry::reserve());
  registry::insert(block_at(0x700000, 1));
  registry::forget();
  Block block;
  CHECK_FALSE(registry::find(0x700000, &block));
  REQUIRE(registry::reserve());
  registry::insert(block_at(0x800000, 1));
  CHECK(registry::find(0x800000, &block));
}
