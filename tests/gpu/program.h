// What the programs of this folder share. They know nothing of kvshim: each is an ordinary CUDA
// program, run bare and under LD_PRELOAD by scripts/gpu-check.sh, and prints one line of JSON.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;
inline constexpr std::size_t kGiB = 1024 * kMiB;

// A runtime call that must succeed; the program ends where it does not.
#define CHECK(call)                                                                     \
  do {                                                                                  \
    const cudaError_t code_ = (call);                                                   \
    if (code_ != cudaSuccess) {                                                         \
      std::fprintf(stderr, "%s:%d: %s gives %d %s\n", __FILE__, __LINE__, #call, code_, \
                   cudaGetErrorName(code_));                                            \
      std::exit(1);                                                                     \
    }                                                                                   \
  } while (false)

inline double now_us() {
  using namespace std::chrono;
  return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

// Reads every byte at the speed of the memory.
static __global__ void read_all(const uint4* data, std::size_t count, unsigned long long* total) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  unsigned long long sum = 0;
#pragma unroll 8
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    const uint4 four = data[i];
    sum += four.x;
    sum += four.y;
    sum += four.z;
    sum += four.w;
  }
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}
