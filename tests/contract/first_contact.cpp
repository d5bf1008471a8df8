// A program's first calls, before and around cuInit. None of the checks that share this group's
// process may call cuInit: those that do are isolated.
#include <cstring>

#include "gpu.h"

using namespace contract;

CHECK_CASE("first_contact", "every allocation call before cuInit gives 3", no_context) {
  CUdeviceptr ptr = 0;
  std::size_t pitch = 0;
  GIVES(3, cu.cuMemAlloc(&ptr, 4096));
  GIVES(3, cu.cuMemAlloc(&ptr, option_large()));
  GIVES(3, cu.cuMemAllocManaged(&ptr, 4096, CU_MEM_ATTACH_GLOBAL));
  GIVES(3, cu.cuMemAllocPitch(&ptr, &pitch, 100, 100, 4));
  GIVES(3, cu.cuMemAllocAsync(&ptr, 4096, nullptr));
  EXPECT_EQ(ptr, 0u);
}

CHECK_CASE("first_contact", "every free and query before cuInit gives 3", no_context) {
  CUdeviceptr base = 0;
  std::size_t free = 0, total = 0;
  GIVES(3, cu.cuMemFree(kNowhere));
  GIVES(3, cu.cuMemFree(0));
  GIVES(3, cu.cuMemFreeAsync(kNowhere, nullptr));
  GIVES(3, cu.cuMemGetInfo(&free, &total));
  GIVES(3, cu.cuMemGetAddressRange(&base, &total, kNowhere));
}

CHECK_CASE("first_contact", "every memset before cuInit gives 3", no_context) {
  const CUdeviceptr nowhere = kNowhere;
  GIVES(3, cu.cuMemsetD8(nowhere, 0, 64));
  GIVES(3, cu.cuMemsetD16(nowhere, 0, 64));
  GIVES(3, cu.cuMemsetD32(nowhere, 0, 64));
  GIVES(3, cu.cuMemsetD2D8(nowhere, 64, 0, 8, 8));
  GIVES(3, cu.cuMemsetD8Async(nowhere, 0, 64, nullptr));
  GIVES(3, cu.cuMemsetD8Async_ptsz(nowhere, 0, 64, nullptr));
}

CHECK_CASE("first_contact", "every virtual memory call before cuInit gives 3", no_context) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUdeviceptr ptr = 0;
  GIVES(3, cu.cuMemCreate(&handle, 2 * kMiB, &prop, 0));
  GIVES(3, cu.cuMemAddressReserve(&ptr, 2 * kMiB, 0, 0, 0));
  GIVES(3, cu.cuMemUnmap(kNowhere, 2 * kMiB));
}

CHECK_CASE("first_contact", "what the pointer queries say before cuInit", no_context | observes) {
  unsigned type = 0;
  void* data[] = {&type};
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  observe("cuPointerGetAttribute", cu.cuPointerGetAttribute(&type, attribute, kNowhere));
  observe("cuPointerGetAttributes", cu.cuPointerGetAttributes(1, &attribute, data, kNowhere));
  observe("cuMemGetInfo with two NULLs", cu.cuMemGetInfo(nullptr, nullptr));
  observe("cuMemAlloc with NULL", cu.cuMemAlloc(nullptr, 4096));
  observe("cuMemAlloc of 0 bytes", [] {
    CUdeviceptr ptr = 0;
    return cu.cuMemAlloc(&ptr, 0);
  }());
}

CHECK_CASE("first_contact", "the driver's version can be asked before cuInit",
           no_context | observes) {
  int version = 0;
  GIVES(0, cu.cuDriverGetVersion(&version));
  EXPECT(version >= 11020);
  observe("version", version);
}

CHECK_CASE("first_contact", "error names can be asked before cuInit", no_context) {
  const char* name = nullptr;
  GIVES(0, cu.cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
  REQUIRE(name != nullptr);
  EXPECT(std::strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
}

CHECK_CASE("first_contact", "functions can be looked up before cuInit", no_context) {
  EXPECT(by_version("cuMemAlloc", 3020) != nullptr);
  EXPECT(by_version("cuMemFree", 12000) != nullptr);
  EXPECT(by_name("cuMemAlloc_v2") != nullptr);
}

CHECK_CASE("first_contact", "cuInit with flags that do not exist",
           no_context | observes | isolated) {
  const CUresult code = cu.cuInit(1);
  observe("code", code);
  REFUSES(code);
}

CHECK_CASE("first_contact", "cuInit twice is harmless", no_context | isolated) {
  GIVES(0, cu.cuInit(0));
  GIVES(0, cu.cuInit(0));
  use_primary();
  const Block block(4096);
}

CHECK_CASE("first_contact", "a call that failed before cuInit spoils nothing",
           no_context | isolated) {
  CUdeviceptr ptr = 0;
  GIVES(3, cu.cuMemAlloc(&ptr, option_large()));
  GIVES(3, cu.cuMemFree(0x1000));
  use_primary();
  const Block small(4096), large(option_large());
  write_bytes(large, pattern(4096, 1));
  EXPECT(read_bytes(large, 4096) == pattern(4096, 1));
}

CHECK_CASE("first_contact", "devices can be counted and found after cuInit",
           no_context | isolated) {
  GIVES(0, cu.cuInit(0));
  int count = 0;
  GIVES(0, cu.cuDeviceGetCount(&count));
  EXPECT(count >= 1);
  CUdevice device = -1;
  GIVES(0, cu.cuDeviceGet(&device, 0));
  EXPECT_EQ(device, 0);
  GIVES(101, cu.cuDeviceGet(&device, count));
}

CHECK_CASE("first_contact", "the very first allocation may be a large one", isolated) {
  const Block block(option_large());
  EXPECT(block != 0);
}

CHECK_CASE("first_contact", "the very first memory call may be a free", isolated) {
  GIVES(1, cu.cuMemFree(kNowhere));
  GIVES(0, cu.cuMemFree(0));
}

CHECK_CASE("first_contact", "the very first memory call may be a memset of unknown memory",
           isolated) {
  REFUSES(cu.cuMemsetD8(kNowhere, 0, 64));
  const Block block(4096);
}

CHECK_CASE("first_contact", "cuInit on one thread serves another", no_context | isolated) {
  on_thread([] { CALL(cu.cuInit(0)); });
  use_primary();
  const Block block(4096);
}
