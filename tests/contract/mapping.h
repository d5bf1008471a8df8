// Memory that a program maps itself: a handle, a reservation, a mapping with access.
#pragma once

#include "gpu.h"

namespace contract {

inline CUmemAllocationProp device_memory(
    CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_NONE) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = first_device();
  prop.requestedHandleTypes = types;
  return prop;
}

// A handle, mapped and accessible.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes, CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_NONE)
      : Mapping(device_memory(types), bytes) {}
  Mapping(const CUmemAllocationProp& prop, std::size_t bytes) : bytes_(bytes) {
    CALL(cu.cuMemCreate(&handle_, bytes, &prop, 0));
    map();
  }
  Mapping(CUmemGenericAllocationHandle handle, std::size_t bytes) : handle_(handle), bytes_(bytes) {
    map();
  }
  ~Mapping() {
    GIVES(0, cu.cuMemUnmap(ptr_, bytes_));
    GIVES(0, cu.cuMemAddressFree(ptr_, bytes_));
    GIVES(0, cu.cuMemRelease(handle_));
  }
  Mapping(const Mapping&) = delete;
  CUdeviceptr ptr() const { return ptr_; }
  std::size_t bytes() const { return bytes_; }
  CUmemGenericAllocationHandle handle() const { return handle_; }

 private:
  void map() {
    const CUmemAccessDesc access{device_memory().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CALL(cu.cuMemAddressReserve(&ptr_, bytes_, 0, 0, 0));
    CALL(cu.cuMemMap(ptr_, bytes_, 0, handle_, 0));
    CALL(cu.cuMemSetAccess(ptr_, bytes_, &access, 1));
  }
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr ptr_ = 0;
  std::size_t bytes_;
};

}  // namespace contract
