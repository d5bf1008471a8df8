// cuMemAllocPitch: rows of memory.
#include "gpu.h"

using namespace contract;

namespace {

struct Rows {
  CUdeviceptr ptr = 0;
  std::size_t pitch = 0;
  ~Rows() {
    if (ptr != 0) GIVES(0, cu.cuMemFree(ptr));
  }
};

}  // namespace

CHECK_CASE("pitch", "rows are at least as wide as asked for, and 512-byte aligned", plain) {
  for (const std::size_t width : {1, 100, 512, 1000, 4097}) {
    for (const unsigned element : {4u, 8u, 16u}) {
      Rows rows;
      GIVES(0, cu.cuMemAllocPitch(&rows.ptr, &rows.pitch, width, 33, element));
      EXPECT(rows.pitch >= width);
      EXPECT_EQ(rows.ptr % 512, 0u);
      EXPECT_EQ(rows.pitch % 16, 0u);
    }
  }
}

CHECK_CASE("pitch", "which pitch is chosen", plain | observes) {
  for (const std::size_t width : {1, 100, 512, 513, 1000, 4097, 100000}) {
    Rows rows;
    CALL(cu.cuMemAllocPitch(&rows.ptr, &rows.pitch, width, 4, 4));
    observe(std::to_string(width).c_str(), static_cast<long long>(rows.pitch));
  }
}

CHECK_CASE("pitch", "all of every row is memory (small and large)", plain) {
  for (const std::size_t height : {std::size_t{5}, option_large() / 4096 + 1}) {
    Rows rows;
    CALL(cu.cuMemAllocPitch(&rows.ptr, &rows.pitch, 4000, height, 4));
    GIVES(0, cu.cuMemsetD8(rows.ptr, 9, rows.pitch * height));
    EXPECT(holds_byte(rows.ptr, 4000, 9));
    EXPECT(holds_byte(rows.ptr + rows.pitch * (height - 1), 4000, 9));
    fill(nullptr, rows.ptr, rows.pitch * height / 4, 2);
    EXPECT_EQ(sum(nullptr, rows.ptr, rows.pitch * height / 4), 2 * (rows.pitch * height / 4));
  }
}

CHECK_CASE("pitch", "a memset of the rectangle leaves the padding alone", plain) {
  Rows rows;
  CALL(cu.cuMemAllocPitch(&rows.ptr, &rows.pitch, 100, 10, 4));
  CALL(cu.cuMemsetD8(rows.ptr, 1, rows.pitch * 10));
  GIVES(0, cu.cuMemsetD2D8(rows.ptr, rows.pitch, 2, 100, 10));
  for (std::size_t row = 0; row < 10; ++row) {
    EXPECT(holds_byte(rows.ptr + row * rows.pitch, 100, 2));
    EXPECT(holds_byte(rows.ptr + row * rows.pitch + 100, rows.pitch - 100, 1));
  }
}

CHECK_CASE("pitch", "the range is pitch times height", plain | observes) {
  for (const std::size_t height : {std::size_t{7}, option_large() / 1024 + 3}) {
    Rows rows;
    CALL(cu.cuMemAllocPitch(&rows.ptr, &rows.pitch, 1000, height, 4));
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    GIVES(0, cu.cuMemGetAddressRange(&base, &bytes, rows.ptr + rows.pitch));
    EXPECT(base == rows.ptr);
    EXPECT(bytes >= rows.pitch * (height - 1) + 1000);
    observe("bytes over pitch times height",
            static_cast<long long>(bytes) - static_cast<long long>(rows.pitch * height));
  }
}

CHECK_CASE("pitch", "element sizes other than 4, 8 and 16", plain | observes) {
  for (const unsigned element : {0u, 1u, 2u, 3u, 12u, 32u}) {
    Rows rows;
    observe(std::to_string(element).c_str(),
            cu.cuMemAllocPitch(&rows.ptr, &rows.pitch, 100, 10, element));
  }
}

CHECK_CASE("pitch", "no rows or no columns", plain | observes) {
  Rows rows;
  const CUresult no_width = cu.cuMemAllocPitch(&rows.ptr, &rows.pitch, 0, 10, 4);
  observe("width 0", no_width);
  if (no_width == CUDA_SUCCESS && rows.ptr != 0) cu.cuMemFree(rows.ptr);
  rows.ptr = 0;
  const CUresult no_height = cu.cuMemAllocPitch(&rows.ptr, &rows.pitch, 100, 0, 4);
  observe("height 0", no_height);
  if (no_height == CUDA_SUCCESS && rows.ptr != 0) cu.cuMemFree(rows.ptr);
  rows.ptr = 0;
}

CHECK_CASE("pitch", "no place for an output", plain | observes) {
  CUdeviceptr ptr = 0;
  std::size_t pitch = 0;
  const CUresult no_pointer = cu.cuMemAllocPitch(nullptr, &pitch, 100, 10, 4);
  observe("no place for the pointer", no_pointer);
  REFUSES(no_pointer);
  const CUresult no_pitch = cu.cuMemAllocPitch(&ptr, nullptr, 100, 10, 4);
  observe("no place for the pitch", no_pitch);
}

CHECK_CASE("pitch", "more than any machine has is refused", plain | observes) {
  CUdeviceptr ptr = 0;
  std::size_t pitch = 0;
  const std::size_t huge = std::size_t{1} << 40;
  const CUresult rows = cu.cuMemAllocPitch(&ptr, &pitch, 4096, huge, 4);
  const CUresult both = cu.cuMemAllocPitch(&ptr, &pitch, huge, huge, 4);
  REFUSES(rows);
  REFUSES(both);
  observe("4096 x 2^40", rows);
  observe("2^40 x 2^40 overflows", both);
}

CHECK_CASE("pitch", "freed once, and not twice", plain) {
  for (const std::size_t height : {std::size_t{5}, option_large() / 4096}) {
    Rows rows;
    CALL(cu.cuMemAllocPitch(&rows.ptr, &rows.pitch, 4096, height, 4));
    GIVES(1, cu.cuMemFree(rows.ptr + rows.pitch));
    GIVES(0, cu.cuMemFree(rows.ptr));
    GIVES(1, cu.cuMemFree(rows.ptr));
    rows.ptr = 0;
  }
}
