// cuMemAlloc: sizes, alignment, errors, and that the memory is the program's own.
#include <algorithm>
#include <string>
#include <vector>

#include "gpu.h"

using namespace contract;

namespace {

// Sizes at which allocators change their mind, and one of the size of a KV cache's tensor.
std::vector<std::size_t> interesting_sizes() {
  return {1,
          255,
          256,
          512,
          6912,
          64 * kKiB,
          kMiB,
          2 * kMiB - 1,
          2 * kMiB,
          2 * kMiB + 1,
          20 * kMiB,
          option_large(),
          option_large() + 1};
}

void expect_writable_at_both_ends(CUdeviceptr ptr, std::size_t bytes) {
  const std::size_t part = std::min<std::size_t>(bytes, 4096);
  const auto head = pattern(part, 1), tail = pattern(part, 2);
  write_bytes(ptr, head);
  if (bytes > part) {
    write_bytes(ptr + bytes - part, tail);
    EXPECT(bytes < 2 * part || read_bytes(ptr, part) == head);
    EXPECT(read_bytes(ptr + bytes - part, part) == tail);
  } else {
    EXPECT(read_bytes(ptr, part) == head);
  }
}

}  // namespace

CHECK_CASE("allocation", "every size from one byte to large gives memory", plain) {
  for (const std::size_t bytes : interesting_sizes()) {
    CUdeviceptr ptr = 0;
    GIVES(0, cu.cuMemAlloc(&ptr, bytes));
    EXPECT(ptr != 0);
    GIVES(0, cu.cuMemFree(ptr));
  }
}

CHECK_CASE("allocation", "every block is aligned to 512 bytes", plain) {
  std::vector<Block> blocks;
  for (const std::size_t bytes : interesting_sizes()) blocks.emplace_back(bytes);
  for (const Block& block : blocks) EXPECT_EQ(block.ptr() % 512, 0u);
}

CHECK_CASE("allocation", "blocks of 2 MiB and more are aligned to 2 MiB", plain) {
  std::vector<Block> blocks;
  for (const std::size_t bytes : interesting_sizes()) {
    if (bytes >= 2 * kMiB) blocks.emplace_back(bytes);
  }
  for (const Block& block : blocks) EXPECT_EQ(block.ptr() % (2 * kMiB), 0u);
}

CHECK_CASE("allocation", "zero bytes is refused with 1", plain) {
  CUdeviceptr ptr = 0;
  GIVES(1, cu.cuMemAlloc(&ptr, 0));
}

CHECK_CASE("allocation", "no place for the pointer is refused with 1", plain) {
  GIVES(1, cu.cuMemAlloc(nullptr, 4096));
  GIVES(1, cu.cuMemAlloc(nullptr, option_large()));
  GIVES(1, cu.cuMemAlloc(nullptr, 0));
}

CHECK_CASE("allocation", "more than any machine has is out of memory, code 2", plain) {
  CUdeviceptr ptr = 0;
  GIVES(2, cu.cuMemAlloc(&ptr, std::size_t{1} << 46));
  GIVES(2, cu.cuMemAlloc(&ptr, std::size_t{1} << 50));
}

CHECK_CASE("allocation", "sizes at the end of the number range", plain | observes) {
  CUdeviceptr ptr = 0;
  const struct {
    const char* name;
    std::size_t bytes;
  } sizes[] = {{"2^62", std::size_t{1} << 62}, {"2^63 - 1", (std::size_t{1} << 63) - 1},
               {"2^63", std::size_t{1} << 63}, {"SIZE_MAX - 2 MiB", SIZE_MAX - 2 * kMiB},
               {"SIZE_MAX - 1", SIZE_MAX - 1}, {"SIZE_MAX", SIZE_MAX}};
  for (const auto& size : sizes) {
    const CUresult code = cu.cuMemAlloc(&ptr, size.bytes);
    REFUSES(code);
    observe(size.name, code);
  }
}

CHECK_CASE("allocation", "what a failed call leaves in the output",
           observes |
               differs("out of memory: the driver clears the output, kvshim leaves it alone")) {
  const CUdeviceptr mark = 0x123456789abcull;
  CUdeviceptr ptr = mark;
  GIVES(1, cu.cuMemAlloc(&ptr, 0));
  observe_yes("zero bytes: untouched", ptr == mark);
  observe_yes("zero bytes: cleared", ptr == 0);
  ptr = mark;
  GIVES(2, cu.cuMemAlloc(&ptr, std::size_t{1} << 50));
  observe_yes("too much: untouched", ptr == mark);
  observe_yes("too much: cleared", ptr == 0);
  if (memory_of(std::size_t{1} << 50) != Memory::native) EXPECT_EQ(ptr, mark);
}

CHECK_CASE("allocation", "a failure does not spoil the calls that follow", plain) {
  CUdeviceptr ptr = 0;
  for (int round = 0; round < 3; ++round) {
    GIVES(2, cu.cuMemAlloc(&ptr, std::size_t{1} << 50));
    GIVES(1, cu.cuMemAlloc(&ptr, 0));
    const Block small(4096), large(option_large());
    expect_writable_at_both_ends(small, 4096);
    expect_writable_at_both_ends(large, option_large());
  }
  GIVES(0, cu.cuCtxSynchronize());
}

CHECK_CASE("allocation", "live blocks do not overlap", plain) {
  std::vector<Block> blocks;
  for (int round = 0; round < 20; ++round) {
    for (const std::size_t bytes : {1, 255, 512, 6912, 70000, 1048577, 2097152, 3000000}) {
      blocks.emplace_back(bytes);
    }
  }
  blocks.emplace_back(option_large());
  std::vector<std::pair<CUdeviceptr, CUdeviceptr>> ranges;
  for (const Block& block : blocks) ranges.emplace_back(block.ptr(), block.end());
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) EXPECT(ranges[i - 1].second <= ranges[i].first);
}

