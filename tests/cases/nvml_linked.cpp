// A program that is linked with NVML, as monitoring tools are: prints what the device of CUDA's
// ordinal 0 (NVML's 1 on two simulated devices) has in all.
#include <cuda.h>

#include <cstdio>

#include "nvml.h"

int main() {
  nvmlDevice_t device = nullptr;
  nvmlMemory_t memory{};
  nvmlMemory_v2_t second{};
  second.version = 0x02000028;
  if (cuInit(0) != CUDA_SUCCESS || nvmlInit_v2() != 0 ||
      nvmlDeviceGetHandleByIndex_v2(1, &device) != 0 ||
      nvmlDeviceGetMemoryInfo(device, &memory) != 0 ||
      nvmlDeviceGetMemoryInfo_v2(device, &second) != 0) {
    return 1;
  }
  std::printf("%llu %llu\n", memory.total >> 20, second.total >> 20);
  return 0;
}
