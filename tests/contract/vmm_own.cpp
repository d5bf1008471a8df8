// The program's own virtual memory management: every call goes to the driver as it is, and what
// was asked for comes back.
#include <unistd.h>

#include <cstring>

#include "mapping.h"

using namespace contract;

CHECK_CASE("vmm_own", "create, reserve, map, use, unmap, release, free", plain) {
  for (const std::size_t bytes : {2 * kMiB, 20 * kMiB, option_large()}) {
    const Mapping mapping(bytes);
    fill(nullptr, mapping.ptr(), bytes / 4, 12);
    EXPECT(holds_word(mapping.ptr(), bytes / 4, 12));
    GIVES(0, cu.cuMemsetD8(mapping.ptr(), 3, bytes));
    EXPECT(holds_byte(mapping.ptr(), bytes, 3));
  }
}

CHECK_CASE("vmm_own", "the properties come back as they were asked for", plain | observes) {
  for (const auto types : {CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
    const CUmemAllocationProp prop = device_memory(types);
    CUmemGenericAllocationHandle handle = 0;
    CALL(cu.cuMemCreate(&handle, 2 * kMiB, &prop, 0));
    CUmemAllocationProp back{};
    GIVES(0, cu.cuMemGetAllocationPropertiesFromHandle(&back, handle));
    EXPECT_EQ(static_cast<int>(back.type), static_cast<int>(prop.type));
    EXPECT_EQ(static_cast<int>(back.requestedHandleTypes), static_cast<int>(types));
    EXPECT_EQ(static_cast<int>(back.location.type), static_cast<int>(prop.location.type));
    EXPECT_EQ(back.location.id, prop.location.id);
    EXPECT_EQ(static_cast<int>(back.allocFlags.gpuDirectRDMACapable), 0);
    observe("compression", back.allocFlags.compressionType);
    GIVES(0, cu.cuMemRelease(handle));
  }
}

CHECK_CASE("vmm_own", "GPUDirect RDMA comes back when it was asked for", plain) {
  if (device_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                       first_device()) == 0) {
    SKIP("the device has no GPUDirect RDMA for virtual memory");
  }
  CUmemAllocationProp prop = device_memory(), back{};
  prop.allocFlags.gpuDirectRDMACapable = 1;
  CUmemGenericAllocationHandle handle = 0;
  CALL(cu.cuMemCreate(&handle, 2 * kMiB, &prop, 0));
  GIVES(0, cu.cuMemGetAllocationPropertiesFromHandle(&back, handle));
  EXPECT_EQ(static_cast<int>(back.allocFlags.gpuDirectRDMACapable), 1);
  GIVES(0, cu.cuMemRelease(handle));
}

