// Copies between the host, small, medium and large blocks, in every direction.
#include <algorithm>
#include <cstring>
#include <vector>

#include "gpu.h"

using namespace contract;

namespace {

std::vector<Sized> all_sizes() {
  return {small_size(), medium_size(), large_size()};
}

template <typename Copy>
void between_all_sizes(Copy copy) {
  unsigned seed = 1;
  for (const Sized& from : all_sizes()) {
    for (const Sized& to : all_sizes()) {
      const std::size_t bytes = std::min(from.bytes, to.bytes);
      const Block source(from.bytes), target(to.bytes);
      write_bytes(source + from.bytes - bytes, pattern(bytes, ++seed));
      CALL(copy(target.ptr(), source + from.bytes - bytes, bytes));
      CALL(cu.cuCtxSynchronize());
      if (read_bytes(target, bytes) != pattern(bytes, seed)) {
        fail(__FILE__, __LINE__,
             std::string("from ") + from.name + " to " + to.name + ": wrong bytes");
      }
    }
  }
}

}  // namespace

CHECK_CASE("copies", "device to device between all sizes", plain) {
  between_all_sizes(cu.cuMemcpyDtoD_v2);
}

CHECK_CASE("copies", "device to device in a stream between all sizes", plain) {
  const Stream stream;
  between_all_sizes([&](CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return cu.cuMemcpyDtoDAsync(to, from, bytes, stream);
  });
}

CHECK_CASE("copies", "the copy that finds the direction itself, between all sizes", plain) {
  between_all_sizes(cu.cuMemcpy);
}

CHECK_CASE("copies", "the same in a stream", plain) {
  const Stream stream;
  between_all_sizes([&](CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return cu.cuMemcpyAsync(to, from, bytes, stream);
  });
}

CHECK_CASE("copies", "a kernel's copy between all sizes", plain) {
  between_all_sizes([](CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    copy_words(nullptr, to, from, bytes / 4);
    return CUDA_SUCCESS;
  });
}

CHECK_CASE_SIZES("copies", "host to device and back, odd offsets and lengths", plain) {
  const Block block(size.bytes);
  std::vector<std::uint8_t> image = pattern(size.bytes, 1);
  write_bytes(block, image);
  const struct {
    std::size_t offset, bytes;
  } parts[] = {{0, 1}, {1, 3}, {511, 2}, {777, 1234}, {size.bytes - 1, 1}, {size.bytes - 99, 99}};
  unsigned seed = 50;
  for (const auto& part : parts) {
    const auto data = pattern(part.bytes, ++seed);
    GIVES(0, cu.cuMemcpyHtoD(block + part.offset, data.data(), part.bytes));
    std::copy(data.begin(), data.end(), image.begin() + static_cast<long>(part.offset));
    EXPECT(read_bytes(block + part.offset, part.bytes) == data);
  }
  EXPECT(read_bytes(block, size.bytes) == image);
}

CHECK_CASE_SIZES("copies", "pinned host memory to device and back in a stream", plain) {
  const Stream stream;
  const Block block(size.bytes);
  void *there = nullptr, *back = nullptr;
  const std::size_t bytes = std::min<std::size_t>(size.bytes, 4 * kMiB);
  CALL(cu.cuMemHostAlloc(&there, bytes, 0));
  CALL(cu.cuMemHostAlloc(&back, bytes, 0));
  const auto data = pattern(bytes, 9);
  std::memcpy(there, data.data(), bytes);
  std::memset(back, 0, bytes);
  const CUdeviceptr at = block + (size.bytes - bytes);
  GIVES(0, cu.cuMemcpyHtoDAsync(at, there, bytes, stream));
  GIVES(0, cu.cuMemcpyDtoHAsync(back, at, bytes, stream));
  stream.finish();
  EXPECT(std::memcmp(there, back, bytes) == 0);
  CALL(cu.cuMemFreeHost(there));
  CALL(cu.cuMemFreeHost(back));
}

