// Every way into the driver leads through kvshim, once: linked, dlsym, dlvsym's lookup, and both
// forms of cuGetProcAddress, for every hooked name. Linked with the driver (here: the simulated
// one).
#include <cuda.h>
#include <fcntl.h>
#include <unistd.h>

#include "check.h"
#include "names.h"

#undef cuGetProcAddress

// Each exported name once more under a name of our own, because cuda.h redirects some of them.
extern "C" {
#define KVSHIM_HOOK(name, parameters, arguments) void linked_##name() __asm__(#name);
#include "hooks/hooks.def"
#undef KVSHIM_HOOK
}

namespace {

using GetV1 = CUresult (*)(const char*, void**, int, cuuint64_t);
using GetV2 = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

void* driver = nullptr;
GetV1 get_v1 = nullptr;
GetV2 get_v2 = nullptr;

enum Way { kLinked, kHandle, kDefault, kProgram, kDlsymOfDlsym, kGetV1, kGetV2, kGetOfGet, kWays };
constexpr const char* kWayNames[] = {
    "linked",         "dlsym(handle)",    "dlsym(RTLD_DEFAULT)", "dlsym(program)",
    "dlsym of dlsym", "cuGetProcAddress", "cuGetProcAddress_v2", "cuGetProcAddress of itself"};

void* linked(const char* name) {
#define KVSHIM_HOOK(hook, parameters, arguments) \
  if (std::strcmp(name, #hook) == 0) return reinterpret_cast<void*>(&linked_##hook);
#include "hooks/hooks.def"
#undef KVSHIM_HOOK
  return nullptr;
}

// The version with which this entry point is asked for: an older one where a `_v2` has come since.
int version_of(const char* name) {
  struct Older {
    const char* name;
    int version;
  };
  for (const Older older :
       {Older{"cuGetProcAddress", 11030}, Older{"cuMemGetInfo", 2000},
        Older{"cuDeviceTotalMem", 2000}, Older{"cuCtxDestroy", 2000},
        Older{"cuIpcOpenMemHandle", 4010}, Older{"cuDevicePrimaryCtxRelease", 7000},
        Older{"cuDevicePrimaryCtxReset", 7000}, Older{"cuMemcpyBatchAsync", 12080},
        Older{"cuMemcpyBatchAsync_ptsz", 12080}, Older{"cuMemcpy3DBatchAsync", 12080},
        Older{"cuMemcpy3DBatchAsync_ptsz", 12080}}) {
    if (std::strcmp(name, older.name) == 0) return older.version;
  }
  return 13000;
}

void* get(GetV2 function, const char* name) {
  void* answer = nullptr;
  const cuuint64_t flags = preload::is_per_thread(name) ? 2 : 0;
  const std::string base = preload::base_of(name);
  if (function(base.c_str(), &answer, version_of(name), flags, nullptr) != CUDA_SUCCESS) {
    return nullptr;
  }
  return answer;
}

void* find(Way way, const char* name) {
  const cuuint64_t flags = preload::is_per_thread(name) ? 2 : 0;
  const std::string base = preload::base_of(name);
  void* answer = nullptr;
  switch (way) {
    case kLinked:
      return linked(name);
    case kHandle:
      return dlsym(driver, name);
    case kDefault:
      return dlsym(RTLD_DEFAULT, name);
    case kProgram:
      return dlsym(dlopen(nullptr, RTLD_LAZY), name);
    case kDlsymOfDlsym: {
      using Lookup = void* (*)(void*, const char*);
      void* const libc = dlopen("libc.so.6", RTLD_LAZY);
      return reinterpret_cast<Lookup>(dlsym(libc, "dlsym"))(driver, name);
    }
    case kGetV1:
      return get_v1(base.c_str(), &answer, version_of(name), flags) == CUDA_SUCCESS ? answer
                                                                                    : nullptr;
    case kGetV2:
      return get(get_v2, name);
    case kGetOfGet: {
      if (get_v2("cuGetProcAddress", &answer, 12000, 0, nullptr) != CUDA_SUCCESS) return nullptr;
      return get(reinterpret_cast<GetV2>(answer), name);
    }
    default:
      return nullptr;
  }
}

// Lines of the simulated driver's log that are calls of this function.
int logged(const char* name) {
  const char* const path = std::getenv("KVSIM_LOG");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "re");
  if (file == nullptr) return 0;
  char line[4096];
  int count = 0;
  const std::size_t length = std::strlen(name);
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    // "name arguments -> code"; the whole word: cuMemAlloc_v2, not cuMemAlloc_v2_x.
    if (std::strncmp(line, name, length) == 0 && line[length] == ' ') ++count;
  }
  std::fclose(file);
  return count;
}

void calls_reach_the_driver_once(Way way) {
  const char* const label = kWayNames[way];
  CUdeviceptr block = 0;
  int before = logged("cuMemAlloc_v2");
  const auto alloc =
      reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(find(way, "cuMemAlloc_v2"));
  EXPECT_TEXT(alloc(&block, 1 << 20) == CUDA_SUCCESS && block != 0, label);
  EXPECT_TEXT(logged("cuMemAlloc_v2") == before + 1, label);

  before = logged("cuMemsetD8Async_ptsz");
  using Memset = CUresult (*)(CUdeviceptr, unsigned char, size_t, CUstream);
  const auto fill = reinterpret_cast<Memset>(find(way, "cuMemsetD8Async_ptsz"));
  EXPECT_TEXT(fill(block, 7, 4096, nullptr) == CUDA_SUCCESS, label);
  EXPECT_TEXT(logged("cuMemsetD8Async_ptsz") == before + 1, label);

  before = logged("cuMemGetInfo_v2");
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  const auto info = reinterpret_cast<CUresult (*)(size_t*, size_t*)>(find(way, "cuMemGetInfo_v2"));
  EXPECT_TEXT(info(&free_bytes, &total) == CUDA_SUCCESS && free_bytes <= total, label);
  EXPECT_TEXT(logged("cuMemGetInfo_v2") == before + 1, label);

  before = logged("cuMemFree_v2");
  const auto release = reinterpret_cast<CUresult (*)(CUdeviceptr)>(find(way, "cuMemFree_v2"));
  EXPECT_TEXT(release(block) == CUDA_SUCCESS, label);
  EXPECT_TEXT(logged("cuMemFree_v2") == before + 1, label);
}

}  // namespace

int main() {
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  EXPECT(driver != nullptr);
  get_v1 = reinterpret_cast<GetV1>(dlsym(driver, "cuGetProcAddress"));
  get_v2 = reinterpret_cast<GetV2>(dlsym(driver, "cuGetProcAddress_v2"));
  EXPECT(get_v1 != nullptr && get_v2 != nullptr);
  if (preload::failures != 0) return preload::result();

  for (const char* const name : preload::kHooked) {
    for (int way = 0; way < kWays; ++way) {
      const void* const found = find(static_cast<Way>(way), name);
      const std::string detail = std::string(kWayNames[way]) + " of " + name + ": " +
                                 preload::name_of(found) + " in " + preload::object_of(found);
      EXPECT_TEXT(preload::in_kvshim(found) && std::strcmp(preload::name_of(found), name) == 0,
                  detail.c_str());
    }
  }
  if (preload::failures != 0) return preload::result();

  CUcontext context = nullptr;
  EXPECT(cuInit(0) == CUDA_SUCCESS);
  EXPECT(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  EXPECT(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  for (int way = 0; way < kWays; ++way) calls_reach_the_driver_once(static_cast<Way>(way));
  return preload::result();
}
