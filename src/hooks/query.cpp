// What a program asks about memory. The driver answers; for a vmm block kvshim then puts in what
// cuMemAlloc memory would have said: the requested range, the owner context, an id of its own.
#include "base/kind.h"
#include "base/options.h"
#include "hooks/hook.h"

using namespace kvshim;

namespace {

// Attributes in which VMM memory differs from cuMemAlloc memory and the registry knows better.
void answer(engine::BlockView& block, CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = block.context;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = block.base;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(data) = block.bytes;
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      // Blocks of one slab are one buffer to the driver. Its ids count up from small numbers.
      *static_cast<unsigned long long*>(data) = (1ull << 62) + block.id;
      break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *static_cast<unsigned*>(data) = block.sync_memops ? 1 : 0;
      break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      // Documented: to ask for the tokens is to set it.
      block.sync_memops = engine::set_sync_memops(block.base, true);
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      // One byte: the driver may have written that or four.
      if (options().ipc == IpcPolicy::emulate && !block.opened && block.exportable) {
        *static_cast<unsigned char*>(data) = 1;
      }
      break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      // Native memory has none, and is shared by its IPC handle. But whoever finds a fabric handle
      // may reach other hosts with it, which legacy IPC cannot.
      if (options().ipc == IpcPolicy::emulate && !block.fabric) {
        *static_cast<unsigned long long*>(data) = 0;
      }
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      // Of the host kind the driver says host memory. The program asked for device memory and may
      // do with it what it does with that: kernels, every copy, no access by the CPU.
      if (block.kind == Kind::host) *static_cast<unsigned*>(data) = CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      if (block.kind == Kind::host) *static_cast<int*>(data) = block.device;
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (block.kind == Kind::host) *static_cast<void**>(data) = nullptr;
      break;
    default:
      break;
  }
}

// What the driver would say of an address that nobody allocated. Holes in our own mappings are that
// to the program, whatever is mapped there.
constexpr CUdeviceptr kNobodys = 16;

// The single query has an error for a pointer that the CPU cannot use, as natively.
bool hidden(Place place, const engine::BlockView& block, CUpointer_attribute attribute) {
  return place == Place::hole || (place == Place::block && block.kind == Kind::host &&
                                  attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER);
}

// A vmm block to answer for, a hole to hide, or neither.
Place place_of(const Reentry& guard, CUdeviceptr ptr, engine::BlockView* block) {
  if (pass_through(guard)) return Place::foreign;
  const Place place = engine::find(ptr, block);
  return place == Place::block && !is_mapping(block->kind) ? Place::foreign : place;
}

}  // namespace

KVSHIM_HOOK_DEF CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size,
                                                 CUdeviceptr ptr) {
  const Reentry guard;
  engine::BlockView block;
  const Place place = place_of(guard, ptr, &block);
  const CUresult code =
      real::cuMemGetAddressRange_v2(base, size, place == Place::hole ? kNobodys : ptr);
  if (place != Place::block) return code;
  // Old drivers answer 500 for some VMM addresses (NVIDIA/nccl#2332): the registry knows them all.
  if (code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_FOUND) return code;
  if (base != nullptr) *base = block.base;
  if (size != nullptr) *size = block.bytes;
  return CUDA_SUCCESS;
}

KVSHIM_HOOK_DEF CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                               CUdeviceptr ptr) {
  const Reentry guard;
  engine::BlockView block;
  const Place place = place_of(guard, ptr, &block);
  const CUresult code = real::cuPointerGetAttribute(
      data, attribute, hidden(place, block, attribute) ? kNobodys : ptr);
  if (place == Place::block && code == CUDA_SUCCESS) answer(block, attribute, data);
  return code;
}

KVSHIM_HOOK_DEF CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                                void** data, CUdeviceptr ptr) {
  const Reentry guard;
  engine::BlockView block;
  const Place place = place_of(guard, ptr, &block);
  const CUresult code =
      real::cuPointerGetAttributes(count, attributes, data, place == Place::hole ? kNobodys : ptr);
  if (place == Place::foreign || code != CUDA_SUCCESS) return code;
  for (unsigned index = 0; index < count; ++index) {
    if (place == Place::block) {
      answer(block, attributes[index], data[index]);
    } else if (attributes[index] == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
      // Of an unknown address the driver says that address itself (measured).
      *static_cast<CUdeviceptr*>(data[index]) = ptr;
    }
  }
  return code;
}

// Device memory is no host memory. The driver says so of cuMemAlloc memory, but of VMM memory it
// gives the address itself (measured, driver 580).
KVSHIM_HOOK_DEF CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* host,
                                                      unsigned flags) {
  const Reentry guard;
  engine::BlockView block;
  const Place place = place_of(guard, reinterpret_cast<CUdeviceptr>(host), &block);
  if (place == Place::foreign) return real::cuMemHostGetDevicePointer_v2(out, host, flags);
  return real::cuMemHostGetDevicePointer_v2(out, reinterpret_cast<void*>(kNobodys), flags);
}

KVSHIM_HOOK_DEF CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                               CUdeviceptr ptr) {
  const Reentry guard;
  engine::BlockView block;
  const Place place = place_of(guard, ptr, &block);
  const CUresult code =
      real::cuPointerSetAttribute(value, attribute, place == Place::hole ? kNobodys : ptr);
  // RDMA-facing programs set it on every buffer and treat a refusal as fatal (openucx/ucx#9895).
  // VMM memory cannot keep the promise; the flag is remembered and answered.
  if (code != CUDA_ERROR_NOT_SUPPORTED || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
      place != Place::block) {
    return code;
  }
  const bool on = *static_cast<const unsigned*>(value) != 0;
  return engine::set_sync_memops(ptr, on) ? CUDA_SUCCESS : code;
}
