// What communication libraries do to a pointer before they hand it to a network card or to another
// process: NCCL's user buffers, UCX, NIXL, Mooncake. On a vmm block every step must give what it
// gives on memory that the program created and mapped itself; elsewhere what cuMemAlloc gives.
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "mapping.h"

using namespace contract;

namespace {

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

std::vector<std::size_t> sizes() {
  return {2 * kMiB, 3 * kMiB + 512, 20 * kMiB, option_large()};
}

bool has_rdma() {
  return device_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                          first_device()) != 0;
}

// The best that a program would ask for itself: exportable, and for RDMA where the device can.
CUmemAllocationProp exportable(CUmemAllocationHandleType types = kFd) {
  CUmemAllocationProp prop = device_memory(types);
  prop.allocFlags.gpuDirectRDMACapable = has_rdma() ? 1 : 0;
  return prop;
}

template <typename T>
T ask(CUpointer_attribute attribute, CUdeviceptr ptr) {
  T value{};
  CALL(cu.cuPointerGetAttribute(&value, attribute, ptr));
  return value;
}

// What a handle tells, with the size that may be mapped.
struct Shared {
  CUmemAllocationProp prop{};
  std::size_t mapped = 0;
};

// NCCL: the range, the handle behind it, its properties, an export, an import that is mapped at a
// second address, the release. `bytes` is what cuMemGetAddressRange must say.
Shared as_nccl(CUdeviceptr at, CUdeviceptr base, std::size_t bytes) {
  CUdeviceptr start = 0;
  std::size_t size = 0;
  GIVES(0, cu.cuMemGetAddressRange(&start, &size, at));
  EXPECT_EQ(start, base);
  EXPECT_EQ(size, bytes);

  CUmemGenericAllocationHandle handle = 0, interior = 0;
  CALL(cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(start)));
  GIVES(0, cu.cuMemRetainAllocationHandle(&interior, reinterpret_cast<void*>(at)));
  GIVES(0, cu.cuMemRelease(interior));

  Shared shared;
  CUmemAllocationProp& prop = shared.prop;
  CALL(cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  EXPECT_EQ(prop.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(prop.location.id, first_device());
  EXPECT_EQ(static_cast<int>(prop.allocFlags.gpuDirectRDMACapable), has_rdma() ? 1 : 0);
  EXPECT((prop.requestedHandleTypes & (kFd | kFabric)) != 0);

  std::size_t granularity = 0;
  GIVES(0, cu.cuMemGetAllocationGranularity(&granularity, &prop,
                                            CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  REQUIRE(granularity != 0);
  shared.mapped = (size + granularity - 1) / granularity * granularity;

  CUmemGenericAllocationHandle imported = 0;
  if ((prop.requestedHandleTypes & kFd) != 0) {
    int fd = -1;
    CALL(cu.cuMemExportToShareableHandle(&fd, handle, kFd, 0));
    CALL(cu.cuMemImportFromShareableHandle(
        &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), kFd));
    GIVES(0, close(fd));
  } else {
    CUmemFabricHandle fabric{};
    CALL(cu.cuMemExportToShareableHandle(&fabric, handle, kFabric, 0));
    CALL(cu.cuMemImportFromShareableHandle(&imported, &fabric, kFabric));
  }
  {
    const Mapping second(imported, shared.mapped);
    const std::size_t into = at - base;
    write_bytes(at, pattern(256, 5));
    EXPECT(read_bytes(second.ptr() + into, 256) == pattern(256, 5));
    fill(nullptr, second.ptr() + into, 64, 7);
    EXPECT(holds_word(at, 64, 7));
  }
  GIVES(0, cu.cuMemRelease(handle));
  EXPECT(holds_word(at, 64, 7));  // the memory outlives the library's reference
  return shared;
}

// A part of the memory as a dma-buf: Mooncake, NIXL and UCX ask for whole pages of the host.
CUresult dma_buf(CUdeviceptr at, std::size_t bytes) {
  int fd = -1;
  const CUresult code =
      cu.cuMemGetHandleForAddressRange(&fd, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (code == CUDA_SUCCESS) {
    EXPECT(fd >= 0);
    GIVES(0, close(fd));
  } else {
    EXPECT_EQ(fd, -1);
  }
  return code;
}

// The parts that are asked for: all of it, the first page, a part inside, the last page, and what
// lies behind. As one text, so that two kinds of memory can be compared.
std::string dma_bufs(CUdeviceptr base, std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const std::size_t whole = bytes / kPage * kPage;
  std::string text;
  const struct {
    std::size_t at, bytes;
  } parts[] = {{0, whole}, {0, kPage}, {kMiB, kPage}, {kPage, 64 * kKiB}, {whole - kPage, kPage},
               {1, kPage}, {0, 100},   {0, 0}};
  for (const auto& part : parts) text += std::to_string(dma_buf(base + part.at, part.bytes)) + " ";
  return text;
}

void expect_dma_bufs_possible() {
  if (device_attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, first_device()) == 0) {
    SKIP("the device has no dma-buf");
  }
}

}  // namespace

CHECK_CASE("registration", "as NCCL does it, on memory that the program mapped itself", plain) {
  for (const std::size_t bytes : {2 * kMiB, 20 * kMiB, option_large()}) {
    const Mapping own(exportable(), bytes);
    for (const std::size_t into : {std::size_t{0}, std::size_t{512}, bytes / 2, bytes - 256}) {
      as_nccl(own.ptr() + into, own.ptr(), bytes);
    }
  }
}

CHECK_CASE("registration", "as NCCL does it, on a block: by its handle, or else by legacy IPC",
           differs("a vmm block can be exported; managed memory can in no way, and says so")) {
  for (const std::size_t bytes : sizes()) {
    const Block block(bytes);
    for (const std::size_t into : {std::size_t{0}, std::size_t{512}, bytes / 2, bytes - 256}) {
      const Memory memory = memory_of(bytes);
      if (memory == Memory::vmm) {
        const Shared shared = as_nccl(block + into, block, bytes);
        // The same properties give a program the same memory.
        const Mapping own(shared.prop, shared.mapped);
        as_nccl(own.ptr() + into, own.ptr(), shared.mapped);
        continue;
      }
      CUmemGenericAllocationHandle handle = 0;
      CUipcMemHandle ipc{};
      // Host memory of kvshim's has a handle too, of its NUMA node.
      const bool has_handle = memory == Memory::host;
      GIVES(has_handle ? 0 : 1,
            cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(block + into)));
      if (has_handle) GIVES(0, cu.cuMemRelease(handle));
      const int wanted = memory == Memory::managed ? 1 : 0;
      GIVES(wanted, cu.cuIpcGetMemHandle(&ipc, block + into));
      EXPECT_EQ(ask<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block + into) & 0xff,
                1u - static_cast<unsigned>(wanted));
    }
  }
}

