// All 24 forms of cuMemset: the right value, from the first byte to the last and not one further.
// Order and waiting are in memset_order.cpp.
#include <cstring>
#include <vector>

#include "gpu.h"

using namespace contract;

namespace {

// The block and what it must hold; every memset is done to both.
class Mirror {
 public:
  explicit Mirror(std::size_t bytes) : block_(bytes), image_(before(bytes)) {
    write_bytes(block_, image_);
  }
  CUdeviceptr at(std::size_t offset) const { return block_ + offset; }
  std::size_t bytes() const { return image_.size(); }

  template <typename Word>
  void set(std::size_t offset, Word value, std::size_t count) {
    std::uint8_t* const place = image_.data() + offset;
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(place + i * sizeof value, &value, sizeof value);
    }
  }
  void expect_equal() const { EXPECT(read_bytes(block_, image_.size()) == image_); }

 private:
  static const std::vector<std::uint8_t>& before(std::size_t bytes) {
    static std::vector<std::uint8_t> last;  // 64 MiB are not made anew for each form
    if (last.size() != bytes) last = pattern(bytes, 17);
    return last;
  }
  Block block_;
  std::vector<std::uint8_t> image_;
};

// Some ranges of words: all, a few, odd starts, the end. In bytes from the start, and words.
template <typename Word, typename Call>
void lines(const Sized& size, Call call) {
  Mirror mirror(size.bytes);
  const std::size_t width = sizeof(Word), all = size.bytes / width;
  const struct {
    std::size_t offset, count;
  } parts[] = {{0, 1},
               {width, 2},
               {7 * width, 333},
               {512, 512 / width},
               {1000, 1},
               {all / 2 * width, 99},
               {(all - 1) * width, 1},
               {(all - 50) * width, 50}};
  Word value = static_cast<Word>(0xa1b2c3d4u);
  GIVES(0, call(mirror.at(0), value, all));
  GIVES(0, cu.cuCtxSynchronize());
  mirror.set(0, value, all);
  mirror.expect_equal();
  for (const auto& part : parts) {
    value = static_cast<Word>(value * 5 + 3);
    GIVES(0, call(mirror.at(part.offset), value, part.count));
    mirror.set(part.offset, value, part.count);
  }
  GIVES(0, cu.cuCtxSynchronize());
  mirror.expect_equal();
}

template <typename Word, typename Call>
void rectangles(const Sized& size, Call call) {
  Mirror mirror(size.bytes);
  const std::size_t rows = 20, pitch = size.bytes / 24 / 16 * 16, width = pitch / sizeof(Word) - 3;
  const struct {
    std::size_t offset, width, rows;
  } parts[] = {{0, width, rows}, {pitch, 1, 5}, {2 * sizeof(Word), 3, rows}, {5 * pitch, width, 1}};
  Word value = static_cast<Word>(0x91827364u);
  for (const auto& part : parts) {
    value = static_cast<Word>(value * 5 + 3);
    GIVES(0, call(mirror.at(part.offset), pitch, value, part.width, part.rows));
    for (std::size_t row = 0; row < part.rows; ++row) {
      mirror.set(part.offset + row * pitch, value, part.width);
    }
  }
  GIVES(0, cu.cuCtxSynchronize());
  mirror.expect_equal();
}

// A form as a call without a stream.
template <typename Function>
auto in_stream(Function function, CUstream stream) {
  return [=](auto... arguments) { return function(arguments..., stream); };
}

}  // namespace

CHECK_CASE_SIZES("memset", "D8, D16, D32", plain) {
  lines<unsigned char>(size, cu.cuMemsetD8_v2);
  lines<unsigned short>(size, cu.cuMemsetD16_v2);
  lines<unsigned>(size, cu.cuMemsetD32_v2);
}

CHECK_CASE_SIZES("memset", "D8, D16, D32 on the per-thread default stream (_ptds)", plain) {
  lines<unsigned char>(size, cu.cuMemsetD8_v2_ptds);
  lines<unsigned short>(size, cu.cuMemsetD16_v2_ptds);
  lines<unsigned>(size, cu.cuMemsetD32_v2_ptds);
}

CHECK_CASE_SIZES("memset", "D8Async, D16Async, D32Async in a stream of their own", plain) {
  const Stream stream;
  lines<unsigned char>(size, in_stream(cu.cuMemsetD8Async, stream));
  lines<unsigned short>(size, in_stream(cu.cuMemsetD16Async, stream));
  lines<unsigned>(size, in_stream(cu.cuMemsetD32Async, stream));
}