CHECK_CASE_SIZES("copies", "the copy that finds the direction itself, to and from the host",
                 plain) {
  const Block block(size.bytes);
  const auto data = pattern(size.bytes, 3);
  std::vector<std::uint8_t> back(size.bytes);
  GIVES(0, cu.cuMemcpy(block, reinterpret_cast<CUdeviceptr>(data.data()), size.bytes));
  GIVES(0, cu.cuMemcpy(reinterpret_cast<CUdeviceptr>(back.data()), block, size.bytes));
  EXPECT(back == data);
}

CHECK_CASE_SIZES("copies", "in a stream they come after the kernel and before the next", plain) {
  const Stream stream;
  HostFlag flag;
  const std::size_t words = size.bytes / 4;
  const Block block(size.bytes), copy(size.bytes);
  load_kernels();
  flag.hold(stream);
  fill(stream, block, words, 1);
  GIVES(0, cu.cuMemcpyDtoDAsync(copy, block, words * 4, stream));
  fill(stream, block, words, 2);
  EXPECT(stream.busy());
  flag.raise();
  stream.finish();
  EXPECT(holds_word(copy, words, 1));
  EXPECT(holds_word(block, words, 2));
}

CHECK_CASE_SIZES("copies", "rectangles from the host and back", plain) {
  const Block block(size.bytes);
  const std::size_t rows = 10, pitch = size.bytes / 12 / 4 * 4, width = pitch - 20;
  const auto data = pattern(width * rows, 5);
  CALL(cu.cuMemsetD8(block, 0xaa, size.bytes));
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = data.data();
  copy.srcPitch = width;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = block;
  copy.dstPitch = pitch;
  copy.WidthInBytes = width;
  copy.Height = rows;
  GIVES(0, cu.cuMemcpy2D(&copy));
  for (std::size_t row = 0; row < rows; ++row) {
    const std::vector<std::uint8_t> wanted(data.begin() + static_cast<long>(row * width),
                                           data.begin() + static_cast<long>((row + 1) * width));
    EXPECT(read_bytes(block + row * pitch, width) == wanted);
    EXPECT(holds_byte(block + row * pitch + width, 20, 0xaa));
  }
}

CHECK_CASE("copies", "rectangles between all sizes in a stream", plain) {
  const Stream stream;
  between_all_sizes([&](CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from;
    copy.dstDevice = to;
    copy.Height = 4;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = bytes / 4;
    return cu.cuMemcpy2DAsync(&copy, stream);
  });
}

CHECK_CASE("copies", "rectangles whose memory type is found by the address", plain) {
  for (const Sized& size : all_sizes()) {
    const Block block(size.bytes), other(size.bytes);
    write_bytes(block, pattern(4096, 8));
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = block;
    copy.dstDevice = other;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 1024;
    copy.Height = 4;
    GIVES(0, cu.cuMemcpy2D(&copy));
    EXPECT(read_bytes(other, 4096) == pattern(4096, 8));
  }
}

CHECK_CASE("copies", "within a block, between parts that do not overlap", plain) {
  for (const Sized& size : all_sizes()) {
    const Block block(size.bytes);
    const std::size_t part = size.bytes / 3;
    write_bytes(block, pattern(part, 2));
    GIVES(0, cu.cuMemcpyDtoD(block + 2 * part, block, part));
    EXPECT(read_bytes(block + 2 * part, part) == pattern(part, 2));
  }
}

CHECK_CASE_SIZES("copies", "one byte past the end is refused", plain) {
  const Block block(size.bytes);
  std::vector<std::uint8_t> data(64);
  GIVES(1, cu.cuMemcpyHtoD(block.end() - 63, data.data(), 64));
}

CHECK_CASE_SIZES("copies", "past the end and from nowhere", plain | observes) {
  const Block block(size.bytes);
  std::vector<std::uint8_t> data(64);
  const CUresult nowhere = cu.cuMemcpyDtoH(data.data(), kNowhere, 64);
  const CUresult far = cu.cuMemcpyDtoD(block, block, std::size_t{1} << 40);
  REFUSES(nowhere);
  REFUSES(far);
  observe("from nowhere", nowhere);
  observe("far past the end", far);
  observe("nothing", cu.cuMemcpyHtoD(block, data.data(), 0));
  GIVES(0, cu.cuCtxSynchronize());
}
