// Many live blocks.
#include <fcntl.h>

#include <vector>

#include "gpu.h"

using namespace contract;

CHECK_CASE("limits", "10000 blocks of 256 bytes live at once", plain) {
  std::vector<Block> blocks;
  const Clock clock;
  for (unsigned i = 0; i < 10000; ++i) blocks.emplace_back(256);
  for (unsigned i = 0; i < 10000; ++i) CALL(cu.cuMemsetD32Async(blocks[i], i, 64, nullptr));
  CALL(cu.cuCtxSynchronize());
  for (unsigned i = 0; i < 10000; i += 101) EXPECT(holds_word(blocks[i], 64, i));
  for (unsigned i = 0; i < 10000; i += 2) blocks[i] = Block(256);
  for (unsigned i = 1; i < 10000; i += 202) EXPECT(holds_word(blocks[i], 64, i));
  blocks.clear();
  EXPECT(clock.seconds() < 10);
}

CHECK_CASE("limits", "300 blocks of 2 MiB live at once", plain) {
  std::vector<Block> blocks;
  for (unsigned i = 0; i < 300; ++i) {
    blocks.emplace_back(2 * kMiB);
    CALL(cu.cuMemsetD32Async(blocks.back(), i, 2 * kMiB / 4, nullptr));
  }
  CALL(cu.cuCtxSynchronize());
  for (unsigned i = 0; i < 300; i += 7) EXPECT(holds_word(blocks[i].end() - 4096, 1024, i));
}

CHECK_CASE("limits", "256 blocks of 4 KiB + 1 in each of 8 sizes", plain) {
  std::vector<Block> blocks;
  for (unsigned i = 0; i < 2048; ++i) {
    blocks.emplace_back(1 + (std::size_t{4096} << (i % 8)));
    CALL(cu.cuMemsetD32Async(blocks.back(), i, 1024, nullptr));
  }
  CALL(cu.cuCtxSynchronize());
  for (unsigned i = 0; i < 2048; i += 31) EXPECT(holds_word(blocks[i], 1024, i));
}

CHECK_CASE("limits", "many live blocks of the program hold no file descriptors", plain) {
  // A program near its limit of open files must not meet that limit by allocating.
  std::vector<Block> blocks;
  for (unsigned i = 0; i < 100; ++i) blocks.emplace_back(2 * kMiB);
  for (unsigned i = 0; i < 1000; ++i) blocks.emplace_back(4096);
  std::size_t open_files = 0;
  for (int fd = 0; fd < 4096; ++fd) open_files += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  EXPECT(open_files < 100);
}

CHECK_CASE("limits", "20000 rounds of one small block", plain) {
  const std::size_t before = memory_info().free;
  for (unsigned i = 0; i < 20000; ++i) {
    const Block block(1 + i % 3000);
  }
  EXPECT(memory_info().free + 64 * kMiB > before);
}
