// NULL out-parameters: OptiX asks cuMemGetInfo for one of its two answers only, and a hook that
// writes to NULL ends such programs. Every hooked function with each pointer argument NULL in turn
// gives the code that it gives without kvshim.
#include <dlfcn.h>

#include <cstring>
#include <functional>
#include <string>

#include "host.h"

#undef cuCtxDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuGetProcAddress

using namespace cases;

extern "C" {
CUresult cuGetProcAddress(const char*, void**, int, cuuint64_t);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr*, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr*, size_t, CUmemoryPool, CUstream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);
}

namespace {

void print(const char* what, std::size_t size, int code) {
  std::printf("%s %zu: %d\n", what, size, code);
}

void pointer_queries(CUdeviceptr block, std::size_t size) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  print("range, both", size, cuMemGetAddressRange(nullptr, nullptr, block));
  print("range, no base", size, cuMemGetAddressRange(nullptr, &bytes, block));
  print("range, no size", size, cuMemGetAddressRange(&base, nullptr, block));
  const CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_CONTEXT,     CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CU_POINTER_ATTRIBUTE_BUFFER_ID,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
  for (CUpointer_attribute attribute : attributes) {
    print("attribute, no place", attribute, cuPointerGetAttribute(nullptr, attribute, block));
    std::uint64_t room[2] = {};
    void* data[] = {room};
    print("attributes, no names", attribute, cuPointerGetAttributes(1, nullptr, data, block));
    print("attributes, no places", attribute,
          cuPointerGetAttributes(1, &attribute, nullptr, block));
    print("attributes, none", attribute, cuPointerGetAttributes(0, &attribute, data, block));
    print("set attribute, no value", attribute, cuPointerSetAttribute(nullptr, attribute, block));
  }
}

}  // namespace

CASE("NULL in place of each pointer argument gives the code of the bare driver") {
  const Result bare = run(kBare, "null_arguments", small_threshold());
  const Result preloaded = run(kPreloaded, "null_arguments", small_threshold());
  EXPECT_IN(bare.ended(0), bare.show());
  EXPECT_IN(preloaded.ended(0), preloaded.show());
  EXPECT(bare.out.size() > 1000);
  EXPECT_IN(bare.out == preloaded.out, difference(bare.out, preloaded.out));
}
SCENE(null_arguments) {
  setvbuf(stdout, nullptr, _IONBF, 0);
  const auto all = [](const char* when) {
    std::printf("%s\n", when);
    CUmemoryPool pool = nullptr;
    cuDeviceGetDefaultMemPool(&pool, 0);
    CUdeviceptr block = 0;
    std::size_t number = 0;
    for (const std::size_t size : {std::size_t{0}, std::size_t{100}, 3 * kMiB, 64 * kMiB}) {
      print("alloc", size, cuMemAlloc(nullptr, size));
      print("managed", size, cuMemAllocManaged(nullptr, size, CU_MEM_ATTACH_GLOBAL));
      print("async", size, cuMemAllocAsync(nullptr, size, nullptr));
      print("async_ptsz", size, cuMemAllocAsync_ptsz(nullptr, size, nullptr));
      if (pool != nullptr) {
        print("pool", size, cuMemAllocFromPoolAsync(nullptr, size, pool, nullptr));
        print("pool_ptsz", size, cuMemAllocFromPoolAsync_ptsz(nullptr, size, pool, nullptr));
      }
      print("no pool", size, cuMemAllocFromPoolAsync(&block, size, nullptr, nullptr));
      print("pitch, no block", size, cuMemAllocPitch(nullptr, &number, size, 10, 4));
      print("pitch, no pitch", size, cuMemAllocPitch(&block, nullptr, size, 10, 4));
      print("pitch, neither", size, cuMemAllocPitch(nullptr, nullptr, size, 10, 4));
    }
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle handle = 0;
    print("create, no handle", 0, cuMemCreate(nullptr, 2 * kMiB, &prop, 0));
    print("create, no properties", 0, cuMemCreate(&handle, 2 * kMiB, nullptr, 0));
    print("info, no free", 0, cuMemGetInfo(nullptr, &number));
    print("info, no total", 0, cuMemGetInfo(&number, nullptr));
    print("info, neither", 0, cuMemGetInfo(nullptr, nullptr));
    print("free", 0, cuMemFree(0));
    print("free async", 0, cuMemFreeAsync(0, nullptr));
    print("free async_ptsz", 0, cuMemFreeAsync_ptsz(0, nullptr));
    print("memset 0", 0, cuMemsetD8(0, 1, 0));
    print("memset 0 of 4", 0, cuMemsetD32(0, 1, 4));
    print("memset async 0", 0, cuMemsetD2D16Async(0, 16, 1, 4, 4, nullptr));
    print("no context to destroy", 0, cuCtxDestroy_v2(nullptr));
    pointer_queries(0, 0);
    void* function = nullptr;
    print("look-up, no name", 0, cuGetProcAddress_v2(nullptr, &function, 12000, 0, nullptr));
    print("look-up, no place", 0, cuGetProcAddress_v2("cuMemAlloc", nullptr, 12000, 0, nullptr));
    print("look-up, no status", 0, cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, nullptr));
    print("old look-up, no name", 0, cuGetProcAddress(nullptr, &function, 12000, 0));
    print("old look-up, no place", 0, cuGetProcAddress("cuMemAlloc", nullptr, 12000, 0));
  };
  all("before cuInit");
  OK(cuInit(0));
  all("without a context");
  use_device();
  all("with a context");
  for (const std::size_t size : {std::size_t{100}, 3 * kMiB}) {
    const CUdeviceptr block = allocate(size);
    pointer_queries(block, size);
    OK(cuMemFree(block));
  }
  return 0;
}

CASE("dlsym and dlvsym of NULL handles and unknown names, as without kvshim") {
  const Result bare = run(kBare, "lookups");
  const Result preloaded = run(kPreloaded, "lookups");
  EXPECT_IN(bare.ended(0) && preloaded.ended(0), bare.show() + preloaded.show());
  EXPECT_IN(bare.out == preloaded.out, difference(bare.out, preloaded.out));
}
SCENE(lookups) {
  const auto tell = [](void* found) {
    const char* const error = dlerror();
    // The text begins with the object's name, which differs by nothing but the preload.
    const char* const reason = error != nullptr ? std::strstr(error, "undefined symbol") : nullptr;
    std::printf("%d %s\n", found != nullptr, error == nullptr ? "-" : reason ? reason : "other");
  };
  tell(dlsym(RTLD_DEFAULT, "no_such_name"));
  tell(dlsym(RTLD_DEFAULT, ""));
  tell(dlsym(nullptr, "printf"));
  tell(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  tell(dlvsym(RTLD_DEFAULT, "cuMemAlloc_v2", "NO_SUCH_VERSION"));
  tell(dlsym(RTLD_DEFAULT, "cuMemAlloc_v9"));
  return 0;
}
