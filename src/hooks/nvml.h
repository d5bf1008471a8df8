// What nvml.def needs of nvml.h, under the same names and with the same layout: the header is not
// part of every CUDA installation, and NVML's ABI of these has been the same since it had them.
#pragma once

extern "C" {

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st* nvmlDevice_t;

typedef struct nvmlMemory_st {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
} nvmlMemory_t;

typedef struct nvmlMemory_v2_st {
  unsigned version;  // size and number: 0x02000028
  unsigned long long total;
  unsigned long long reserved;  // by the driver: not in `used`
  unsigned long long free;
  unsigned long long used;
} nvmlMemory_v2_t;

typedef struct nvmlPciInfo_st {
  char busIdLegacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pciDeviceId;
  unsigned pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;

#define KVSHIM_HOOK(name, params, args) nvmlReturn_t name params;
#include "hooks/nvml.def"
#undef KVSHIM_HOOK
}

static_assert(sizeof(nvmlMemory_t) == 24 && sizeof(nvmlMemory_v2_t) == 40 &&
              sizeof(nvmlPciInfo_t) == 68);