CHECK_CASE_SIZES("memset", "D8Async, D16Async, D32Async in the legacy stream", plain) {
  lines<unsigned char>(size, in_stream(cu.cuMemsetD8Async, nullptr));
  lines<unsigned short>(size, in_stream(cu.cuMemsetD16Async, CU_STREAM_LEGACY));
  lines<unsigned>(size, in_stream(cu.cuMemsetD32Async, nullptr));
}

CHECK_CASE_SIZES("memset", "D8Async, D16Async, D32Async on the per-thread default stream (_ptsz)",
                 plain) {
  lines<unsigned char>(size, in_stream(cu.cuMemsetD8Async_ptsz, nullptr));
  lines<unsigned short>(size, in_stream(cu.cuMemsetD16Async_ptsz, nullptr));
  lines<unsigned>(size, in_stream(cu.cuMemsetD32Async_ptsz, CU_STREAM_PER_THREAD));
}

CHECK_CASE_SIZES("memset", "D2D8, D2D16, D2D32", plain) {
  rectangles<unsigned char>(size, cu.cuMemsetD2D8_v2);
  rectangles<unsigned short>(size, cu.cuMemsetD2D16_v2);
  rectangles<unsigned>(size, cu.cuMemsetD2D32_v2);
}

CHECK_CASE_SIZES("memset", "D2D8, D2D16, D2D32 on the per-thread default stream (_ptds)", plain) {
  rectangles<unsigned char>(size, cu.cuMemsetD2D8_v2_ptds);
  rectangles<unsigned short>(size, cu.cuMemsetD2D16_v2_ptds);
  rectangles<unsigned>(size, cu.cuMemsetD2D32_v2_ptds);
}

CHECK_CASE_SIZES("memset", "D2D8Async, D2D16Async, D2D32Async in a stream of their own", plain) {
  const Stream stream;
  rectangles<unsigned char>(size, in_stream(cu.cuMemsetD2D8Async, stream));
  rectangles<unsigned short>(size, in_stream(cu.cuMemsetD2D16Async, stream));
  rectangles<unsigned>(size, in_stream(cu.cuMemsetD2D32Async, stream));
}

CHECK_CASE_SIZES("memset",
                 "D2D8Async, D2D16Async, D2D32Async on the per-thread default stream (_ptsz)",
                 plain) {
  rectangles<unsigned char>(size, in_stream(cu.cuMemsetD2D8Async_ptsz, nullptr));
  rectangles<unsigned short>(size, in_stream(cu.cuMemsetD2D16Async_ptsz, nullptr));
  rectangles<unsigned>(size, in_stream(cu.cuMemsetD2D32Async_ptsz, nullptr));
}

CHECK_CASE_SIZES("memset", "far past the end of the block is refused with 1", plain) {
  const Block block(size.bytes);
  const Stream stream;
  write_bytes(block, pattern(4096, 4));
  const std::size_t beyond = std::size_t{1} << 40;
  GIVES(1, cu.cuMemsetD8(block, 0, beyond));
  GIVES(1, cu.cuMemsetD32(block, 0, beyond / 4));
  GIVES(1, cu.cuMemsetD8Async(block, 0, beyond, stream));
  GIVES(0, cu.cuCtxSynchronize());
  EXPECT(read_bytes(block, 4096) == pattern(4096, 4));
}

CHECK_CASE_SIZES("memset", "one byte and one page past the end of the block", plain | observes) {
  const Block block(size.bytes);
  observe("one byte", cu.cuMemsetD8(block, 0, size.bytes + 1));
  observe("one byte, from the end", cu.cuMemsetD8(block.end() - 4, 0, 5));
  observe("all of it past the end", cu.cuMemsetD8(block.end(), 0, 1));
  GIVES(0, cu.cuCtxSynchronize());
}

CHECK_CASE("memset", "past the end of a block of whole pages is refused with 1", plain | observes) {
  for (const std::size_t bytes : {2 * kMiB, option_large()}) {
    const Block block(bytes);
    const Stream stream;
    GIVES(1, cu.cuMemsetD8(block, 0, bytes + 1));
    GIVES(1, cu.cuMemsetD8Async(block, 0, bytes + 1, stream));
    GIVES(1, cu.cuMemsetD8(block.end() - 1, 0, 2));
    observe("a row too many", cu.cuMemsetD2D8(block, kMiB, 0, kMiB, bytes / kMiB + 1));
  }
  GIVES(0, cu.cuCtxSynchronize());
}

