// A stand-in libnvidia-ml.so.1 over the simulated devices: the few functions that a program needs
// to ask for memory. As on real machines, NVML counts in another order than CUDA (here backwards),
// shows a device that CUDA does not (the last one), and its total is larger by what the driver
// keeps.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "sim.h"

#define NVML_API extern "C" __attribute__((visibility("default")))

namespace {

enum Code { kSuccess = 0, kUninitialised = 1, kInvalid = 2, kVersionMismatch = 25 };
constexpr std::uint64_t kReserved = std::uint64_t{512} << 20;
constexpr std::uint64_t kOfTheHidden = std::uint64_t{4} << 30;

int initialised = 0;

struct Handle {
  int index;
};
Handle handles[17];

int cuda_devices() {
  int count = 0;
  while (kvsim_device_memory(count) != 0) ++count;
  return count;
}

// The CUDA device of a handle; -1 for the one that CUDA does not show.
int cuda_device(const Handle& handle) {
  return cuda_devices() - 1 - handle.index;
}

struct Pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char id_text[32];
};
struct Memory {
  unsigned long long total, free, used;
};
struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

Code memory_of(const Handle* handle, std::uint64_t* total, std::uint64_t* used) {
  if (initialised == 0) return kUninitialised;
  if (handle == nullptr) return kInvalid;
  const int device = cuda_device(*handle);
  *total = device < 0 ? kOfTheHidden : kvsim_device_memory(device);
  *used = device < 0 ? 0 : kvsim_device_bytes(device);
  return kSuccess;
}

}  // namespace

NVML_API int nvmlInit_v2() {
  ++initialised;
  return kSuccess;
}
NVML_API int nvmlShutdown() {
  if (initialised == 0) return kUninitialised;
  --initialised;
  return kSuccess;
}
NVML_API int nvmlDeviceGetCount_v2(unsigned* count) {
  if (initialised == 0) return kUninitialised;
  if (count == nullptr) return kInvalid;
  *count = static_cast<unsigned>(cuda_devices()) + 1;
  return kSuccess;
}
NVML_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle** handle) {
  if (initialised == 0) return kUninitialised;
  if (handle == nullptr || index > static_cast<unsigned>(cuda_devices())) return kInvalid;
  handles[index].index = static_cast<int>(index);
  *handle = &handles[index];
  return kSuccess;
}
NVML_API int nvmlDeviceGetPciInfo_v3(Handle* handle, Pci* pci) {
  if (initialised == 0) return kUninitialised;
  if (handle == nullptr || pci == nullptr) return kInvalid;
  const int device = cuda_device(*handle);
  std::memset(pci, 0, sizeof(*pci));
  pci->bus = device < 0 ? 0x20 : 0x41 + static_cast<unsigned>(device);
  std::snprintf(pci->legacy, sizeof(pci->legacy), "0000:%02X:00.0", pci->bus & 0xff);
  std::snprintf(pci->id_text, sizeof(pci->id_text), "00000000:%02X:00.0", pci->bus & 0xff);
  return kSuccess;
}
NVML_API int nvmlDeviceGetMemoryInfo(Handle* handle, Memory* memory) {
  std::uint64_t total = 0, used = 0;
  const Code code = memory == nullptr ? kInvalid : memory_of(handle, &total, &used);
  if (code != kSuccess) return code;
  // The first version counts what the driver keeps as used.
  *memory = {total + kReserved, total - used, used + kReserved};
  return kSuccess;
}
NVML_API int nvmlDeviceGetMemoryInfo_v2(Handle* handle, Memory2* memory) {
  std::uint64_t total = 0, used = 0;
  if (memory == nullptr) return kInvalid;
  if (memory->version != (sizeof(Memory2) | 2u << 24)) return kVersionMismatch;
  const Code code = memory_of(handle, &total, &used);
  if (code != kSuccess) return code;
  *memory = {memory->version, total + kReserved, kReserved, total - used, used};
  return kSuccess;
}
