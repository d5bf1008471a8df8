// The program's own cuMemAllocManaged: left alone, whatever its size.
#include <cstring>

#include "gpu.h"

using namespace contract;

namespace {

class Managed {
 public:
  explicit Managed(std::size_t bytes) {
    CALL(cu.cuMemAllocManaged(&ptr_, bytes, CU_MEM_ATTACH_GLOBAL));
  }
  ~Managed() { GIVES(0, cu.cuMemFree(ptr_)); }
  Managed(const Managed&) = delete;
  CUdeviceptr ptr() const { return ptr_; }
  std::uint32_t* words() const { return reinterpret_cast<std::uint32_t*>(ptr_); }

 private:
  CUdeviceptr ptr_ = 0;
};

}  // namespace

CHECK_CASE("managed_own", "zero bytes is refused with 1", needs_managed) {
  CUdeviceptr ptr = 0;
  GIVES(1, cu.cuMemAllocManaged(&ptr, 0, CU_MEM_ATTACH_GLOBAL));
}

CHECK_CASE("managed_own", "no place and no flags", needs_managed | observes) {
  CUdeviceptr ptr = 0;
  const CUresult no_place = cu.cuMemAllocManaged(nullptr, 4096, CU_MEM_ATTACH_GLOBAL);
  REFUSES(no_place);
  observe("no place", no_place);
  observe("flags 0", cu.cuMemAllocManaged(&ptr, 4096, 0));
  observe("flags 99", cu.cuMemAllocManaged(&ptr, 4096, 99));
}

CHECK_CASE_SIZES("managed_own", "the host writes and a kernel reads", needs_managed) {
  const Managed memory(size.bytes);
  const std::size_t words = size.bytes / 4;
  for (std::size_t i = 0; i < words; ++i) memory.words()[i] = 2;
  EXPECT_EQ(sum(nullptr, memory.ptr(), words), 2 * words);
}

CHECK_CASE_SIZES("managed_own", "a kernel writes and the host reads", needs_managed) {
  const Managed memory(size.bytes);
  const std::size_t words = size.bytes / 4;
  fill(nullptr, memory.ptr(), words, 0x77);
  CALL(cu.cuCtxSynchronize());
  std::size_t right = 0;
  for (std::size_t i = 0; i < words; ++i) right += memory.words()[i] == 0x77;
  EXPECT_EQ(right, words);
}

CHECK_CASE_SIZES("managed_own", "a memset is seen by the host", needs_managed) {
  const Managed memory(size.bytes);
  const Stream stream;
  GIVES(0, cu.cuMemsetD8(memory.ptr(), 5, size.bytes));
  CALL(cu.cuCtxSynchronize());
  EXPECT_EQ(memory.words()[size.bytes / 4 - 1], 0x05050505u);
  GIVES(0, cu.cuMemsetD32Async(memory.ptr(), 9, size.bytes / 4, stream));
  stream.finish();
  EXPECT_EQ(memory.words()[0], 9u);
  EXPECT_EQ(memory.words()[size.bytes / 4 - 1], 9u);
}

CHECK_CASE_SIZES("managed_own", "what the driver says of it", needs_managed) {
  const CUcontext primary = use_primary();
  const Managed memory(size.bytes);
  const CUdeviceptr ptr = memory.ptr();
  unsigned type = 0, is_managed = 0, sync = 0;
  unsigned legacy = 0xff;
  CUcontext context = nullptr;
  void* host = nullptr;
  std::uint64_t types = 7;
  std::size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
  GIVES(0, cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
  EXPECT_EQ(type, 2u);
  GIVES(0, cu.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
  EXPECT(context == primary);
  GIVES(0, cu.cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, ptr));
  EXPECT(host == memory.words());
  GIVES(0, cu.cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr + 4));
  EXPECT_EQ(is_managed, 1u);
  GIVES(0, cu.cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr));
  EXPECT_EQ(legacy & 0xff, 0u);
  GIVES(0, cu.cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr));
  EXPECT_EQ(types, 0u);
  GIVES(0, cu.cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr + 4));
  EXPECT_EQ(bytes, size.bytes);
  GIVES(0, cu.cuPointerGetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr));
  EXPECT_EQ(sync, 1u);
  GIVES(1, cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(ptr)));
}