CHECK_CASE("registration", "a handle type that was not asked for is refused for the export",
           plain | observes) {
  const Mapping own(exportable(), 2 * kMiB);
  CUmemFabricHandle fabric{};
  const CUresult other = cu.cuMemExportToShareableHandle(&fabric, own.handle(), kFabric, 0);
  REFUSES(other);
  observe("own memory", other);
  const Block block(2 * kMiB);
  CUmemGenericAllocationHandle handle = 0;
  if (cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(block.ptr())) != 0) return;
  CUmemAllocationProp prop{};
  int place[16] = {};
  CALL(cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  const auto lacking = (prop.requestedHandleTypes & kFabric) == 0 ? kFabric : kFd;
  GIVES(other, cu.cuMemExportToShareableHandle(place, handle, lacking, 0));
  GIVES(0, cu.cuMemRelease(handle));
}

CHECK_CASE("registration", "as UCX does it: what kind of memory, which way to share, order",
           differs("managed memory is taken for what it is, and shared in no way")) {
  const CUcontext primary = use_primary();
  for (const std::size_t bytes : sizes()) {
    const Block block(bytes);
    const bool managed = memory_of(bytes) == Memory::managed;
    for (const CUdeviceptr at : {block.ptr(), block + 4096, block.end() - 1}) {
      unsigned type = 0, is_managed = 7, legacy = 7, memops = 7;
      int ordinal = -1;
      CUcontext context = nullptr;
      CUmemoryPool pool = reinterpret_cast<CUmemoryPool>(7);
      unsigned long long id = 0, types = 7;
      CUpointer_attribute names[] = {
          CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
          CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_CONTEXT,
          CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
          CU_POINTER_ATTRIBUTE_BUFFER_ID,      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
      void* places[] = {&type, &is_managed, &ordinal, &context, &pool, &types, &id, &legacy};
      GIVES(0, cu.cuPointerGetAttributes(8, names, places, at));
      EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
      EXPECT_EQ(is_managed & 0xff, managed ? 1u : 0u);
      EXPECT_EQ(ordinal, first_device());
      EXPECT(context == primary);
      EXPECT(pool == nullptr);
      EXPECT_EQ(id, ask<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, block));
      // The way that these answers promise must be open.
      CUipcMemHandle handle{};
      EXPECT_EQ(legacy & 0xff, managed ? 0u : 1u);
      GIVES(managed ? 1 : 0, cu.cuIpcGetMemHandle(&handle, at));
      if (types != 0) EXPECT(memory_of(bytes) == Memory::vmm && (types & kFabric) != 0);
      unsigned on = 1;
      GIVES(0, cu.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
      GIVES(0, cu.cuPointerGetAttribute(&memops, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
      EXPECT_EQ(memops & 0xff, 1u);
    }
  }
}

CHECK_CASE("registration", "as Mooncake and NIXL do it: dma-bufs, base and interior",
           differs("managed and host memory have none")) {
  expect_dma_bufs_possible();
  const Mapping own(exportable(), 20 * kMiB);
  const std::string wanted = dma_bufs(own.ptr(), own.bytes());
  EXPECT_EQ(dma_buf(own.ptr(), own.bytes()), CUDA_SUCCESS);
  for (const std::size_t bytes : {2 * kMiB, 4 * kMiB, 20 * kMiB, option_large()}) {
    const Block block(bytes);
    const bool none = memory_of(bytes) == Memory::managed || memory_of(bytes) == Memory::host;
    const std::string found = dma_bufs(block, bytes);
    if (none) {
      EXPECT(found.find("0 ") == std::string::npos);
    } else if (found != wanted) {
      fail(__FILE__, __LINE__, "dma-bufs: " + found + ", of own memory: " + wanted);
    }
    EXPECT_EQ(ask<unsigned>(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, block) & 0xff,
              none || !has_rdma() ? 0u : 1u);
  }
}

CHECK_CASE("registration", "a dma-buf up to the page in which an odd block ends",
           plain | observes) {
  expect_dma_bufs_possible();
  for (const std::size_t bytes : {3 * kMiB + 512, 5 * kMiB + 1}) {
    const Block block(bytes);
    observe("rounded up to 4 KiB", dma_buf(block, (bytes + 4095) / 4096 * 4096));
    observe("rounded up to 64 KiB", dma_buf(block, (bytes + 65535) / 65536 * 65536));
    observe("beyond 2 MiB pages", dma_buf(block, 16 * kMiB));
  }
}

CHECK_CASE("registration", "a small block: what its page shares, and its dma-buf",
           differs("a vmm block can be exported: its whole page, as natively legacy IPC does")) {
  const Block block(6000);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult code =
      cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(block.ptr()));
  if (memory_of(6000) != Memory::vmm) {
    GIVES(1, code);
    return;
  }
  GIVES(0, code);
  CUmemAllocationProp prop{};
  GIVES(0, cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  EXPECT_EQ(prop.location.id, first_device());
  GIVES(0, cu.cuMemRelease(handle));
}