CHECK_CASE("allocation", "4000 small blocks live at once, each with its own contents", plain) {
  std::vector<Block> blocks;
  for (unsigned i = 0; i < 4000; ++i) {
    blocks.emplace_back(64 + i % 1000);
    CALL(cu.cuMemsetD32Async(blocks.back(), i, 16, nullptr));
  }
  CALL(cu.cuCtxSynchronize());
  for (unsigned i = 0; i < 4000; i += 37) EXPECT(holds_word(blocks[i], 16, i));
  EXPECT(holds_word(blocks[3999], 16, 3999));
}

CHECK_CASE("allocation", "copies reach the first and the last byte", plain) {
  for (const std::size_t bytes : interesting_sizes()) {
    const Block block(bytes);
    expect_writable_at_both_ends(block, bytes);
  }
}

CHECK_CASE_SIZES("allocation", "kernels reach the first and the last word", plain) {
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  fill(nullptr, block, words, 3);
  EXPECT_EQ(sum(nullptr, block, words), 3 * words);
  fill(nullptr, block, 1, 10);
  fill(nullptr, block.end() - 4, 1, 20);
  EXPECT_EQ(sum(nullptr, block, words), 3 * words + 7 + 17);
  EXPECT(holds_word(block, 1, 10));
  EXPECT(holds_word(block.end() - 4, 1, 20));
}

CHECK_CASE_SIZES("allocation", "what a kernel writes a copy reads, and the reverse", plain) {
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  fill(nullptr, block, words, 0xabcd0123);
  EXPECT(holds_word(block, words, 0xabcd0123));
  const std::vector<std::uint32_t> ones(words, 1);
  CALL(cu.cuMemcpyHtoD(block, ones.data(), words * 4));
  EXPECT_EQ(sum(nullptr, block, words), words);
}

CHECK_CASE("allocation", "memory stays intact while its neighbours come and go", plain) {
  std::vector<Block> kept, passing;
  for (unsigned i = 0; i < 60; ++i) {
    kept.emplace_back(1000 + 500 * i);
    passing.emplace_back(1000 + 500 * i);
    write_bytes(kept.back(), pattern(1000 + 500 * i, i));
  }
  for (const std::size_t bytes : {2 * kMiB, 3 * kMiB, option_large()}) {
    kept.emplace_back(bytes);
    passing.emplace_back(bytes);
    write_bytes(kept.back(), pattern(kept.back().bytes(), static_cast<unsigned>(kept.size() - 1)));
  }
  passing.clear();
  for (int round = 0; round < 3; ++round) {
    for (const std::size_t bytes : {1000, 20000, 2097152, 3145728}) {
      passing.emplace_back(bytes);
      CALL(cu.cuMemsetD8(passing.back(), 0xee, bytes));
    }
  }
  passing.clear();
  CALL(cu.cuCtxSynchronize());
  for (unsigned i = 0; i < kept.size(); ++i) {
    EXPECT(read_bytes(kept[i], kept[i].bytes()) == pattern(kept[i].bytes(), i));
  }
}

CHECK_CASE_SIZES("allocation", "200 rounds of alloc, use and free do not use memory up", plain) {
  const std::size_t before = memory_info().free;
  const int rounds = size.bytes < 8 * kMiB ? 200 : 30;
  for (int round = 0; round < rounds; ++round) {
    const Block block(size.bytes);
    CALL(cu.cuMemsetD32(block, static_cast<unsigned>(round), size.bytes / 4));
    EXPECT(holds_word(block.end() - 4, 1, static_cast<unsigned>(round)));
  }
  EXPECT(memory_info().free + 64 * kMiB + size.bytes > before);
}

CHECK_CASE("allocation", "a freed block's address can come back and is whole again", plain) {
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB, option_large()}) {
    for (int round = 0; round < 5; ++round) {
      const Block first(bytes), second(bytes);
      write_bytes(first, pattern(4096, 1));
      write_bytes(second, pattern(4096, 2));
      EXPECT(read_bytes(first, 4096) == pattern(4096, 1));
      EXPECT(first.ptr() != second.ptr());
    }
  }
}

CHECK_CASE("allocation", "an allocation does not wait for running kernels", plain) {
  const Stream stream;
  HostFlag flag;
  load_kernels();
  const Block warm(option_large());
  flag.hold(stream);
  const Block large(option_large());
  EXPECT(stream.busy());
  const Block small(4096);
  EXPECT(stream.busy());
  const Block medium(3 * kMiB);
  EXPECT(stream.busy());
  flag.raise();
}

CHECK_CASE("allocation", "blocks may straddle any mix of sizes in any order", plain) {
  std::vector<Block> blocks;
  unsigned state = 7;
  for (int i = 0; i < 300; ++i) {
    state = state * 1664525u + 1013904223u;
    if (blocks.size() > 40) blocks.erase(blocks.begin() + static_cast<long>(state % 40));
    const std::size_t bytes =
        (state >> 8) % 5 == 0 ? kMiB + (state >> 12) % (2 * kMiB) : 1 + (state >> 12) % 60000;
    blocks.emplace_back(bytes);
    CALL(cu.cuMemsetD8(blocks.back(), static_cast<unsigned char>(i), bytes));
    EXPECT(holds_byte(blocks.back(), std::min<std::size_t>(bytes, 512),
                      static_cast<unsigned char>(i)));
  }
}
