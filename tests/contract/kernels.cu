// The device side of the contract suite. kernels.h holds the PTX of this file, edited down to
// PTX 7.0 / sm_70 so that any driver since CUDA 11 can compile it at load time.
// The names and parameters are known to the simulated driver too: change all three together.
#include <cstdint>

extern "C" {

__device__ static uint64_t now() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

__global__ void kv_spin(uint64_t nanoseconds) {
  const uint64_t end = now() + nanoseconds;
  while (now() < end) {
  }
}

__global__ void kv_fill(uint32_t* data, uint64_t count, uint32_t value) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
#pragma unroll 1
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    data[i] = value;
}

__global__ void kv_add(uint32_t* data, uint64_t count, uint32_t value) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
#pragma unroll 1
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    data[i] += value;
}

__global__ void kv_copy(uint32_t* dst, const uint32_t* src, uint64_t count) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
#pragma unroll 1
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    dst[i] = src[i];
}

// Adds every element to *out, which the caller has set to zero.
__global__ void kv_sum(const uint32_t* data, uint64_t count, unsigned long long* out) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  unsigned long long sum = 0;
#pragma unroll 1
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    sum += data[i];
  atomicAdd(out, sum);
}

// Waits until the word is not zero, and for 5 seconds at most: a failed check must not hang a GPU.
__global__ void kv_flag(volatile uint32_t* flag) {
  const uint64_t end = now() + 5000000000ull;
  while (*flag == 0 && now() < end) {
  }
}
}
