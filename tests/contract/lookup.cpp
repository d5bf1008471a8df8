// The ways to a driver function: dlsym, dlvsym, RTLD_DEFAULT and the rules of dlerror.
// cuGetProcAddress is in lookup_answers.cpp.
#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <string>

#include "gpu.h"

using namespace contract;

namespace {

const char* const kMemoryNames[] = {"cuMemAlloc_v2",
                                    "cuMemAllocPitch_v2",
                                    "cuMemFree_v2",
                                    "cuMemAllocManaged",
                                    "cuMemGetInfo_v2",
                                    "cuMemGetAddressRange_v2",
                                    "cuPointerGetAttribute",
                                    "cuPointerGetAttributes",
                                    "cuPointerSetAttribute",
                                    "cuMemAllocAsync",
                                    "cuMemAllocAsync_ptsz",
                                    "cuMemAllocFromPoolAsync",
                                    "cuMemAllocFromPoolAsync_ptsz",
                                    "cuMemFreeAsync",
                                    "cuMemFreeAsync_ptsz",
                                    "cuMemsetD8_v2",
                                    "cuMemsetD8_v2_ptds",
                                    "cuMemsetD16_v2",
                                    "cuMemsetD16_v2_ptds",
                                    "cuMemsetD32_v2",
                                    "cuMemsetD32_v2_ptds",
                                    "cuMemsetD2D8_v2",
                                    "cuMemsetD2D8_v2_ptds",
                                    "cuMemsetD2D16_v2",
                                    "cuMemsetD2D16_v2_ptds",
                                    "cuMemsetD2D32_v2",
                                    "cuMemsetD2D32_v2_ptds",
                                    "cuMemsetD8Async",
                                    "cuMemsetD8Async_ptsz",
                                    "cuMemsetD16Async",
                                    "cuMemsetD16Async_ptsz",
                                    "cuMemsetD32Async",
                                    "cuMemsetD32Async_ptsz",
                                    "cuMemsetD2D8Async",
                                    "cuMemsetD2D8Async_ptsz",
                                    "cuMemsetD2D16Async",
                                    "cuMemsetD2D16Async_ptsz",
                                    "cuMemsetD2D32Async",
                                    "cuMemsetD2D32Async_ptsz",
                                    "cuMemCreate",
                                    "cuMemRelease",
                                    "cuMemMap",
                                    "cuMemUnmap",
                                    "cuMemSetAccess",
                                    "cuMemAddressReserve",
                                    "cuMemAddressFree",
                                    "cuIpcGetMemHandle",
                                    "cuIpcOpenMemHandle_v2",
                                    "cuIpcCloseMemHandle",
                                    "cuGetProcAddress",
                                    "cuGetProcAddress_v2"};

// The object file an address lies in.
std::string object_of(const void* address) {
  Dl_info info{};
  if (address == nullptr || dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "none";
  return info.dli_fname;
}

std::string driver_object() {
  return object_of(by_name("cuDeviceGetCount"));
}

}  // namespace

CHECK_CASE("lookup", "dlsym on the driver finds every memory function by its exact name", plain) {
  for (const char* name : kMemoryNames) {
    if (by_name(name) == nullptr) fail(__FILE__, __LINE__, std::string(name) + " is not found");
  }
}

CHECK_CASE("lookup", "dlsym gives the same answer each time", plain) {
  for (const char* name : kMemoryNames) EXPECT(by_name(name) == by_name(name));
}

CHECK_CASE("lookup", "different functions have different addresses", plain) {
  EXPECT(by_name("cuMemAlloc_v2") != by_name("cuMemFree_v2"));
  EXPECT(by_name("cuMemsetD8Async") != by_name("cuMemsetD8Async_ptsz"));
  EXPECT(by_name("cuMemsetD8_v2") != by_name("cuMemsetD8_v2_ptds"));
  EXPECT(by_name("cuMemAllocAsync") != by_name("cuMemAllocAsync_ptsz"));
  EXPECT(by_name("cuGetProcAddress") != by_name("cuGetProcAddress_v2"));
}

CHECK_CASE("lookup", "the function that dlsym gives allocates and frees", plain) {
  const auto allocate = reinterpret_cast<decltype(&::cuMemAlloc_v2)>(by_name("cuMemAlloc_v2"));
  const auto release = reinterpret_cast<decltype(&::cuMemFree_v2)>(by_name("cuMemFree_v2"));
  REQUIRE(allocate != nullptr && release != nullptr);
  for (const std::size_t bytes : {std::size_t{4096}, option_large()}) {
    CUdeviceptr ptr = 0;
    GIVES(0, allocate(&ptr, bytes));
    GIVES(0, release(ptr));
    GIVES(1, release(ptr));
  }
}

CHECK_CASE("lookup", "memory from one way in can be freed through every other", plain) {
  const auto dl_free = reinterpret_cast<decltype(&::cuMemFree_v2)>(by_name("cuMemFree_v2"));
  const auto dl_alloc = reinterpret_cast<decltype(&::cuMemAlloc_v2)>(by_name("cuMemAlloc_v2"));
  const auto gp_free = reinterpret_cast<decltype(&::cuMemFree_v2)>(by_version("cuMemFree", 12000));
  const auto gp_alloc =
      reinterpret_cast<decltype(&::cuMemAlloc_v2)>(by_version("cuMemAlloc", 12000));
  REQUIRE(dl_free && dl_alloc && gp_free && gp_alloc);
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB, option_large()}) {
    CUdeviceptr ptr = 0;
    GIVES(0, dl_alloc(&ptr, bytes));
    GIVES(0, gp_free(ptr));
    GIVES(0, gp_alloc(&ptr, bytes));
    GIVES(0, dl_free(ptr));
  }
}

