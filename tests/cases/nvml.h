// The part of NVML's interface that the cases use.
#pragma once

#include <dlfcn.h>

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

// NVML as ctypes and most frameworks reach it: opened, its functions looked up by name.
class Nvml {
  void* library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

 public:
#define KVSHIM_NVML_FUNCTION(name) \
  decltype(&::name) name = reinterpret_cast<decltype(&::name)>(dlsym(library_, #name))
  KVSHIM_NVML_FUNCTION(nvmlInit_v2);
  KVSHIM_NVML_FUNCTION(nvmlDeviceGetHandleByIndex_v2);
  KVSHIM_NVML_FUNCTION(nvmlDeviceGetMemoryInfo);
  KVSHIM_NVML_FUNCTION(nvmlDeviceGetMemoryInfo_v2);
#undef KVSHIM_NVML_FUNCTION

  nvmlDevice_t device(unsigned index) const {
    nvmlDevice_t found = nullptr;
    nvmlDeviceGetHandleByIndex_v2(index, &found);
    return found;
  }
};
