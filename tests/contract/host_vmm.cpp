// The program's own VMM memory of a host NUMA node: it goes to the driver as it is, whatever kvshim
// makes of the like itself. In processes of their own: drivers have crashed here
// (NVIDIA/nccl#2106).
#include <unistd.h>

#include <cstring>

#include "gpu.h"

using namespace contract;

namespace {

// A mapping of host memory, made only where the driver says that it makes such: some drivers crash
// when they are asked (NVIDIA/nccl#2106).
class HostMapping {
 public:
  explicit HostMapping(std::size_t bytes) : bytes_(bytes) {
    const int node = device_attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, first_device());
    if (device_attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                         first_device()) == 0 ||
        node < 0) {
      SKIP("the device has no virtual memory management for host NUMA nodes");
    }
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop_.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    prop_.location.id = node;
    CALL(cu.cuMemCreate(&handle_, bytes, &prop_, 0));
    CALL(cu.cuMemAddressReserve(&ptr_, bytes, 0, 0, 0));
    CALL(cu.cuMemMap(ptr_, bytes, 0, handle_, 0));
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = first_device();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CALL(cu.cuMemSetAccess(ptr_, bytes, &access, 1));
  }
  ~HostMapping() {
    if (ptr_ == 0) return;
    GIVES(0, cu.cuMemUnmap(ptr_, bytes_));
    GIVES(0, cu.cuMemAddressFree(ptr_, bytes_));
    GIVES(0, cu.cuMemRelease(handle_));
  }
  HostMapping(const HostMapping&) = delete;
  CUdeviceptr ptr() const { return ptr_; }
  CUmemGenericAllocationHandle handle() const { return handle_; }
  const CUmemAllocationProp& prop() const { return prop_; }

 private:
  CUmemAllocationProp prop_{};
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr ptr_ = 0;
  std::size_t bytes_;
};

}  // namespace

CHECK_CASE("host_vmm", "memory of a host NUMA node is used by kernels, copies and memsets",
           isolated) {
  const HostMapping mapping(4 * kMiB);
  fill(nullptr, mapping.ptr(), kMiB, 12);
  EXPECT(holds_word(mapping.ptr(), kMiB, 12));
  write_bytes(mapping.ptr() + 4096, pattern(4096, 3));
  EXPECT(read_bytes(mapping.ptr() + 4096, 4096) == pattern(4096, 3));
  GIVES(0, cu.cuMemsetD8(mapping.ptr(), 3, 4 * kMiB));
  EXPECT(holds_byte(mapping.ptr(), 4 * kMiB, 3));
}

CHECK_CASE("host_vmm", "what comes back of a host NUMA node is what was asked for", isolated) {
  const HostMapping mapping(2 * kMiB);
  CUmemAllocationProp back{};
  GIVES(0, cu.cuMemGetAllocationPropertiesFromHandle(&back, mapping.handle()));
  EXPECT_EQ(static_cast<int>(back.location.type), static_cast<int>(mapping.prop().location.type));
  EXPECT_EQ(back.location.id, mapping.prop().location.id);
  EXPECT_EQ(static_cast<int>(back.requestedHandleTypes), 1);
  int fd = -1;
  GIVES(0, cu.cuMemExportToShareableHandle(&fd, mapping.handle(),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  if (fd >= 0) close(fd);
}

CHECK_CASE("host_vmm", "what the driver says of memory of a host NUMA node", isolated | observes) {
  const HostMapping mapping(4 * kMiB);
  const CUdeviceptr ptr = mapping.ptr() + 100;
  unsigned type = 0, is_managed = 7;
  CUcontext context = reinterpret_cast<CUcontext>(7);
  void* host = nullptr;
  GIVES(0, cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
  EXPECT_EQ(type, 1u);
  GIVES(0, cu.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
  EXPECT(context == nullptr);
  GIVES(1, cu.cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, ptr));
  GIVES(0, cu.cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr));
  EXPECT_EQ(is_managed, 0u);
  std::size_t bytes = 0;
  GIVES(0, cu.cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr));
  EXPECT_EQ(bytes, 4 * kMiB);
  CUdeviceptr base = 7;
  bytes = 0;
  const CUresult range = cu.cuMemGetAddressRange(&base, &bytes, ptr);
  observe("cuMemGetAddressRange", range);
  observe_yes("its base is 0", base == 0);
  observe("its size", static_cast<long long>(bytes));
  GIVES(1, cu.cuMemFree(mapping.ptr()));
}

CHECK_CASE("host_vmm", "the CPU's access to memory of a host NUMA node", isolated | observes) {
  const HostMapping mapping(2 * kMiB);
  const CUmemAccessDesc access{mapping.prop().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUresult code = cu.cuMemSetAccess(mapping.ptr(), 2 * kMiB, &access, 1);
  observe("cuMemSetAccess for the node", code);
  if (code != CUDA_SUCCESS) return;
  std::memset(reinterpret_cast<void*>(mapping.ptr()), 9, 2 * kMiB);
  EXPECT(holds_byte(mapping.ptr(), 2 * kMiB, 9));
  void* host = nullptr;
  observe("HOST_POINTER then",
          cu.cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, mapping.ptr()));
  unsigned type = 0;
  GIVES(0, cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, mapping.ptr()));
  EXPECT_EQ(type, 1u);
}
