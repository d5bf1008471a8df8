// The copy engine of Hopper and newer (TMA) on a block: tensor maps over its base and over an
// interior address, tiles loaded and stored by them. Attention kernels describe a KV cache so.
// Which memory the block is, is not this program's business: scripts/gpu-check.sh runs it on each
// kind.
//
//   tensor_map MIB
//
// Prints one line of JSON. Exit 1: wrong bytes or a refused call; 77: the GPU is older.
#include <cuda.h>

#include <cstdint>
#include <vector>

#include "program.h"

namespace {

constexpr unsigned kWidth = 32;  // floats of a tile's row: 128 bytes
constexpr unsigned kRows = 64;
constexpr unsigned kTile = kWidth * kRows;

// One block a tile: loads it, adds one, stores it to the same place of the second map.
__global__ void add_one(const __grid_constant__ CUtensorMap from,
                        const __grid_constant__ CUtensorMap to) {
  __shared__ alignas(128) float tile[kTile];
  __shared__ alignas(8) std::uint64_t arrived;
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile));
  const auto barrier = static_cast<std::uint32_t>(__cvta_generic_to_shared(&arrived));
  const int row = static_cast<int>(blockIdx.x * kRows);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(static_cast<std::uint32_t>(sizeof(tile)))
                 : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(at),
        "l"(&from), "r"(0), "r"(row), "r"(barrier)
        : "memory");
  }
  __syncthreads();
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
        " selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier)
        : "memory");
  }
  for (unsigned i = threadIdx.x; i < kTile; i += blockDim.x) tile[i] += 1;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x != 0) return;
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to),
      "r"(0), "r"(row), "r"(at)
      : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// A matrix of `rows` rows of 32 floats at `at`.
CUtensorMap map_of(void* at, std::uint64_t rows) {
  CUtensorMap map{};
  const cuuint64_t sizes[] = {kWidth, rows};
  const cuuint64_t strides[] = {kWidth * sizeof(float)};
  const cuuint32_t box[] = {kWidth, kRows};
  const cuuint32_t steps[] = {1, 1};
  const CUresult code =
      cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, at, sizes, strides, box,
                             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled gives %d\n", static_cast<int>(code));
    std::exit(1);
  }
  return map;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t mib = argc == 2 ? std::strtoull(argv[1], nullptr, 10) : 0;
  if (mib < 4) {
    std::fprintf(stderr, "usage: tensor_map MIB (4 or more)\n");
    return 2;
  }
  int major = 0;
  CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major < 9) {
    std::fprintf(stderr, "the GPU is of capability %d: tensor maps come with 9\n", major);
    return 77;
  }
  float* block = nullptr;
  CHECK(cudaMalloc(&block, mib * kMiB));
  // The first half is the source, the second the target; the interior start is one of 16 bytes.
  const std::size_t half = mib * kMiB / sizeof(float) / 2;
  std::vector<float> host(half), back(half);
  for (std::size_t i = 0; i < half; ++i) host[i] = static_cast<float>(i % 65521);
  std::size_t wrong = 0;
  for (const std::size_t skip : {std::size_t{0}, std::size_t{1004}}) {
    const std::size_t tiles = (half - skip) / kTile;
    CHECK(cudaMemcpy(block, host.data(), half * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(block + half, 0, half * sizeof(float)));
    const CUtensorMap from = map_of(block + skip, tiles * kRows);
    const CUtensorMap to = map_of(block + half + skip, tiles * kRows);
    add_one<<<static_cast<unsigned>(tiles), 128>>>(from, to);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(back.data(), block + half, half * sizeof(float), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < half; ++i) {
      const bool inside = i >= skip && i < skip + tiles * kTile;
      if (back[i] != (inside ? host[i] + 1 : 0)) ++wrong;
    }
  }
  CHECK(cudaFree(block));
  std::printf("{\"mib\": %zu, \"wrong\": %zu}\n", mib, wrong);
  return wrong == 0 ? 0 : 1;
}
