// cuPointerGetAttribute and its plural: what the driver says of memory from cuMemAlloc.
// Where a rerouted block is honestly another kind of memory the answers differ, and say why.
#include <vector>

#include "gpu.h"

using namespace contract;

namespace {

template <typename T>
T ask(CUpointer_attribute attribute, CUdeviceptr ptr) {
  T value{};
  CALL(cu.cuPointerGetAttribute(&value, attribute, ptr));
  return value;
}

// Base, one byte on, the middle, the last byte.
std::vector<CUdeviceptr> places(const Block& block) {
  return {block.ptr(), block.ptr() + 1, block.ptr() + block.bytes() / 2, block.end() - 1};
}

void expect_managed_flag(const Block& block) {
  const unsigned wanted = memory_of(block.bytes()) == Memory::managed ? 1 : 0;
  for (const CUdeviceptr ptr : places(block)) {
    EXPECT_EQ(ask<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr), wanted);
  }
}

void expect_host_pointer(const Block& block) {
  void* host = nullptr;
  if (memory_of(block.bytes()) == Memory::managed) {
    GIVES(0, cu.cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, block));
    EXPECT_EQ(reinterpret_cast<CUdeviceptr>(host), block.ptr());
  } else {
    GIVES(1, cu.cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, block));
    GIVES(1, cu.cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, block + 9));
  }
}

void expect_sync_memops(const Block& block) {
  const unsigned wanted = memory_of(block.bytes()) == Memory::managed ? 1 : 0;
  EXPECT_EQ(ask<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block), wanted);
}

}  // namespace

CHECK_CASE_SIZES("attributes", "the memory type is device, everywhere in the block", plain) {
  const Block block(size.bytes);
  for (const CUdeviceptr ptr : places(block)) {
    EXPECT_EQ(ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr),
              static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  }
}

CHECK_CASE_SIZES("attributes", "the context is the one that made the block", plain) {
  const CUcontext primary = use_primary();
  const Block block(size.bytes);
  for (const CUdeviceptr ptr : places(block)) {
    EXPECT_EQ(ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, ptr), primary);
  }
}

CHECK_CASE_SIZES("attributes", "the device ordinal is the device's", plain) {
  const Block block(size.bytes);
  for (const CUdeviceptr ptr : places(block)) {
    EXPECT_EQ(ask<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr), first_device());
  }
}

CHECK_CASE_SIZES("attributes", "the device pointer is the pointer itself", plain) {
  const Block block(size.bytes);
  for (const CUdeviceptr ptr : places(block)) {
    EXPECT_EQ(ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ptr), ptr);
  }
}

CHECK_CASE_SIZES("attributes", "range start and size are the base and the bytes asked for", plain) {
  for (const std::size_t bytes : {size.bytes, size.bytes + 1, size.bytes - 4}) {
    const Block block(bytes);
    for (const CUdeviceptr ptr : places(block)) {
      EXPECT_EQ(ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr), block.ptr());
      EXPECT_EQ(ask<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr), bytes);
    }
  }
}

CHECK_CASE("attributes", "a small or medium block is not managed", plain) {
  expect_managed_flag(Block(small_size().bytes));
  expect_managed_flag(Block(medium_size().bytes));
}

CHECK_CASE("attributes", "a large block is not managed",
           differs("it is managed memory, and a program that asks is told so")) {
  expect_managed_flag(Block(option_large()));
}

CHECK_CASE("attributes", "a small or medium block has no host pointer", plain) {
  expect_host_pointer(Block(small_size().bytes));
  expect_host_pointer(Block(medium_size().bytes));
}

CHECK_CASE("attributes", "a large block has no host pointer",
           differs("managed memory has one: the same address")) {
  expect_host_pointer(Block(option_large()));
}

CHECK_CASE("attributes", "a small or medium block does not synchronize memory operations", plain) {
  expect_sync_memops(Block(small_size().bytes));
  expect_sync_memops(Block(medium_size().bytes));
}

CHECK_CASE("attributes", "a large block does not synchronize memory operations",
           differs("managed memory always does")) {
  expect_sync_memops(Block(option_large()));
}

CHECK_CASE_SIZES("attributes", "synchronizing memory operations can be turned on", plain) {
  const Block block(size.bytes);
  unsigned on = 1;
  GIVES(0, cu.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
  EXPECT_EQ(ask<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block), 1u);
}

