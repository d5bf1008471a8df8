// Calls that are meant for managed or for host memory, on blocks of cuMemAlloc: advice, prefetch,
// cuMemHostRegister. Natively they are refused; a large block that is managed takes some of them.
#include "gpu.h"

using namespace contract;

namespace {

void observe_advice(CUdeviceptr ptr, std::size_t bytes) {
  const CUdevice device = first_device();
  const CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  const Stream stream;
  observe("advise v1", cu.cuMemAdvise_v1(ptr, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
  observe("advise v2", cu.cuMemAdvise_v2(ptr, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, there));
  observe("read mostly", cu.cuMemAdvise_v2(ptr, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, there));
  observe("not read mostly", cu.cuMemAdvise_v2(ptr, bytes, CU_MEM_ADVISE_UNSET_READ_MOSTLY, there));
  observe("prefetch v1", cu.cuMemPrefetchAsync_v1(ptr, bytes, device, stream));
  observe("prefetch v2", cu.cuMemPrefetchAsync_v2(ptr, bytes, there, 0, stream));
  observe("prefetch to the host", cu.cuMemPrefetchAsync_v1(ptr, bytes, CU_DEVICE_CPU, stream));
  stream.finish();
}

void observe_registration(CUdeviceptr ptr, std::size_t bytes) {
  void* host = reinterpret_cast<void*>(ptr);
  for (const unsigned flags : {0u, 1u, 2u}) {
    const CUresult code = cu.cuMemHostRegister(host, bytes, flags);
    observe(("flags " + std::to_string(flags)).c_str(), code);
    if (code == CUDA_SUCCESS) observe("unregister", cu.cuMemHostUnregister(host));
  }
  observe("unregister what is not", cu.cuMemHostUnregister(host));
  CUdeviceptr device = 0;
  observe("its device pointer", cu.cuMemHostGetDevicePointer(&device, host, 0));
}

// Whatever they answered, the memory is as it was, and works.
template <typename Calls>
void try_on_block(std::size_t bytes, Calls calls) {
  const Block block(bytes);
  CALL(cu.cuMemsetD32(block, 6, bytes / 4));
  CALL(cu.cuCtxSynchronize());
  calls(block.ptr(), bytes);
  EXPECT(holds_word(block, bytes / 4, 6));
  EXPECT_EQ(sum(nullptr, block, bytes / 4), 6 * (bytes / 4));
}

}  // namespace

CHECK_CASE("managed_calls", "advice and prefetch on a small or medium block", plain | observes) {
  try_on_block(small_size().bytes, observe_advice);
  try_on_block(medium_size().bytes, observe_advice);
}

CHECK_CASE("managed_calls", "advice and prefetch on a large block",
           observes | differs("managed memory takes advice and is moved by a prefetch")) {
  try_on_block(option_large(), observe_advice);
  if (memory_of(option_large()) != Memory::managed) return;
  const Block block(option_large());
  const CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, {first_device()}};
  const Stream stream;
  GIVES(0, cu.cuMemAdvise_v2(block, block.bytes(), CU_MEM_ADVISE_SET_ACCESSED_BY, there));
  GIVES(0, cu.cuMemPrefetchAsync_v2(block, block.bytes(), there, 0, stream));
  GIVES(0, cu.cuMemPrefetchAsync_v1(block, block.bytes(), CU_DEVICE_CPU, stream));
  stream.finish();
}

CHECK_CASE("managed_calls", "cuMemHostRegister on a small or medium block", plain | observes) {
  try_on_block(small_size().bytes, observe_registration);
  try_on_block(medium_size().bytes, observe_registration);
}

CHECK_CASE("managed_calls", "cuMemHostRegister on a large block",
           observes | differs("managed memory may be taken for host memory")) {
  try_on_block(option_large(), observe_registration);
}

CHECK_CASE("managed_calls", "cuMemHostRegister on the program's managed memory",
           needs_managed | observes) {
  CUdeviceptr ptr = 0;
  CALL(cu.cuMemAllocManaged(&ptr, 3 * kMiB, CU_MEM_ATTACH_GLOBAL));
  observe_registration(ptr, 3 * kMiB);
  GIVES(0, cu.cuMemsetD8(ptr, 2, 3 * kMiB));
  EXPECT(holds_byte(ptr, 3 * kMiB, 2));
  GIVES(0, cu.cuMemFree(ptr));
}

CHECK_CASE("managed_calls", "advice, in both forms, on the program's managed memory",
           needs_managed) {
  CUdeviceptr ptr = 0;
  const CUdevice device = first_device();
  const CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  const CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, {0}};
  CALL(cu.cuMemAllocManaged(&ptr, option_large(), CU_MEM_ATTACH_GLOBAL));
  for (const auto advice :
       {CU_MEM_ADVISE_SET_READ_MOSTLY, CU_MEM_ADVISE_UNSET_READ_MOSTLY,
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_ACCESSED_BY,
        CU_MEM_ADVISE_UNSET_ACCESSED_BY, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION}) {
    GIVES(0, cu.cuMemAdvise_v1(ptr, option_large(), advice, device));
    GIVES(0, cu.cuMemAdvise_v2(ptr, option_large(), advice, there));
  }
  GIVES(0, cu.cuMemAdvise_v2(ptr, kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  GIVES(0, cu.cuMemAdvise_v1(ptr, kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
  GIVES(0, cu.cuMemFree(ptr));
}
