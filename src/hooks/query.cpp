// What a program asks about memory. The driver answers first; for a vmm block kvshim then puts in
// what cuMemAlloc memory would have said: the requested range and the owner context.
#include "base/kind.h"
#include "hooks/hook.h"

using namespace kvshim;

namespace {

// Attributes in which VMM memory differs from cuMemAlloc memory and the registry knows better.
// False: the driver's answer stands.
bool answer(const engine::BlockView& block, CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = block.context;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = block.base;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(data) = block.bytes;
      return true;
    default:
      return false;
  }
}

bool find_vmm(CUdeviceptr ptr, engine::BlockView* block) {
  return engine::find(ptr, block) && block->kind == Kind::vmm;
}

// Codes after which the process or thread may ask nothing at all; any other refusal of a vmm address
// (old drivers answer 500 for some) is the registry's turn.
bool is_final(CUresult code) {
  return code == CUDA_ERROR_NOT_INITIALIZED || code == CUDA_ERROR_DEINITIALIZED ||
         code == CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

KVSHIM_HOOK_DEF CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const Reentry guard;
  if (pass_through(guard)) return real::cuMemGetInfo_v2(free, total);
  return engine::mem_info(free, total);
}

KVSHIM_HOOK_DEF CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size,
                                                 CUdeviceptr ptr) {
  const Reentry guard;
  engine::BlockView block;
  const bool ours = !pass_through(guard) && find_vmm(ptr, &block);
  const CUresult code = real::cuMemGetAddressRange_v2(base, size, ptr);
  if (!ours || is_final(code)) return code;
  if (base != nullptr) *base = block.base;
  if (size != nullptr) *size = block.bytes;
  return CUDA_SUCCESS;
}

KVSHIM_HOOK_DEF CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                               CUdeviceptr ptr) {
  const Reentry guard;
  engine::BlockView block;
  const CUresult code = real::cuPointerGetAttribute(data, attribute, ptr);
  if (code == CUDA_SUCCESS && !pass_through(guard) && find_vmm(ptr, &block)) {
    answer(block, attribute, data);
  }
  return code;
}

KVSHIM_HOOK_DEF CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                                void** data, CUdeviceptr ptr) {
  const Reentry guard;
  engine::BlockView block;
  const CUresult code = real::cuPointerGetAttributes(count, attributes, data, ptr);
  if (code == CUDA_SUCCESS && !pass_through(guard) && find_vmm(ptr, &block)) {
    for (unsigned index = 0; index < count; ++index) {
      if (data[index] != nullptr) answer(block, attributes[index], data[index]);
    }
  }
  return code;
}