CHECK_CASE_SIZES("memset", "nothing at all", plain | observes) {
  const Block block(size.bytes);
  const Stream stream;
  write_bytes(block, pattern(4096, 5));
  observe("D8", cu.cuMemsetD8(block, 1, 0));
  observe("D16", cu.cuMemsetD16(block, 1, 0));
  observe("D32", cu.cuMemsetD32(block, 1, 0));
  observe("D8Async", cu.cuMemsetD8Async(block, 1, 0, stream));
  observe("D2D8, width 0", cu.cuMemsetD2D8(block, 64, 1, 0, 4));
  observe("D2D8, height 0", cu.cuMemsetD2D8(block, 64, 1, 4, 0));
  observe("D8 of address 0", cu.cuMemsetD8(0, 1, 0));
  observe("D8 at the end of the block", cu.cuMemsetD8(block.end(), 1, 0));
  GIVES(0, cu.cuCtxSynchronize());
  EXPECT(read_bytes(block, 4096) == pattern(4096, 5));
}

CHECK_CASE_SIZES("memset", "words at addresses that are no multiple of the word",
                 plain | observes) {
  const Block block(size.bytes);
  const Stream stream;
  observe("D16 at 1", cu.cuMemsetD16(block + 1, 1, 8));
  observe("D32 at 1", cu.cuMemsetD32(block + 1, 1, 8));
  observe("D32 at 2", cu.cuMemsetD32(block + 2, 1, 8));
  observe("D32Async at 2", cu.cuMemsetD32Async(block + 2, 1, 8, stream));
  observe("D2D32 at 2", cu.cuMemsetD2D32(block + 2, 64, 1, 8, 4));
  observe("D2D32 with a pitch of 62", cu.cuMemsetD2D32(block, 62, 1, 8, 4));
  GIVES(0, cu.cuCtxSynchronize());
  GIVES(0, cu.cuMemsetD8(block + 1, 1, 7));
}

CHECK_CASE_SIZES("memset", "a pitch that is less than the width", plain | observes) {
  const Block block(size.bytes);
  observe("code", cu.cuMemsetD2D8(block, 32, 1, 64, 4));
  observe("a pitch of 0, one row", cu.cuMemsetD2D8(block, 0, 1, 64, 1));
}

CHECK_CASE("memset", "memory that nobody allocated is refused", plain | observes) {
  const Stream stream;
  int local = 77;
  const CUresult unknown = cu.cuMemsetD8(kNowhere, 0, 16);
  const CUresult async = cu.cuMemsetD8Async(kNowhere, 0, 16, stream);
  const CUresult zero = cu.cuMemsetD8(0, 0, 16);
  const CUresult host = cu.cuMemsetD8(reinterpret_cast<CUdeviceptr>(&local), 0, 4);
  REFUSES(unknown);
  REFUSES(async);
  REFUSES(zero);
  observe("unknown", unknown);
  observe("unknown, async", async);
  observe("zero", zero);
  observe("host memory", host);
  GIVES(0, cu.cuCtxSynchronize());
}

CHECK_CASE_SIZES("memset", "a freed block is refused", plain | observes) {
  CUdeviceptr ptr = 0;
  {
    const Block block(size.bytes);
    ptr = block;
  }
  const CUresult code = cu.cuMemsetD8(ptr, 0, 16);
  observe("code", code);
  GIVES(0, cu.cuCtxSynchronize());
}

CHECK_CASE_SIZES("memset", "after a kernel has written the block", plain) {
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  fill(nullptr, block, words, 9);
  GIVES(0, cu.cuMemsetD32(block, 2, words));
  EXPECT_EQ(sum(nullptr, block, words), 2 * words);
  fill(nullptr, block, words, 9);
  GIVES(0, cu.cuMemsetD8(block, 0, size.bytes));
  EXPECT_EQ(sum(nullptr, block, words), 0u);
}

CHECK_CASE_SIZES("memset", "while another context is current", plain | observes) {
  const Block block(size.bytes);
  CALL(cu.cuMemsetD8(block, 1, size.bytes));
  CUcontext own = nullptr;
  CALL(cu.cuCtxCreate_v2(&own, 0, first_device()));
  observe("code", cu.cuMemsetD8(block, 2, size.bytes));
  observe("synchronize", cu.cuCtxSynchronize());
  CALL(cu.cuCtxDestroy(own));
  use_primary();
  observe_yes("it was set", holds_byte(block, size.bytes, 2));
}
