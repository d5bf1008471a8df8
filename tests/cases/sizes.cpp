// Odd sizes, many small blocks, rows with a pitch: what they cost the driver and what the program
// is told.
#include "host.h"

using namespace cases;

namespace {

std::size_t number_in(const std::string& call, const char* key) {
  const std::size_t at = call.find(key);
  return at == std::string::npos
             ? 0
             : std::strtoull(call.c_str() + at + std::string(key).size(), nullptr, 10);
}

// Bytes of device memory that a run took: physical handles and native blocks (rounded as natively).
std::size_t taken(const Result& result) {
  std::size_t sum = 0;
  for (const std::string& call : result.calls_of("cuMemCreate")) sum += number_in(call, "size=");
  return sum;
}

}  // namespace

CASE("20,000 blocks of 256 bytes, and of 4 KiB: cuMemCreate bytes within a tenth of native") {
  const struct {
    const char* scene;
    std::size_t native;  // bytes that cuMemAlloc takes for them, 512 being its unit
  } rows[] = {{"tiny", 20000 * 512}, {"pages", 20000 * 4096}, {"mebibytes", 400 * kMiB}};
  for (const auto& row : rows) {
    const Result bare = run(kBare, row.scene);
    const Result result = run(kPreloaded, row.scene);
    EXPECT_IN(bare.ended(0) && result.ended(0), bare.show() + result.show());
    const std::size_t created = taken(result);
    EXPECT_IN(created >= row.native && created <= row.native / 10 * 11 + 4 * kMiB,
              std::string(row.scene) + ": " + std::to_string(created));
    EXPECT_IN(result.count("cuMemCreate") <= row.native / (2 * kMiB) + 20, result.show());
    // No slower than a few times the bare driver, which here is a simulation without any cost.
    EXPECT_IN(result.seconds < 10, std::to_string(result.seconds));
  }
}
namespace {
int many(int number, std::size_t bytes) {
  use_device();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < number; ++i) {
    blocks.push_back(allocate(bytes));
    if (blocks.back() % 512 != 0) return 1;
  }
  for (const CUdeviceptr block : blocks) OK(cuMemFree(block));
  return 0;
}
}  // namespace
SCENE(tiny) {
  return many(20000, 256);
}
SCENE(pages) {
  return many(20000, 4096);
}
SCENE(mebibytes) {
  return many(400, kMiB);
}

CASE("odd sizes at granularities of 64 KiB, 2 MiB and 512 MiB: rounded for the driver only") {
  for (const char* const granularity : {"64K", "2M", "512M"}) {
    const Result result =
        run(kPreloaded, "odd", {{"KVSIM_GRANULARITY", granularity}, {"KVSIM_MEMORY", "16G"}});
    EXPECT_IN(result.ended(0) && result.err.empty(), granularity + result.show());
    // Released, unmapped and freed in the size that was created.
    std::size_t created = 0, unmapped = 0;
    for (const std::string& call : result.calls_of("cuMemCreate")) {
      if (call.find("handles=8") == std::string::npos) created += number_in(call, "size=");
    }
    for (const std::string& call : result.calls_of("cuMemUnmap")) {
      unmapped += number_in(call, "size=");
      EXPECT_IN(call.ends_with("-> 0"), call);
    }
    EXPECT_IN(created != 0 && unmapped <= created,
              std::to_string(created) + " created, " + std::to_string(unmapped) + " unmapped");
  }
}
SCENE(odd) {
  use_device();
  const std::size_t sizes[] = {1,        512,          6912,        kMiB, 2 * kMiB - 1,
                               2 * kMiB, 2 * kMiB + 1, 5 * kMiB + 3};
  for (const std::size_t bytes : sizes) {
    const CUdeviceptr block = allocate(bytes);
    EXPECT(block % 512 == 0 && (bytes < 2 * kMiB || block % (2 * kMiB) == 0));
    CUdeviceptr base = 0;
    std::size_t size = 0;
    for (const CUdeviceptr inside : {block, block + bytes / 2, block + bytes - 1}) {
      OK(cuMemGetAddressRange(&base, &size, inside));
      EXPECT(base == block && size == bytes);
    }
    unsigned char first = 4, last = 0;
    OK(cuMemcpyHtoD(block + bytes - 1, &first, 1));
    OK(cuMemcpyDtoH(&last, block + bytes - 1, 1));
    EXPECT(last == 4);
    OK(cuMemFree(block));
    CODE(cuMemFree(block), CUDA_ERROR_INVALID_VALUE);
  }
  return 0;
}

CASE("cuMemAllocPitch over and under the threshold: pitch as natively, routed by height x pitch") {
  const Result bare = run(kBare, "rows", small_threshold());
  const Result preloaded = run(kPreloaded, "rows", small_threshold());
  EXPECT_IN(bare.ended(0) && preloaded.ended(0), bare.show() + preloaded.show());
  EXPECT_IN(bare.out == preloaded.out, difference(bare.out, preloaded.out));
  EXPECT_IN(preloaded.count("cuMemAllocManaged bytes=67108864") == 3, preloaded.show());
  EXPECT_IN(preloaded.count("cuMemAllocManaged") == 3, preloaded.show());
  EXPECT_IN(preloaded.count("cuMemAllocPitch_v2 width=600 height=100 element=5") == 1,
            preloaded.show());
  EXPECT_IN(summary_of(preloaded.err).kinds["managed"].peak_bytes == "64 MiB", preloaded.err);
}
SCENE(rows) {
  use_device();
  for (const unsigned element : {4u, 8u, 16u, 5u}) {
    for (const std::size_t height : {std::size_t{100}, 64 * kMiB / 1024 - 1, 64 * kMiB / 1024}) {
      CUdeviceptr block = 0;
      std::size_t pitch = 0;
      const CUresult code = cuMemAllocPitch(&block, &pitch, 600, height, element);
      std::printf("%u %zu: %d %zu %d\n", element, height, code, pitch, block % 512 == 0);
      if (code != CUDA_SUCCESS) break;
      OK(cuMemsetD2D8(block, pitch, 1, 600, height));
      OK(cuMemsetD2D32(block, pitch, 2, 100, height));
      unsigned char row[1024] = {};
      OK(cuMemcpyDtoH(row, block + (height - 1) * pitch, 600));
      std::printf("%d %d %d\n", row[0], row[399 / 4 * 4], row[599]);
      std::size_t size = 0;
      OK(cuMemGetAddressRange(nullptr, &size, block + pitch));
      std::printf("size %zu\n", size);
      OK(cuMemFree(block));
    }
  }
  return 0;
}

CASE("free and total as the program is told: free <= total, small blocks and their return exact") {
  for (const How how : {kBare, kPreloaded}) {
    const Result result = run(how, "information");
    EXPECT_IN(result.ended(0), result.show());
  }
}
SCENE(information) {
  use_device();
  std::size_t before = 0, now = 0, total = 0;
  OK(cuMemFree(allocate(512)));
  OK(cuMemGetInfo(&before, &total));
  EXPECT(before <= total && total != 0);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 2000; ++i) blocks.push_back(allocate(4096));
  OK(cuMemGetInfo(&now, &total));
  EXPECT(now <= before && before - now <= 2000 * 4096 + 4 * kMiB && before - now >= 2000 * 4096);
  for (const CUdeviceptr block : blocks) OK(cuMemFree(block));
  OK(cuMemGetInfo(&now, &total));
  EXPECT(now <= total && before - now <= 2 * kMiB);
  return 0;
}
