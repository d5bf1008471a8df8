// cuMemGetAddressRange: the base and the bytes that were asked for.
#include "gpu.h"

using namespace contract;

namespace {

struct Range {
  CUresult code;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
};

Range range_of(CUdeviceptr ptr) {
  Range range{};
  range.code = cu.cuMemGetAddressRange(&range.base, &range.bytes, ptr);
  return range;
}

void expect_range(std::size_t bytes) {
  const Block block(bytes);
  for (const CUdeviceptr ptr :
       {block.ptr(), block.ptr() + 1, block.ptr() + bytes / 2, block.end() - 1}) {
    const Range range = range_of(ptr);
    GIVES(0, range.code);
    EXPECT_EQ(range.base, block.ptr());
    EXPECT_EQ(range.bytes, bytes);
  }
}

}  // namespace

CHECK_CASE("range", "48 bytes", plain) {
  expect_range(48);
}
CHECK_CASE("range", "1000 bytes", plain) {
  expect_range(1000);
}
CHECK_CASE("range", "2 MiB less one byte", plain) {
  expect_range(2 * kMiB - 1);
}
CHECK_CASE("range", "2 MiB", plain) {
  expect_range(2 * kMiB);
}
CHECK_CASE("range", "3 MiB and one byte", plain) {
  expect_range(3 * kMiB + 1);
}
CHECK_CASE("range", "a large block", plain) {
  expect_range(option_large());
}
CHECK_CASE("range", "a large block and 777 bytes", plain) {
  expect_range(option_large() + 777);
}

CHECK_CASE("range", "one byte past the end is not the block", plain | observes) {
  for (const std::size_t bytes : {std::size_t{48}, std::size_t{1000}, 2 * kMiB, 3 * kMiB + 1}) {
    const Block block(bytes);
    const Range range = range_of(block.end());
    EXPECT(range.code != CUDA_SUCCESS || range.base != block.ptr());
    if (bytes == 48 || bytes == 1000) observe(std::to_string(bytes).c_str(), range.code);
  }
}

CHECK_CASE("range", "one byte past the end of a large block is not the block", plain) {
  const Block block(option_large());
  const Range range = range_of(block.end());
  EXPECT(range.code != CUDA_SUCCESS || range.base != block.ptr());
}

CHECK_CASE_SIZES("range", "each output may be NULL alone", plain) {
  const Block block(size.bytes);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  GIVES(0, cu.cuMemGetAddressRange(&base, nullptr, block + 4));
  GIVES(0, cu.cuMemGetAddressRange(nullptr, &bytes, block + 4));
  EXPECT_EQ(base, block.ptr());
  EXPECT_EQ(bytes, size.bytes);
}

CHECK_CASE_SIZES("range", "both outputs NULL", plain | observes) {
  const Block block(size.bytes);
  observe("code", cu.cuMemGetAddressRange(nullptr, nullptr, block));
}

CHECK_CASE("range", "an address that nobody allocated is refused", plain | observes) {
  int local = 0;
  const Range unknown = range_of(kNowhere), zero = range_of(0);
  const Range host = range_of(reinterpret_cast<CUdeviceptr>(&local));
  REFUSES(unknown.code);
  REFUSES(zero.code);
  REFUSES(host.code);
  observe("unknown", unknown.code);
  observe("zero", zero.code);
  observe("host memory", host.code);
}

CHECK_CASE_SIZES("range", "a freed block has no range", plain | observes) {
  CUdeviceptr ptr = 0;
  {
    const Block block(size.bytes);
    ptr = block;
  }
  const Range range = range_of(ptr);
  REFUSES(range.code);
  observe("code", range.code);
}

CHECK_CASE("range", "neighbours have ranges of their own", plain) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < 200; ++i) blocks.emplace_back(1 + i * 13);
  for (const Block& block : blocks) {
    const Range range = range_of(block.end() - 1);
    EXPECT_EQ(range.base, block.ptr());
    EXPECT_EQ(range.bytes, block.bytes());
  }
}

CHECK_CASE_SIZES("range", "another context's block", plain | observes) {
  const Block block(size.bytes);
  CUcontext own = nullptr;
  CALL(cu.cuCtxCreate_v2(&own, 0, first_device()));
  const Range range = range_of(block + 8);
  observe("code", range.code);
  observe_yes("its base", range.base == block);
  observe_yes("its bytes", range.bytes == size.bytes);
  CALL(cu.cuCtxDestroy(own));
  use_primary();
}

CHECK_CASE("range", "the range of rows made by cuMemAllocPitch begins at the first", plain) {
  CUdeviceptr ptr = 0;
  std::size_t pitch = 0;
  CALL(cu.cuMemAllocPitch(&ptr, &pitch, 700, 40, 4));
  const Range range = range_of(ptr + 39 * pitch + 699);
  GIVES(0, range.code);
  EXPECT_EQ(range.base, ptr);
  GIVES(0, cu.cuMemFree(ptr));
}
