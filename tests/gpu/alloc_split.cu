// Blocks of many sizes, each filled, changed by a kernel and read back. Built with the shared and
// with the static runtime: both must reach kvshim in the same way, so the summaries must agree.
#include <vector>

#include "program.h"

__global__ void add_to_each(unsigned char* data, std::size_t bytes, unsigned char value) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < bytes;
       i += step) {
    data[i] = static_cast<unsigned char>(data[i] + value);
  }
}

// The number of bytes that are not `wanted` among the first, middle and last 4 KiB.
static std::size_t wrong_bytes(const unsigned char* device, std::size_t bytes,
                               unsigned char wanted) {
  std::vector<unsigned char> host(bytes < 4 * kKiB ? bytes : 4 * kKiB);
  std::size_t wrong = 0;
  for (const std::size_t at : {std::size_t{0}, (bytes - host.size()) / 2, bytes - host.size()}) {
    CHECK(cudaMemcpy(host.data(), device + at, host.size(), cudaMemcpyDeviceToHost));
    for (const unsigned char byte : host) wrong += byte != wanted;
  }
  return wrong;
}

int main() {
  // With a threshold of 64 MiB: two blocks at or over it, six under it.
  const std::size_t sizes[] = {1,         1000,      4 * kKiB,  kMiB, 3 * kMiB + 512,
                               20 * kMiB, 64 * kMiB, 256 * kMiB};
  std::vector<unsigned char*> blocks;
  std::size_t wrong = 0;
  unsigned char value = 1;
  for (const std::size_t bytes : sizes) {
    unsigned char* block = nullptr;
    CHECK(cudaMalloc(&block, bytes));
    CHECK(cudaMemset(block, value, bytes));
    add_to_each<<<512, 256>>>(block, bytes, 100);
    CHECK(cudaGetLastError());
    wrong += wrong_bytes(block, bytes, static_cast<unsigned char>(value + 100));
    blocks.push_back(block);
    ++value;
  }
  // Every second block stays: the account at exit must name what lives.
  for (std::size_t i = 0; i < blocks.size(); i += 2) CHECK(cudaFree(blocks[i]));
  CHECK(cudaDeviceSynchronize());
  std::printf("{\"blocks\": %zu, \"wrong\": %zu}\n", blocks.size(), wrong);
  return wrong == 0 ? 0 : 1;
}
