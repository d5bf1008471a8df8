// Pinned and registered host memory: kvshim has no business with it.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "gpu.h"

using namespace contract;

CHECK_CASE("host_memory", "pinned memory is usable from both sides and freed once", plain) {
  for (const unsigned flags : {0u, 1u, 2u, 3u}) {
    void* host = nullptr;
    CUdeviceptr device = 0;
    GIVES(0, cu.cuMemHostAlloc(&host, kMiB, flags));
    GIVES(0, cu.cuMemHostGetDevicePointer(&device, host, 0));
    std::memset(host, 0, kMiB);
    fill(nullptr, device, kMiB / 4, 5);
    CALL(cu.cuCtxSynchronize());
    EXPECT_EQ(static_cast<std::uint32_t*>(host)[kMiB / 4 - 1], 5u);
    GIVES(0, cu.cuMemFreeHost(host));
    REFUSES(cu.cuMemFreeHost(host));
  }
}

CHECK_CASE("host_memory", "a large piece is still host memory", plain) {
  void* host = nullptr;
  GIVES(0, cu.cuMemHostAlloc(&host, option_large(), CU_MEMHOSTALLOC_DEVICEMAP));
  unsigned type = 0;
  GIVES(0, cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(host)));
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  GIVES(0, cu.cuMemFreeHost(host));
}

CHECK_CASE("host_memory", "cuMemAllocHost gives host memory", plain) {
  void* host = nullptr;
  GIVES(0, cu.cuMemAllocHost(&host, 4096));
  std::memset(host, 1, 4096);
  GIVES(0, cu.cuMemFreeHost(host));
}

CHECK_CASE("host_memory", "registered memory can be copied and used by kernels", plain) {
  const std::size_t bytes = 64 * kKiB;
  void* memory = nullptr;
  REQUIRE(posix_memalign(&memory, 4096, bytes) == 0);
  std::memset(memory, 0, bytes);
  GIVES(0, cu.cuMemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  CUdeviceptr device = 0;
  GIVES(0, cu.cuMemHostGetDevicePointer(&device, memory, 0));
  fill(nullptr, device, bytes / 4, 9);
  CALL(cu.cuCtxSynchronize());
  EXPECT_EQ(static_cast<std::uint32_t*>(memory)[100], 9u);
  GIVES(0, cu.cuMemHostUnregister(memory));
  std::free(memory);
}

CHECK_CASE("host_memory", "each kind of free refuses the other kind of memory", plain | observes) {
  void* host = nullptr;
  CALL(cu.cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  const CUresult device_free = cu.cuMemFree(reinterpret_cast<CUdeviceptr>(host));
  observe("cuMemFree of pinned memory", device_free);
  if (device_free != CUDA_SUCCESS) GIVES(0, cu.cuMemFreeHost(host));
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB, option_large()}) {
    CUdeviceptr ptr = 0;
    CALL(cu.cuMemAlloc(&ptr, bytes));
    const CUresult host_free = cu.cuMemFreeHost(reinterpret_cast<void*>(ptr));
    observe("cuMemFreeHost of device memory", host_free);
    if (host_free != CUDA_SUCCESS) GIVES(0, cu.cuMemFree(ptr));
  }
}

CHECK_CASE("host_memory", "memset and copies of pinned memory", plain) {
  void* host = nullptr;
  CALL(cu.cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  const auto address = reinterpret_cast<CUdeviceptr>(host);
  GIVES(0, cu.cuMemsetD8(address, 7, 4096));
  CALL(cu.cuCtxSynchronize());
  EXPECT_EQ(static_cast<int>(static_cast<unsigned char*>(host)[4095]), 7);
  const Block block(4096);
  GIVES(0, cu.cuMemcpy(block, address, 4096));
  EXPECT(holds_byte(block, 4096, 7));
  GIVES(0, cu.cuMemFreeHost(host));
}

CHECK_CASE("host_memory", "pinned memory and device blocks do not share addresses", plain) {
  void* host = nullptr;
  CALL(cu.cuMemHostAlloc(&host, 16 * kMiB, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr pinned = 0;
  CALL(cu.cuMemHostGetDevicePointer(&pinned, host, 0));
  std::vector<Block> blocks;
  for (int i = 0; i < 50; ++i) blocks.emplace_back(kMiB);
  blocks.emplace_back(option_large());
  for (const Block& block : blocks) {
    EXPECT(block.end() <= pinned || block.ptr() >= pinned + 16 * kMiB);
  }
  GIVES(0, cu.cuMemFreeHost(host));
}