CHECK_CASE("vmm_own", "the granularity is 2 MiB, minimum and recommended", plain) {
  const CUmemAllocationProp prop = device_memory();
  std::size_t least = 0, best = 0;
  GIVES(0, cu.cuMemGetAllocationGranularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  GIVES(0, cu.cuMemGetAllocationGranularity(&best, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  EXPECT_EQ(least, 2 * kMiB);
  EXPECT_EQ(best, 2 * kMiB);
}

CHECK_CASE("vmm_own", "cuMemFree and cuMemFreeAsync of a mapped address are refused with 1",
           plain) {
  const Mapping mapping(2 * kMiB);
  const Stream stream;
  GIVES(1, cu.cuMemFree(mapping.ptr()));
  GIVES(1, cu.cuMemFreeAsync(mapping.ptr(), stream));
  GIVES(0, cu.cuMemsetD8(mapping.ptr(), 1, 64));
  EXPECT(holds_byte(mapping.ptr(), 64, 1));
}

CHECK_CASE("vmm_own", "what the driver says of a mapping", plain) {
  const Mapping mapping(4 * kMiB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  unsigned type = 0, is_managed = 7;
  unsigned legacy = 0xff;
  CUcontext context = reinterpret_cast<CUcontext>(7);
  std::uint64_t types = 0;
  void* host = nullptr;
  const CUdeviceptr ptr = mapping.ptr() + 100;
  GIVES(0, cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
  EXPECT_EQ(type, 2u);
  GIVES(0, cu.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
  EXPECT(context == nullptr);
  GIVES(1, cu.cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, ptr));
  GIVES(0, cu.cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr));
  EXPECT_EQ(is_managed, 0u);
  GIVES(0, cu.cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr));
  EXPECT_EQ(legacy & 0xff, 0u);
  GIVES(0, cu.cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr));
  EXPECT_EQ(types, 1u);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  GIVES(0, cu.cuMemGetAddressRange(&base, &bytes, ptr));
  EXPECT_EQ(base, mapping.ptr());
  EXPECT_EQ(bytes, 4 * kMiB);
  unsigned on = 1;
  GIVES(801, cu.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, mapping.ptr()));
}

CHECK_CASE("vmm_own", "memset past the end of a mapping is refused with 1", plain) {
  const Mapping mapping(2 * kMiB);
  GIVES(1, cu.cuMemsetD8(mapping.ptr(), 0, 2 * kMiB + 1));
}

CHECK_CASE("vmm_own", "one handle mapped twice is one memory", plain) {
  const Mapping mapping(2 * kMiB);
  const CUmemAccessDesc access{device_memory().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr second = 0;
  CALL(cu.cuMemAddressReserve(&second, 2 * kMiB, 0, 0, 0));
  GIVES(0, cu.cuMemMap(second, 2 * kMiB, 0, mapping.handle(), 0));
  GIVES(0, cu.cuMemSetAccess(second, 2 * kMiB, &access, 1));
  write_bytes(mapping.ptr(), pattern(4096, 3));
  EXPECT(read_bytes(second, 4096) == pattern(4096, 3));
  GIVES(0, cu.cuMemUnmap(second, 2 * kMiB));
  GIVES(0, cu.cuMemAddressFree(second, 2 * kMiB));
}

CHECK_CASE("vmm_own", "one reservation filled piece by piece", plain) {
  const CUmemAllocationProp prop = device_memory();
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr base = 0;
  CUmemGenericAllocationHandle handles[4] = {};
  CALL(cu.cuMemAddressReserve(&base, 64 * kMiB, 0, 0, 0));
  for (std::size_t i = 0; i < 4; ++i) {
    CALL(cu.cuMemCreate(&handles[i], 2 * kMiB, &prop, 0));
    GIVES(0, cu.cuMemMap(base + i * 2 * kMiB, 2 * kMiB, 0, handles[i], 0));
    GIVES(0, cu.cuMemSetAccess(base + i * 2 * kMiB, 2 * kMiB, &access, 1));
  }
  fill(nullptr, base, 8 * kMiB / 4, 4);
  EXPECT(holds_word(base, 8 * kMiB / 4, 4));
  for (std::size_t i = 0; i < 4; ++i) {
    GIVES(0, cu.cuMemUnmap(base + i * 2 * kMiB, 2 * kMiB));
    GIVES(0, cu.cuMemRelease(handles[i]));
  }
  GIVES(0, cu.cuMemAddressFree(base, 64 * kMiB));
}

CHECK_CASE("vmm_own", "a handle released while mapped lives until it is unmapped", plain) {
  const CUmemAllocationProp prop = device_memory();
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemCreate(&handle, 2 * kMiB, &prop, 0));
  CALL(cu.cuMemAddressReserve(&ptr, 2 * kMiB, 0, 0, 0));
  CALL(cu.cuMemMap(ptr, 2 * kMiB, 0, handle, 0));
  CALL(cu.cuMemSetAccess(ptr, 2 * kMiB, &access, 1));
  GIVES(0, cu.cuMemRelease(handle));
  fill(nullptr, ptr, 100, 8);
  EXPECT(holds_word(ptr, 100, 8));
  GIVES(0, cu.cuMemUnmap(ptr, 2 * kMiB));
  GIVES(0, cu.cuMemAddressFree(ptr, 2 * kMiB));
}

CHECK_CASE("vmm_own", "the handle of an address can be taken, and is one more reference", plain) {
  const Mapping mapping(2 * kMiB);
  CUmemGenericAllocationHandle handle = 0;
  GIVES(0, cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(mapping.ptr() + 5)));
  CUmemAllocationProp back{};
  GIVES(0, cu.cuMemGetAllocationPropertiesFromHandle(&back, handle));
  EXPECT_EQ(back.location.id, first_device());
  GIVES(0, cu.cuMemRelease(handle));
}