CHECK_CASE_SIZES("managed_own", "the range is what was asked for", needs_managed) {
  const Managed memory(size.bytes + 1);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  GIVES(0, cu.cuMemGetAddressRange(&base, &bytes, memory.ptr() + size.bytes));
  EXPECT_EQ(base, memory.ptr());
  EXPECT_EQ(bytes, size.bytes + 1);
}

CHECK_CASE_SIZES("managed_own", "freed by cuMemFree, once, at its base", needs_managed) {
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAllocManaged(&ptr, size.bytes, CU_MEM_ATTACH_GLOBAL));
  GIVES(1, cu.cuMemFree(ptr + 16));
  GIVES(0, cu.cuMemFree(ptr));
  GIVES(1, cu.cuMemFree(ptr));
}

CHECK_CASE_SIZES("managed_own", "the free waits for running kernels", needs_managed) {
  const Stream stream;
  CUdeviceptr ptr = 0;
  load_kernels();
  CALL(cu.cuMemAllocManaged(&ptr, size.bytes, CU_MEM_ATTACH_GLOBAL));
  spin(stream, 0.2);
  EXPECT(stream.busy());
  GIVES(0, cu.cuMemFree(ptr));
  EXPECT(!stream.busy());
}

CHECK_CASE_SIZES("managed_own", "new memory reads as zero, or as whatever the driver gives",
                 needs_managed | observes) {
  const Managed memory(size.bytes);
  observe_yes("zero", sum(nullptr, memory.ptr(), size.bytes / 4) == 0);
}

CHECK_CASE_SIZES("managed_own", "advice and prefetch, in both forms", needs_managed) {
  const Managed memory(size.bytes);
  const Stream stream;
  const CUdevice device = first_device();
  for (std::size_t i = 0; i < size.bytes / 4; ++i) memory.words()[i] = 3;
  GIVES(0, cu.cuMemAdvise_v1(memory.ptr(), size.bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
  GIVES(0, cu.cuMemPrefetchAsync_v1(memory.ptr(), size.bytes, device, stream));
  GIVES(0, cu.cuMemPrefetchAsync_v1(memory.ptr(), size.bytes, CU_DEVICE_CPU, stream));
  const CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  GIVES(0, cu.cuMemPrefetchAsync_v2(memory.ptr(), size.bytes, there, 0, stream));
  stream.finish();
  EXPECT_EQ(sum(nullptr, memory.ptr(), size.bytes / 4), 3 * (size.bytes / 4));
}

CHECK_CASE_SIZES("managed_own", "copies to and from other memory", needs_managed) {
  const Managed memory(size.bytes);
  const Block block(size.bytes);
  const std::size_t words = size.bytes / 4;
  for (std::size_t i = 0; i < words; ++i) memory.words()[i] = 6;
  GIVES(0, cu.cuMemcpyDtoD(block, memory.ptr(), size.bytes));
  EXPECT(holds_word(block, words, 6));
  CALL(cu.cuMemsetD32(block, 8, words));
  GIVES(0, cu.cuMemcpy(memory.ptr(), block, size.bytes));
  CALL(cu.cuCtxSynchronize());
  EXPECT_EQ(memory.words()[0], 8u);
  EXPECT_EQ(memory.words()[words - 1], 8u);
}

CHECK_CASE("managed_own", "stream-ordered free of it", needs_managed | observes) {
  const Stream stream;
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAllocManaged(&ptr, kMiB, CU_MEM_ATTACH_GLOBAL));
  const CUresult code = cu.cuMemFreeAsync(ptr, stream);
  observe("code", code);
  stream.finish();
  if (code != CUDA_SUCCESS) GIVES(0, cu.cuMemFree(ptr));
}