CHECK_CASE("lookup", "the 32-bit names of old stay the driver's own", plain) {
  for (const char* name :
       {"cuMemAlloc", "cuMemFree", "cuMemGetAddressRange", "cuMemAllocPitch", "cuMemsetD8",
        "cuMemsetD16", "cuMemsetD32", "cuMemsetD2D8", "cuMemsetD2D16", "cuMemsetD2D32"}) {
    void* const old = by_name(name);
    if (old == nullptr) continue;  // a driver may drop them
    if (object_of(old) != driver_object()) {
      fail(__FILE__, __LINE__, std::string(name) + " comes from " + object_of(old));
    }
    EXPECT(old != by_name((std::string(name) + "_v2").c_str()));
  }
}

CHECK_CASE("lookup", "functions that have nothing to do with memory come from the driver", plain) {
  for (const char* name : {"cuDriverGetVersion", "cuDeviceGetName", "cuGetExportTable",
                           "cuModuleLoadData", "cuEventRecord"}) {
    void* const found = by_name(name);
    REQUIRE(found != nullptr);
    EXPECT(object_of(found) == driver_object());
  }
}

CHECK_CASE("lookup", "a name that does not exist gives NULL and an error that names it", plain) {
  dlerror();
  EXPECT(dlsym(driver_library(), "cuMemAllocTwice") == nullptr);
  const char* error = dlerror();
  REQUIRE(error != nullptr);
  EXPECT(std::strstr(error, "cuMemAllocTwice") != nullptr);
  EXPECT(dlerror() == nullptr);
}

CHECK_CASE("lookup", "a good look-up leaves no error behind", plain) {
  dlerror();
  for (const char* name : kMemoryNames) {
    EXPECT(dlsym(driver_library(), name) != nullptr);
    const char* error = dlerror();
    if (error != nullptr) fail(__FILE__, __LINE__, std::string(name) + " leaves: " + error);
  }
}

CHECK_CASE("lookup", "whether an error from before survives an allocation", plain | observes) {
  { const Block warm(4096), large(option_large()); }
  dlsym(driver_library(), "cuNoSuchFunction");
  const Block block(option_large()), small(4096);
  const char* error = dlerror();
  observe_yes("it does", error != nullptr && std::strstr(error, "cuNoSuchFunction") != nullptr);
}

CHECK_CASE("lookup", "an absent name with a version gives NULL and an error", plain) {
  dlerror();
  EXPECT(dlvsym(driver_library(), "cuMemAllocTwice", "libcuda.so.1") == nullptr);
  EXPECT(dlerror() != nullptr);
}

