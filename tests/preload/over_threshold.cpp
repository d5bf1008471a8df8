// The program of CUDA 11.3 and later, and of every static runtime: it opens the driver, asks dlsym
// for cuGetProcAddress_v2 only and gets everything else from there. Run with
// KVSHIM_THRESHOLD=64MiB.
#include <cuda.h>

#include "check.h"

namespace {

using Get = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

void* driver = nullptr;
Get get = nullptr;

template <typename Function>
Function find(const char* base, int version) {
  void* out = nullptr;
  EXPECT_TEXT(get(base, &out, version, 0, nullptr) == CUDA_SUCCESS, base);
  return reinterpret_cast<Function>(out);
}

// Calls of this function in the simulated driver's log, for at least this many bytes: kvshim makes
// tiny native blocks of its own, because freeing one waits for the device.
int calls(const char* name, unsigned long long at_least) {
  const auto size = reinterpret_cast<size_t (*)()>(dlsym(driver, "kvsim_log_size"))();
  const auto copy =
      reinterpret_cast<int (*)(size_t, char*, size_t)>(dlsym(driver, "kvsim_log_line"));
  int count = 0;
  for (size_t i = 0; i < size; ++i) {
    char line[700] = "";
    copy(i, line, sizeof(line));
    const size_t length = std::strlen(name);
    if (std::strncmp(line, name, length) != 0 || line[length] != ' ') continue;
    const char* const bytes = std::strchr(line, '=');
    if (bytes != nullptr && std::strtoull(bytes + 1, nullptr, 0) >= at_least) ++count;
  }
  return count;
}

}  // namespace

int main() {
  driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr || dlsym(driver, "kvsim_log_line") == nullptr) {
    preload::skip("no simulated driver");
  }
  get = reinterpret_cast<Get>(dlsym(driver, "cuGetProcAddress_v2"));
  // As the runtime does: the resolver is asked for itself, and the answer used from then on.
  void* out = nullptr;
  EXPECT(get("cuGetProcAddress", &out, 12000, 0, nullptr) == CUDA_SUCCESS);
  EXPECT(preload::in_kvshim(out));
  get = reinterpret_cast<Get>(out);

  CUcontext context = nullptr;
  EXPECT(find<CUresult (*)(unsigned)>("cuInit", 2000)(0) == CUDA_SUCCESS);
  const auto retain = find<CUresult (*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain", 7000);
  EXPECT(retain(&context, 0) == CUDA_SUCCESS);
  EXPECT(find<CUresult (*)(CUcontext)>("cuCtxSetCurrent", 4000)(context) == CUDA_SUCCESS);
  const auto alloc = find<CUresult (*)(CUdeviceptr*, size_t)>("cuMemAlloc", 3020);
  const auto release = find<CUresult (*)(CUdeviceptr)>("cuMemFree", 3020);

  CUdeviceptr large = 0;
  EXPECT(alloc(&large, 64u << 20) == CUDA_SUCCESS && large != 0);
  EXPECT(calls("cuMemAllocManaged", 64u << 20) == 1);
  CUdeviceptr small = 0;
  EXPECT(alloc(&small, 4u << 20) == CUDA_SUCCESS && small != 0);
  EXPECT(calls("cuMemCreate", 4u << 20) == 1);
  EXPECT(calls("cuMemAllocManaged", 0) == 1);
  EXPECT(calls("cuMemAlloc_v2", 4096) == 0);
  EXPECT(release(large) == CUDA_SUCCESS);
  EXPECT(release(small) == CUDA_SUCCESS);
  return preload::result();
}
