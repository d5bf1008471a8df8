// The part of NVML's interface that the cases use.
#pragma once

extern "C" {
typedef struct nvmlDevice_st* nvmlDevice_t;
struct nvmlMemory_t {
  unsigned long long total, free, used;
};
struct nvmlMemory_v2_t {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
int nvmlInit_v2();
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device);
int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory);
int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory);
}
