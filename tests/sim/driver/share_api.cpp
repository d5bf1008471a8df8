// VMM memory that leaves the process: POSIX file descriptors, fabric handles, dma-buf.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "driver/call.h"
#include "driver/handles.h"

namespace {

using namespace sim;

// What a fabric handle carries: where another process of this machine finds the memory.
struct FabricHandle {
  char magic[8];
  int pid;
  int fd;
  int device;
  int reserved;
  std::uint64_t offset;
  std::uint64_t size;
};
static_assert(sizeof(FabricHandle) <= sizeof(CUmemFabricHandle));
constexpr char kMagic[8] = {'k', 'v', 's', 'i', 'm', 'f', 'a', 'b'};

CUmemAllocationProp imported_prop(const Backing& backing, CUmemAllocationHandleType type) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = type;
  prop.location.type =
      backing.device == kHostMemory ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = backing.device == kHostMemory ? 0 : backing.device;
  return prop;
}

CUresult export_fabric(Backing& backing, void* out) {
  if (control().fabric_export != CUDA_SUCCESS) return control().fabric_export;
  FabricHandle handle{};
  std::memcpy(handle.magic, kMagic, sizeof(kMagic));
  handle.pid = static_cast<int>(getpid());
  handle.fd = arena_fd();
  handle.device = backing.device;
  handle.offset = backing.offset;
  handle.size = backing.size;
  backing.exported = true;
  std::memset(out, 0, sizeof(CUmemFabricHandle));
  std::memcpy(out, &handle, sizeof(handle));
  return CUDA_SUCCESS;
}

std::shared_ptr<Backing> import_fabric(const void* data) {
  FabricHandle handle;
  std::memcpy(&handle, data, sizeof(handle));
  if (std::memcmp(handle.magic, kMagic, sizeof(kMagic)) != 0) return nullptr;
  return open_foreign_backing(handle.pid, handle.fd, handle.offset, handle.size, handle.device);
}

}  // namespace

KVSIM_API CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle value,
                                                CUmemAllocationHandleType type,
                                                unsigned long long flags) {
  Call call({"cuMemExportToShareableHandle"});
  call.args("handle=0x%llx type=%d", value, static_cast<int>(type));
  call.about({static_cast<unsigned>(type), 0, -1});
  return call.run(kInit, [&](Lock&) {
    const auto handle = find_handle(value);
    if (out == nullptr || handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((handle->prop.requestedHandleTypes & type) == 0) return CUDA_ERROR_INVALID_VALUE;
    if (handle->backing->imported) return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) return export_fabric(*handle->backing, out);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    const int fd = export_backing(*handle->backing);
    if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *static_cast<int*>(out) = fd;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* shared,
                                                  CUmemAllocationHandleType type) {
  Call call({"cuMemImportFromShareableHandle"});
  call.args("type=%d", static_cast<int>(type));
  call.about({static_cast<unsigned>(type), 0, -1});
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Backing> backing;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shared));
      if (fcntl(fd, F_GETFD) < 0) return CUDA_ERROR_UNKNOWN;
      backing = import_backing(fd);
    } else if (type == CU_MEM_HANDLE_TYPE_FABRIC && shared != nullptr) {
      if (control().fabric_create != CUDA_SUCCESS) return CUDA_ERROR_NOT_SUPPORTED;
      backing = import_fabric(shared);
    }
    if (backing == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUmemAllocationProp prop = imported_prop(*backing, type);
    *out = add_handle(std::move(backing), prop);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemGetHandleForAddressRange(void* out, CUdeviceptr address, size_t size,
                                                 CUmemRangeHandleType type,
                                                 unsigned long long flags) {
  Call call({"cuMemGetHandleForAddressRange"});
  call.args("ptr=0x%llx size=%zu type=%d flags=%llu", address, size, static_cast<int>(type), flags);
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || size == 0)
      return CUDA_ERROR_INVALID_VALUE;
    if (address % 4096 != 0 || size % 4096 != 0) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Backing> backing;
    if (const auto block = find_block(address)) {
      if (block->kind == BlockKind::native && size <= block->base + block->taken - address)
        backing = block->backing;
    } else if (const Mapping* mapping = find_mapping(address)) {
      if (size <= mapping->base + mapping->size - address) backing = mapping->handle->backing;
    }
    // Host-NUMA memory has no dma-buf (measured, driver 580, H200).
    if (backing == nullptr || backing->imported || backing->device == kHostMemory)
      return CUDA_ERROR_INVALID_VALUE;
    const int fd = export_backing(*backing);
    if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *static_cast<int*>(out) = fd;
    return CUDA_SUCCESS;
  });
}
