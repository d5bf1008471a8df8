// cuInit, the driver's version, devices and their attributes.
#include <cstdio>
#include <cstring>

#include "driver/attributes.h"
#include "driver/call.h"

namespace sim {
namespace {

struct Row {
  int attribute;
  int value;
};

// What an H200 in a PCIe host answers, for the attributes that memory libraries ask.
constexpr Row kRows[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, 0},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    {CU_DEVICE_ATTRIBUTE_TCC_DRIVER, 0},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD, 0},
    {CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0},
    {CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 200},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 9},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 1},
    // 1, though creation fails with 800 where no IMEX channel is configured.
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, 0},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
};

bool valid(CUdevice device) {
  return primary_context(device) != nullptr;
}

int bus_of(CUdevice device) {
  return 0x41 + device;
}

}  // namespace

CUresult query_device_attribute(int device, int attribute, int* value) {
  Control& c = control();
  const std::lock_guard lock(c.mutex);
  const auto error = c.attribute_errors.find({device, attribute});
  if (error != c.attribute_errors.end()) return error->second;
  const auto override_value = c.attributes.find({device, attribute});
  if (override_value != c.attributes.end()) {
    *value = override_value->second;
    return CUDA_SUCCESS;
  }
  if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? bus_of(device) : 0;
  for (const Row& row : kRows) {
    if (row.attribute == attribute) *value = row.value;
  }
  return CUDA_SUCCESS;
}

int device_attribute(int device, int attribute) {
  int value = 0;
  return query_device_attribute(device, attribute, &value) == CUDA_SUCCESS ? value : 0;
}

}  // namespace sim

namespace {

using namespace sim;

CUresult uuid(Api api, CUuuid* out, CUdevice device) {
  Call call(api);
  call.args("device=%d", device);
  return call.run(kInit, [&](Lock&) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::memset(out->bytes, 0x5a, sizeof(out->bytes));
    out->bytes[15] = static_cast<char>(device);
    return CUDA_SUCCESS;
  });
}

}  // namespace

KVSIM_API CUresult cuInit(unsigned flags) {
  Call call({"cuInit"});
  call.args("flags=%u", flags);
  return call.run(kNothing, [&](Lock&) {
    if (after_fork()) return CUDA_ERROR_NOT_INITIALIZED;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (state().devices.empty()) return CUDA_ERROR_NO_DEVICE;
    if (!state().initialised) initialised();
    state().initialised = true;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDriverGetVersion(int* version) {
  Call call({"cuDriverGetVersion"});
  return call.run(kNothing | kCallback, [&](Lock&) {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = state().driver_version;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDeviceGetCount(int* count) {
  Call call({"cuDeviceGetCount"});
  return call.run(kInit, [&](Lock&) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(state().devices.size());
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  Call call({"cuDeviceGet"});
  call.args("ordinal=%d", ordinal);
  return call.run(kInit, [&](Lock&) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  Call call({"cuDeviceGetAttribute"});
  call.args("attribute=%d device=%d", static_cast<int>(attribute), device);
  return call.run(kInit, [&](Lock&) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    return query_device_attribute(device, attribute, value);
  });
}

KVSIM_API CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  Call call({"cuDeviceGetName"});
  call.args("device=%d", device);
  return call.run(kInit, [&](Lock&) {
    if (name == nullptr || size <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(name, static_cast<std::size_t>(size), "Simulated GPU %d", device);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDeviceGetUuid(CUuuid* out, CUdevice device) {
  return uuid({"cuDeviceGetUuid"}, out, device);
}
KVSIM_API CUresult cuDeviceGetUuid_v2(CUuuid* out, CUdevice device) {
  return uuid({"cuDeviceGetUuid_v2"}, out, device);
}

KVSIM_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  Call call({"cuDeviceTotalMem_v2"});
  call.args("device=%d", device);
  return call.run(kInit, [&](Lock&) {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = state().devices[static_cast<std::size_t>(device)].memory;
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  Call call({"cuDeviceComputeCapability"});
  call.args("device=%d", device);
  return call.run(kInit, [&](Lock&) {
    if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *major = device_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    *minor = device_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDeviceGetPCIBusId(char* id, int size, CUdevice device) {
  Call call({"cuDeviceGetPCIBusId"});
  call.args("device=%d", device);
  return call.run(kInit, [&](Lock&) {
    if (id == nullptr || size < 13) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(id, static_cast<std::size_t>(size), "0000:%02X:00.0", bus_of(device));
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  Call call({"cuDeviceGetByPCIBusId"});
  return call.run(kInit, [&](Lock&) {
    unsigned domain = 0;
    unsigned bus = 0;
    if (device == nullptr || id == nullptr || std::sscanf(id, "%x:%x", &domain, &bus) != 2)
      return CUDA_ERROR_INVALID_VALUE;
    *device = static_cast<int>(bus) - bus_of(0);
    return valid(*device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  });
}