CHECK_CASE("attributes", "a small or medium block can be shared by legacy IPC", plain) {
  for (const std::size_t bytes : {small_size().bytes, medium_size().bytes}) {
    const Block block(bytes);
    unsigned capable = 0;  // the driver may write more than one byte
    GIVES(0, cu.cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                      block));
    EXPECT_EQ(capable & 0xff, 1u);
  }
}

CHECK_CASE("attributes", "a large block can be shared by legacy IPC",
           differs("managed memory cannot, and says so")) {
  const Block block(option_large());
  unsigned capable = 0;  // the driver may write more than one byte
  GIVES(0,
        cu.cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block));
  if (memory_of(option_large()) != Memory::managed) EXPECT_EQ(capable & 0xff, 1u);
  if (memory_of(option_large()) == Memory::managed) EXPECT_EQ(capable & 0xff, 0u);
}

CHECK_CASE_SIZES("attributes", "a block names no handle types", plain) {
  const Block block(size.bytes);
  EXPECT_EQ(ask<std::uint64_t>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, block), 0u);
}

CHECK_CASE_SIZES("attributes", "no shareable handle can be made of a block",
                 differs("a vmm block can be exported: that is what it is for")) {
  const Block block(size.bytes);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult retained =
      cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(block.ptr()));
  if (memory_of(size.bytes) == Memory::vmm || memory_of(size.bytes) == Memory::host) {
    GIVES(0, retained);
    if (retained == CUDA_SUCCESS) GIVES(0, cu.cuMemRelease(handle));
  } else {
    GIVES(1, retained);
  }
}

CHECK_CASE("attributes", "an address that nobody allocated is refused with 1", plain) {
  int local = 0;
  unsigned type = 0;
  CUdeviceptr start = 0;
  GIVES(1, cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, kNowhere));
  GIVES(1, cu.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 0x1000));
  GIVES(1, cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(&local)));
  GIVES(1, cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0));
}

CHECK_CASE_SIZES("attributes", "a freed block is unknown again", plain) {
  CUdeviceptr ptr = 0;
  {
    const Block block(size.bytes);
    ptr = block;
    ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr);
  }
  unsigned type = 0;
  CUcontext context = nullptr;
  GIVES(1, cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
  GIVES(1, cu.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
}

CHECK_CASE("attributes", "no place for the answer, and attributes that do not exist",
           plain | observes) {
  const Block block(4096);
  unsigned long long value = 0;
  observe("no place", cu.cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
  observe("attribute 0",
          cu.cuPointerGetAttribute(&value, static_cast<CUpointer_attribute>(0), block));
  observe("attribute 9999",
          cu.cuPointerGetAttribute(&value, static_cast<CUpointer_attribute>(9999), block));
}

CHECK_CASE_SIZES("attributes", "the plural gives what the singular gives", plain) {
  const CUcontext primary = use_primary();
  const Block block(size.bytes);
  unsigned type = 0;
  int ordinal = -1;
  CUcontext context = nullptr;
  CUdeviceptr device_pointer = 0, start = 0;
  std::size_t bytes = 0;
  CUpointer_attribute names[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* places_for[] = {&type, &ordinal, &context, &device_pointer, &start, &bytes};
  const CUdeviceptr inside = block + size.bytes / 2;
  GIVES(0, cu.cuPointerGetAttributes(6, names, places_for, inside));
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(ordinal, first_device());
  EXPECT_EQ(context, primary);
  EXPECT_EQ(device_pointer, inside);
  EXPECT_EQ(start, block.ptr());
  EXPECT_EQ(bytes, size.bytes);
}

CHECK_CASE("attributes", "the plural of an unknown address succeeds and says nothing is there",
           plain) {
  unsigned type = 77;
  CUcontext context = reinterpret_cast<CUcontext>(77);
  CUdeviceptr pointer = 77;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT,
                                 CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  void* places_for[] = {&type, &context, &pointer};
  GIVES(0, cu.cuPointerGetAttributes(3, names, places_for, kNowhere));
  EXPECT_EQ(type, 0u);
  EXPECT(context == nullptr);
  EXPECT_EQ(pointer, 0u);
}

CHECK_CASE("attributes", "the plural of ordinary host memory", plain | observes) {
  int local = 0;
  unsigned type = 77, is_managed = 77;
  int ordinal = 77;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* places_for[] = {&type, &ordinal, &is_managed};
  observe("code",
          cu.cuPointerGetAttributes(3, names, places_for, reinterpret_cast<CUdeviceptr>(&local)));
  observe("type", type);
  observe("ordinal", ordinal);
  observe("managed", is_managed);
}

CHECK_CASE("attributes", "the plural with an attribute that fails alone", plain | observes) {
  const Block block(4096);
  void* host = reinterpret_cast<void*>(77);
  unsigned type = 77;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_HOST_POINTER,
                                 CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* places_for[] = {&host, &type};
  observe("code", cu.cuPointerGetAttributes(2, names, places_for, block));
  observe_yes("host pointer is NULL", host == nullptr);
  observe("type", type);
}

CHECK_CASE("attributes", "the plural of nothing, and without places", plain | observes) {
  const Block block(4096);
  CUpointer_attribute name = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* place = nullptr;
  observe("none asked", cu.cuPointerGetAttributes(0, &name, &place, block));
  observe("no names", cu.cuPointerGetAttributes(1, nullptr, &place, block));
  observe("no places", cu.cuPointerGetAttributes(1, &name, nullptr, block));
}

CHECK_CASE_SIZES("attributes", "buffer ids tell live blocks apart", plain | observes) {
  const Block first(size.bytes), second(size.bytes);
  const auto a = ask<std::uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, first);
  const auto b = ask<std::uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, second);
  const auto inside = ask<std::uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, first + 100);
  EXPECT_EQ(a, inside);
  observe_yes("two blocks have two ids", a != b);
  std::uint64_t old_id = 0, new_id = 0;
  CUdeviceptr old_ptr = 0, new_ptr = 0;
  {
    const Block block(size.bytes);
    old_ptr = block;
    old_id = ask<std::uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, block);
  }
  const Block block(size.bytes);
  new_ptr = block;
  new_id = ask<std::uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, block);
  observe_yes("a block at a reused address has a new id", old_ptr != new_ptr || old_id != new_id);
}

