// The table of live blocks, by base and by interior address.
#include "memory/blocks/registry.h"

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
  CHECK(registry::find(0x10000, &found) == Place::block);
  CHECK(registry::find(0x10000 + 999, &found) == Place::block);
  CHECK(found.base == 0x10000);
  CHECK(found.bytes == 1000);
  CHECK(registry::find(0x10000 + 1000, &found) == Place::foreign);
  CHECK(registry::find(0xffff, &found) == Place::foreign);
  CHECK(registry::find(0, &found) == Place::foreign);
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
  REQUIRE(registry::find(0x1fff, &found) == Place::block);
  CHECK(found.base == 0x1000);
  REQUIRE(registry::find(0x2000, &found) == Place::block);
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
        if (registry::find(base + 511, &block) != Place::block || block.base != base) ++wrong;
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
  CHECK(registry::find(0x700000, &block) == Place::foreign);
  REQUIRE(registry::reserve());
  registry::insert(block_at(0x800000, 1));
  CHECK(registry::find(0x800000, &block) == Place::block);
}

TEST_CASE("what kvshim mapped and no block covers is a hole, not a block and not foreign") {
  registry::forget();
  REQUIRE(registry::reserve());
  registry::insert_slab(0x200000, 0x200000);
  registry::insert(block_at(0x200200, 512));
  Block rounded = block_at(0x800000, 1000);
  rounded.mapping.bytes = 0x200000;
  registry::insert(rounded);
  Block found;
  CHECK(registry::find(0x200000, &found) == Place::hole);
  CHECK(registry::find(0x200200, &found) == Place::block);
  CHECK(registry::find(0x200400, &found) == Place::hole);
  CHECK(registry::find(0x3fffff, &found) == Place::hole);
  CHECK(registry::find(0x400000, &found) == Place::foreign);
  CHECK(registry::find(0x800000 + 1000, &found) == Place::hole);
  CHECK(registry::find(0xa00000, &found) == Place::foreign);
  registry::remove_slab(0x200000);
  CHECK(registry::find(0x200000, &found) == Place::foreign);
}

TEST_CASE("two blocks never have the same id, not even one after the other at one address") {
  registry::forget();
  REQUIRE(registry::reserve());
  Block first;
  Block second;
  registry::insert(block_at(0x1000, 16));
  REQUIRE(registry::take(0x1000, &first));
  registry::insert(block_at(0x1000, 16));
  REQUIRE(registry::take(0x1000, &second));
  CHECK(first.id != 0);
  CHECK(first.id != second.id);
}

TEST_CASE("a block that is put back keeps its id and its flag") {
  registry::forget();
  REQUIRE(registry::reserve());
  registry::insert(block_at(0x1000, 16));
  REQUIRE(registry::set_sync_memops(0x100f, true));
  Block taken;
  REQUIRE(registry::take(0x1000, &taken));
  registry::insert(taken);
  Block again;
  REQUIRE(registry::find(0x1000, &again) == Place::block);
  CHECK(again.id == taken.id);
  CHECK(again.sync_memops);
}

TEST_CASE("ranges come in order, own, slabs' and opened ones, each once in any size of batch") {
  registry::forget();
  REQUIRE(registry::reserve());
  const auto opened = [](CUdeviceptr base, CUdevice home) {
    Block block = block_at(base + 16, 16);
    block.mapping = {base, 0x1000, 1};
    block.opened = true;
    block.home = home;
    return block;
  };
  const Block first = opened(0x1000, 1);
  const Block out_of_sight = opened(0x2000, -1);
  registry::insert_opened(first);
  registry::insert_opened(out_of_sight);
  registry::insert_slab(0x3000, 0x1000, 2);
  registry::insert(block_at(0x3000, 16));  // in the slab
  registry::insert_opened(opened(0x4000, 0));
  registry::insert_slab(0x5000, 0x1000, 0);
  for (unsigned room = 1; room < 7; ++room) {
    std::vector<CUdeviceptr> bases;
    std::vector<CUdevice> devices;
    MappedRange batch[8];
    CUdeviceptr after = 0;
    for (unsigned count = room; count == room;) {
      count = registry::mappings_after(after, batch, room);
      for (unsigned i = 0; i < count; ++i) {
        bases.push_back(after = batch[i].base);
        devices.push_back(batch[i].device);
        CHECK(registry::is_mapped(batch[i]));
      }
    }
    CHECK(bases == std::vector<CUdeviceptr>{0x1000, 0x3000, 0x4000, 0x5000});
    CHECK(devices == std::vector<CUdevice>{1, 2, 0, 0});
  }
  CHECK_FALSE(registry::is_mapped({0x1000, 0x1000, 0}));
  CHECK(registry::is_mapped({0x1000, 0x1000, 1}));
  registry::remove_opened(first);
  CHECK_FALSE(registry::is_mapped({0x1000, 0x1000, 1}));
}

TEST_CASE("a mapping that went away is not taken for its successor at the same address") {
  registry::forget();
  REQUIRE(registry::reserve());
  MappedRange slab[1];
  registry::insert_slab(0x200000, 0x200000);
  REQUIRE(registry::mappings_after(0, slab, 1) == 1);
  CHECK(registry::is_mapped(slab[0]));
  registry::remove_slab(0x200000);
  registry::insert_slab(0x200000, 0x200000);
  CHECK_FALSE(registry::is_mapped(slab[0]));
  CHECK(registry::is_mapped({0x200000, 0x200000, 0}));
}