CHECK_CASE("lookup", "what a version that the driver does not have gives", plain | observes) {
  dlerror();
  observe_yes("found", dlvsym(driver_library(), "cuMemAlloc_v2", "KVSHIM_TEST_1.0") != nullptr);
  observe_yes("error", dlerror() != nullptr);
}

CHECK_CASE("lookup", "the driver opened locally is invisible to the default search", plain) {
  EXPECT(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == nullptr);
  EXPECT(dlsym(RTLD_DEFAULT, "cuMemFree_v2") == nullptr);
}

CHECK_CASE("lookup", "names that are not replaced stay invisible to the default search", plain) {
  for (const char* name : {"cuMemAlloc", "cuMemFree", "cuDeviceGetName", "cuEventRecord"}) {
    EXPECT(dlsym(RTLD_DEFAULT, name) == nullptr);
  }
}

CHECK_CASE("lookup", "names of other libraries that begin with cu are left alone", plain) {
  for (const char* name : {"cudnnCreate", "cublasCreate_v2", "cufftPlan1d", "curl_easy_init",
                           "cudaMalloc", "cudaFree"}) {
    EXPECT(dlsym(driver_library(), name) == nullptr);
    EXPECT(dlsym(RTLD_DEFAULT, name) == nullptr);
  }
  EXPECT(dlsym(RTLD_DEFAULT, "cuserid") != nullptr);  // the C library's
}

CHECK_CASE("lookup", "RTLD_NEXT answers for this program, not for another object", plain) {
  const auto next = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "getpagesize"));
  REQUIRE(next != nullptr);
  EXPECT(next() > 0);
  EXPECT(object_of(reinterpret_cast<void*>(next)).find("libc.") != std::string::npos);
}

CHECK_CASE("lookup", "handles of the program and of other libraries behave as without CUDA",
           plain) {
  void* const self = dlopen(nullptr, RTLD_NOW);
  REQUIRE(self != nullptr);
  EXPECT(dlsym(self, "malloc") != nullptr);
  EXPECT(dlclose(self) == 0);
  void* const math = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
  if (math == nullptr) SKIP("no libm.so.6");
  EXPECT(dlsym(math, "cos") != nullptr);
  EXPECT(dlsym(math, "cuMemAlloc_v2") == nullptr);  // libm has no such function
}

CHECK_CASE("lookup", "a second handle of the driver gives the same functions", plain) {
  void* const again = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  REQUIRE(again != nullptr);
  EXPECT(again == driver_library());
  EXPECT(dlsym(again, "cuMemAlloc_v2") == by_name("cuMemAlloc_v2"));
  EXPECT(dlsym(again, "cuGetProcAddress_v2") == by_name("cuGetProcAddress_v2"));
  EXPECT(dlclose(again) == 0);
  const Block block(4096);
}

CHECK_CASE("lookup", "the export table is the driver's own", plain | observes) {
  // Known to profilers for many years; that a table answers is no promise, that nobody put
  // another one in its place is.
  const CUuuid id = {{'\xa0', '\x94', '\x79', '\x8c', '\x2e', '\x74', '\x2e', '\x74', '\x93',
                      '\xf2', '\x08', '\x00', '\x20', '\x0c', '\x0a', '\x66'}};
  const void *table = nullptr, *again = nullptr;
  const CUresult code = cu.cuGetExportTable(&table, &id);
  observe("code", code);
  observe_yes("there is a table", table != nullptr);
  if (code != CUDA_SUCCESS) return;
  GIVES(0, cu.cuGetExportTable(&again, &id));
  EXPECT(table == again);
  Dl_info info{};
  const bool named = dladdr(table, &info) != 0;
  observe_yes("it lies in the driver", named && info.dli_fname == driver_object());
  if (named) {
    observe("offset in the object",
            static_cast<const char*>(table) - static_cast<const char*>(info.dli_fbase));
  }
}

CHECK_CASE("lookup", "an export table that does not exist", plain | observes) {
  const CUuuid nobody = {};
  const void* table = nullptr;
  observe("code", cu.cuGetExportTable(&table, &nobody));
  observe_yes("there is a table", table != nullptr);
}