CHECK_CASE("vmm_own", "the access that was set is the access that is asked", plain) {
  const Mapping mapping(2 * kMiB);
  unsigned long long flags = 0;
  const CUmemLocation location = device_memory().location;
  GIVES(0, cu.cuMemGetAccess(&flags, &location, mapping.ptr()));
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

CHECK_CASE("vmm_own", "an exported file descriptor imports as the same memory", plain) {
  const Mapping mapping(2 * kMiB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  write_bytes(mapping.ptr(), pattern(4096, 7));
  int fd = -1;
  GIVES(0, cu.cuMemExportToShareableHandle(&fd, mapping.handle(),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  REQUIRE(fd >= 0);
  CUmemGenericAllocationHandle imported = 0;
  GIVES(0,
        cu.cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<long>(fd)),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  const Mapping second(imported, 2 * kMiB);
  EXPECT(read_bytes(second.ptr(), 4096) == pattern(4096, 7));
  fill(nullptr, second.ptr(), 64, 5);
  EXPECT(holds_word(mapping.ptr(), 64, 5));
}

CHECK_CASE("vmm_own", "memory made without a handle type cannot be exported", plain | observes) {
  const Mapping mapping(2 * kMiB);
  int fd = -1;
  const CUresult code = cu.cuMemExportToShareableHandle(
      &fd, mapping.handle(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  REFUSES(code);
  observe("code", code);
}

CHECK_CASE("vmm_own", "sizes that are no multiple of the granularity", plain | observes) {
  const CUmemAllocationProp prop = device_memory();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr ptr = 0;
  const CUresult odd = cu.cuMemCreate(&handle, 2 * kMiB + 4096, &prop, 0);
  const CUresult none = cu.cuMemCreate(&handle, 0, &prop, 0);
  REFUSES(odd);
  REFUSES(none);
  observe("create 2 MiB + 4 KiB", odd);
  observe("create 0", none);
  observe("create more than any machine has",
          cu.cuMemCreate(&handle, std::size_t{1} << 46, &prop, 0));
  observe("reserve 0", cu.cuMemAddressReserve(&ptr, 0, 0, 0, 0));
  observe("create without a place", cu.cuMemCreate(nullptr, 2 * kMiB, &prop, 0));
}

CHECK_CASE("vmm_own", "it lives beside memory of cuMemAlloc", plain) {
  const Block small(4096);
  const Mapping mapping(4 * kMiB);
  const Block large(option_large());
  CALL(cu.cuMemsetD8(small, 1, 4096));
  CALL(cu.cuMemsetD8(mapping.ptr(), 2, 4 * kMiB));
  CALL(cu.cuMemsetD8(large, 3, option_large()));
  EXPECT(holds_byte(small, 4096, 1));
  EXPECT(holds_byte(mapping.ptr(), 4 * kMiB, 2));
  CALL(cu.cuMemcpyDtoD(large, mapping.ptr(), 4 * kMiB));
  EXPECT(holds_byte(large, 4 * kMiB, 2));
}

CHECK_CASE("vmm_own", "one reservation of several handles is unmapped at once, after their release",
           plain) {
  const CUmemAllocationProp prop = device_memory();
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr base = 0;
  CALL(cu.cuMemAddressReserve(&base, 8 * kMiB, 2 * kMiB, 0, 0));
  for (std::size_t i = 0; i < 3; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    CALL(cu.cuMemCreate(&handle, 2 * kMiB, &prop, 0));
    GIVES(0, cu.cuMemMap(base + i * 2 * kMiB, 2 * kMiB, 0, handle, 0));
    GIVES(0, cu.cuMemRelease(handle));
  }
  GIVES(0, cu.cuMemSetAccess(base, 6 * kMiB, &access, 1));
  fill(nullptr, base, 6 * kMiB / 4, 4);
  EXPECT(holds_word(base, 6 * kMiB / 4, 4));
  GIVES(0, cu.cuMemUnmap(base, 6 * kMiB));
  GIVES(0, cu.cuMemAddressFree(base, 8 * kMiB));
}
