// Virtual memory management: physical handles, reservations, mappings, access. None of these calls
// needs a context, none waits for work, and all are strict about sizes, overlaps and order.
#include <csignal>
#include <cstring>

#include "driver/attributes.h"
#include "driver/call.h"
#include "driver/handles.h"

namespace sim {

std::shared_ptr<Handle> find_handle(CUmemGenericAllocationHandle value) {
  const auto it = state().handles.find(value);
  return it == state().handles.end() ? nullptr : it->second;
}

CUmemGenericAllocationHandle add_handle(std::shared_ptr<Backing> backing,
                                        const CUmemAllocationProp& prop) {
  State& s = state();
  auto handle = std::make_shared<Handle>();
  handle->value = s.next_handle;
  s.next_handle += 0x1000;
  handle->prop = prop;
  handle->backing = std::move(backing);
  handle->id = s.next_id++;
  s.handles[handle->value] = handle;
  return handle->value;
}

bool is_host_location(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

}  // namespace sim

namespace {

using namespace sim;

CUresult check_prop(const CUmemAllocationProp& prop) {
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  const unsigned windows = CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT;
  if ((static_cast<unsigned>(prop.requestedHandleTypes) & windows) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    return primary_context(prop.location.id) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  }
  // Only a NUMA node can be exported, and there is one node.
  if (prop.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
    return prop.location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  return is_host_location(prop.location.type) && prop.requestedHandleTypes == 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

bool reaches_host_memory(int device) {
  return device_attribute(device,
                          CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
}

CUresult check_support(const CUmemAllocationProp& prop) {
  if ((prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0 &&
      control().fabric_create != CUDA_SUCCESS)
    return control().fabric_create;
  if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    if (control().host_numa_crash) std::raise(SIGSEGV);
    for (std::size_t i = 0; i < state().devices.size(); ++i) {
      if (reaches_host_memory(static_cast<int>(i))) return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const int device = prop.location.id;
  if (device_attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (prop.allocFlags.gpuDirectRDMACapable != 0 &&
      device_attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

bool aligned(std::uint64_t value) {
  return value % state().granularity == 0;
}

// The mappings inside [base, base + size), which may have holes but cuts none in two.
bool mappings_inside(Address base, std::size_t size, std::vector<Mapping*>* found) {
  if (size == 0 || !aligned(base) || !aligned(size) || !in_reservation(base) ||
      !in_reservation(base + size - 1))
    return false;
  const Mapping* first = find_mapping(base);
  if (first != nullptr && first->base != base) return false;
  auto& mappings = state().mappings;
  for (auto it = mappings.lower_bound(base); it != mappings.end() && it->first < base + size;
       ++it) {
    if (it->second.size > base + size - it->first) return false;
    found->push_back(&it->second);
  }
  return true;
}

// The mappings that make up [base, base + size) exactly, each one whole and none missing.
bool whole_mappings(Address base, std::size_t size, std::vector<Mapping*>* found) {
  State& s = state();
  for (Address at = base; at < base + size;) {
    const auto it = s.mappings.find(at);
    if (it == s.mappings.end() || it->second.size > base + size - at) return false;
    found->push_back(&it->second);
    at += it->second.size;
  }
  return size > 0;
}

CUresult access_allowed(const CUmemAccessDesc& desc, const Mapping& mapping) {
  const int owner = mapping.handle->backing->device;
  if (desc.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      desc.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    return CUDA_ERROR_INVALID_VALUE;
  if (is_host_location(desc.location.type)) {
    return owner == kHostMemory ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (desc.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  const int device = desc.location.id;
  if (primary_context(device) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (owner == kHostMemory) {
    return reaches_host_memory(device) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (owner == device) return CUDA_SUCCESS;
  if (control().peer_set_access != CUDA_SUCCESS) return control().peer_set_access;
  const bool p2p = static_cast<std::size_t>(owner) < state().p2p.size() &&
                   state().p2p[static_cast<std::size_t>(device)][static_cast<std::size_t>(owner)];
  return p2p ? CUDA_SUCCESS : control().no_p2p;
}

void apply_access(const CUmemAccessDesc& desc, Mapping& mapping) {
  const bool cpu = is_host_location(desc.location.type);
  mapping.access[cpu ? kHostMemory : desc.location.id] = desc.flags;
  if (!cpu) return;
  if (desc.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
    hide_from_cpu(mapping.base, mapping.size);
  } else {
    show_to_cpu(mapping.base, mapping.size, *mapping.handle->backing, mapping.offset);
  }
}

}  // namespace

KVSIM_API CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                                 const CUmemAllocationProp* prop,
                                                 CUmemAllocationGranularity_flags option) {
  Call call({"cuMemGetAllocationGranularity"});
  if (prop != nullptr) {
    call.args("location=%d:%d handles=%d option=%d", static_cast<int>(prop->location.type),
              prop->location.id, static_cast<int>(prop->requestedHandleTypes),
              static_cast<int>(option));
  }
  return call.run(kInit, [&](Lock&) {
    if (granularity == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
        option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
      return CUDA_ERROR_INVALID_VALUE;
    *granularity = state().granularity;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t size,
                               const CUmemAllocationProp* prop, unsigned long long flags) {
  Call call({"cuMemCreate"});
  if (prop != nullptr) {
    call.args("size=%zu type=%d location=%d:%d handles=%d flags=%d", size,
              static_cast<int>(prop->type), static_cast<int>(prop->location.type),
              prop->location.id, static_cast<int>(prop->requestedHandleTypes),
              prop->allocFlags.gpuDirectRDMACapable);
    call.about({static_cast<unsigned>(prop->requestedHandleTypes), prop->location.type,
                prop->location.id});
  }
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr || prop == nullptr || flags != 0 || size == 0 || !aligned(size))
      return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_prop(*prop);
    if (result == CUDA_SUCCESS) result = check_support(*prop);
    if (result != CUDA_SUCCESS) return result;
    const bool device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    auto backing = allocate_backing(device ? prop->location.id : kHostMemory, size);
    if (backing == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    if (state().new_memory != 0) std::memset(backing->bytes, state().new_memory, size);
    *out = add_handle(std::move(backing), *prop);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle value) {
  Call call({"cuMemRelease"});
  call.args("handle=0x%llx", value);
  return call.run(kInit, [&](Lock&) {
    const auto handle = find_handle(value);
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (--handle->references == 0) state().handles.erase(value);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemAddressReserve(CUdeviceptr* out, size_t size, size_t alignment,
                                       CUdeviceptr wanted, unsigned long long flags) {
  Call call({"cuMemAddressReserve"});
  call.args("size=%zu alignment=%zu addr=0x%llx flags=%llu", size, alignment, wanted, flags);
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr || size == 0 || !aligned(size) || flags != 0)
      return CUDA_ERROR_INVALID_VALUE;
    if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t step = alignment > state().granularity ? alignment : state().granularity;
    const Address base = reserve_addresses(size, step, wanted);
    if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    state().reservations[base] = {base, size};
    *out = base;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemAddressFree(CUdeviceptr base, size_t size) {
  Call call({"cuMemAddressFree"});
  call.args("ptr=0x%llx size=%zu", base, size);
  return call.run(kInit, [&](Lock&) {
    State& s = state();
    const auto it = s.reservations.find(base);
    if (it == s.reservations.end() || it->second.size != size) return CUDA_ERROR_INVALID_VALUE;
    const auto mapped = s.mappings.lower_bound(base);
    if (mapped != s.mappings.end() && mapped->first < base + size) return CUDA_ERROR_INVALID_VALUE;
    s.reservations.erase(it);
    return_addresses(base, size);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemMap(CUdeviceptr base, size_t size, size_t offset,
                            CUmemGenericAllocationHandle value, unsigned long long flags) {
  Call call({"cuMemMap"});
  call.args("ptr=0x%llx size=%zu offset=%zu handle=0x%llx", base, size, offset, value);
  return call.run(kInit, [&](Lock&) {
    State& s = state();
    const auto handle = find_handle(value);
    if (handle == nullptr || flags != 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
    // A handle is mapped as a whole or not at all.
    if (offset != 0 || size != handle->backing->size) return CUDA_ERROR_NOT_SUPPORTED;
    if (!aligned(base)) return CUDA_ERROR_INVALID_VALUE;
    auto reservation = s.reservations.upper_bound(base);
    if (reservation == s.reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
    --reservation;
    const std::size_t into = base - reservation->first;
    if (into >= reservation->second.size || size > reservation->second.size - into)
      return CUDA_ERROR_INVALID_VALUE;
    const auto next = s.mappings.lower_bound(base);
    if (find_mapping(base) != nullptr || (next != s.mappings.end() && next->first < base + size))
      return CUDA_ERROR_INVALID_VALUE;
    s.mappings[base] = {base, size, offset, handle, {}};
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemUnmap(CUdeviceptr base, size_t size) {
  Call call({"cuMemUnmap"});
  call.args("ptr=0x%llx size=%zu", base, size);
  return call.run(kInit, [&](Lock&) {
    std::vector<Mapping*> found;
    if (!mappings_inside(base, size, &found)) return CUDA_ERROR_INVALID_VALUE;
    check_in_flight(base, size, "unmap");
    for (const Mapping* mapping : found) {
      if (mapping->access.count(kHostMemory) != 0) hide_from_cpu(mapping->base, mapping->size);
      state().mappings.erase(mapping->base);
    }
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemSetAccess(CUdeviceptr base, size_t size, const CUmemAccessDesc* desc,
                                  size_t count) {
  Call call({"cuMemSetAccess"});
  if (desc != nullptr && count > 0) {
    call.args("ptr=0x%llx size=%zu count=%zu location=%d:%d access=%d", base, size, count,
              static_cast<int>(desc->location.type), desc->location.id,
              static_cast<int>(desc->flags));
    call.about({0, desc->location.type, desc->location.id});
  }
  return call.run(kInit, [&](Lock&) {
    std::vector<Mapping*> found;
    if (desc == nullptr || count == 0 || !whole_mappings(base, size, &found))
      return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      for (const Mapping* mapping : found) {
        const CUresult result = access_allowed(desc[i], *mapping);
        if (result != CUDA_SUCCESS) return result;
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      for (Mapping* mapping : found) apply_access(desc[i], *mapping);
    }
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                  CUdeviceptr address) {
  Call call({"cuMemGetAccess"});
  call.args("ptr=0x%llx", address);
  return call.run(kInit, [&](Lock&) {
    const Mapping* mapping = find_mapping(address);
    if (flags == nullptr || location == nullptr || mapping == nullptr)
      return CUDA_ERROR_INVALID_VALUE;
    const int who = is_host_location(location->type) ? kHostMemory : location->id;
    const auto it = mapping->access.find(who);
    *flags = it == mapping->access.end() ? 0 : static_cast<unsigned long long>(it->second);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                          CUmemGenericAllocationHandle value) {
  Call call({"cuMemGetAllocationPropertiesFromHandle"});
  call.args("handle=0x%llx", value);
  return call.run(kInit, [&](Lock&) {
    const auto handle = find_handle(value);
    if (prop == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *prop = handle->prop;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  Call call({"cuMemRetainAllocationHandle"});
  call.args("ptr=%p", address);
  return call.run(kInit, [&](Lock&) {
    const Mapping* mapping = find_mapping(reinterpret_cast<Address>(address));
    if (out == nullptr || mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ++mapping->handle->references;
    state().handles[mapping->handle->value] = mapping->handle;
    *out = mapping->handle->value;
    return CUDA_SUCCESS;
  });
}
