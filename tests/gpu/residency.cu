// One block of the size given: how long its allocation takes and how fast the GPU reads it, the
// first time and then. Which memory it is, is not this program's business: scripts/gpu-check.sh
// runs it under each kind and each KVSHIM_ADVICE.
//
//   residency MIB READS
//
// Exit 77 where the GPU has less free than the block and 2 GiB: managed memory is never asked for
// beyond that (tests/gpu and shared machines: oversubscription is for the simulated driver).
#include <vector>

#include "program.h"

__global__ void write_some(uint4* data, std::size_t count, unsigned value) {
  const std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  if (i < count) data[i] = make_uint4(value, value, value, value);
}

int main(int argc, char** argv) {
  const std::size_t mib = argc == 3 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const int reads = argc == 3 ? std::atoi(argv[2]) : 0;
  if (mib == 0 || reads < 1) {
    std::fprintf(stderr, "usage: residency MIB READS\n");
    return 2;
  }
  const std::size_t bytes = mib * kMiB;
  int processors = 0;
  unsigned long long* total = nullptr;
  cudaEvent_t begun, ended;
  std::size_t free_bytes = 0, all_bytes = 0;
  CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  if (free_bytes < bytes + 2 * kGiB) {
    std::fprintf(stderr, "the GPU has %zu MiB free: not enough for a block of %zu MiB\n",
                 free_bytes / kMiB, mib);
    return 77;
  }
  CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  CHECK(cudaMalloc(&total, sizeof(*total)));
  CHECK(cudaEventCreate(&begun));
  CHECK(cudaEventCreate(&ended));

  // Clocks up, in memory that is not what is measured.
  void* warm = nullptr;
  CHECK(cudaMalloc(&warm, 256 * kMiB));
  for (const double until = now_us() + 300e3; now_us() < until;) {
    read_all<<<processors * 16, 512>>>(static_cast<uint4*>(warm), 256 * kMiB / 16, total);
    CHECK(cudaDeviceSynchronize());
  }
  CHECK(cudaFree(warm));

  void* block = nullptr;
  const double before = now_us();
  CHECK(cudaMalloc(&block, bytes));
  const double allocate_ms = (now_us() - before) / 1000;

  std::vector<double> rates;
  for (int i = 0; i <= reads; ++i) {
    CHECK(cudaEventRecord(begun));
    read_all<<<processors * 16, 512>>>(static_cast<uint4*>(block), bytes / 16, total);
    CHECK(cudaEventRecord(ended));
    CHECK(cudaEventSynchronize(ended));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begun, ended));
    rates.push_back(static_cast<double>(bytes) / ms / 1e6);
  }
  // What the GPU writes at both ends arrives, by a copy to the host.
  write_some<<<1, 32>>>(static_cast<uint4*>(block), 32, 7);
  write_some<<<1, 32>>>(static_cast<uint4*>(block) + bytes / 16 - 32, 32, 9);
  unsigned ends[2] = {};
  CHECK(cudaMemcpy(&ends[0], block, 4, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(&ends[1], static_cast<char*>(block) + bytes - 4, 4, cudaMemcpyDeviceToHost));
  const bool right = ends[0] == 7 && ends[1] == 9;

  cudaPointerAttributes attributes{};
  CHECK(cudaPointerGetAttributes(&attributes, block));
  const double before_free = now_us();
  CHECK(cudaFree(block));
  const double free_ms = (now_us() - before_free) / 1000;
  std::printf(
      "{\"right\": %s, \"type\": %d, \"mib\": %zu, \"allocate_ms\": %.1f, \"free_ms\": %.1f, "
      "\"first\": %.1f, \"then\": [",
      right ? "true" : "false", static_cast<int>(attributes.type), mib, allocate_ms, free_ms,
      rates[0]);
  for (std::size_t i = 1; i < rates.size(); ++i) {
    std::printf("%s%.1f", i == 1 ? "" : ", ", rates[i]);
  }
  std::printf("]}\n");
  return right ? 0 : 1;
}