CHECK_CASE_SIZES("attributes", "the remaining attributes that programs ask for", plain | observes) {
  const Block block(size.bytes);
  const struct {
    const char* name;
    CUpointer_attribute attribute;
  } rest[] = {{"mapped", CU_POINTER_ATTRIBUTE_MAPPED},
              {"access flags", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS},
              {"memory pool", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE}};
  for (const auto& one : rest) {
    std::uint64_t value = 0;
    const CUresult code = cu.cuPointerGetAttribute(&value, one.attribute, block);
    observe(one.name, std::to_string(code) + ", value " + std::to_string(value));
  }
}

CHECK_CASE_SIZES("attributes", "a block can be reached by GPUDirect RDMA",
                 differs("managed memory cannot, its pages move; nor can host memory")) {
  const Block block(size.bytes);
  if (device_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0) == 0) {
    SKIP("the device has no GPUDirect RDMA");
  }
  const auto capable = ask<unsigned>(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, block) & 0xff;
  const Memory kind = memory_of(size.bytes);
  EXPECT_EQ(capable, kind == Memory::managed || kind == Memory::host ? 0u : 1u);
}

CHECK_CASE_SIZES("attributes", "the attributes of a mapping",
                 observes | differs("a vmm block is a mapping, one of cuMemAlloc is not")) {
  const Block block(size.bytes);
  std::uint64_t bytes = 0, base = 0, id = 0;
  observe("mapping size code",
          cu.cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, block));
  observe("mapping size", static_cast<long long>(bytes));
  observe("mapping base code",
          cu.cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, block));
  observe_yes("mapping base is the block's", base == block);
  observe("memory block id code",
          cu.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, block));
  if (memory_of(size.bytes) == Memory::vmm) EXPECT(bytes >= size.bytes && base <= block);
}

// Documented: to ask for the tokens turns it on.
CHECK_CASE_SIZES("attributes", "asking for P2P tokens makes memory operations synchronize", plain) {
  const Block one(size.bytes), two(size.bytes);
  CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens{};
  unsigned on = 9;
  if (cu.cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, one) == CUDA_SUCCESS) {
    GIVES(0, cu.cuPointerGetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, one));
    EXPECT_EQ(on, 1);
  }
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_P2P_TOKENS, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS};
  void* places[] = {&tokens, &on};
  on = 9;
  if (cu.cuPointerGetAttributes(2, which, places, two) == CUDA_SUCCESS &&
      (tokens.p2pToken != 0 || tokens.vaSpaceToken != 0)) {
    EXPECT_EQ(on, 1);
  }
}
