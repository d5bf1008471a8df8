// Does the simulation behave as the measured driver does? Memory, attributes, symbols and control.
// Work and contexts are in selftest_work.cpp, other processes in selftest_process.cpp, the stand-in
// runtime in selftest_runtime.cpp.
#include "selftest.h"

namespace {

void native_memory() {
  CUdeviceptr p = 0;
  CUdeviceptr q = 0;
  size_t free0, free1, total, size;
  CODE(cuMemAlloc(&p, 0), 1);
  CODE(cuMemAlloc(nullptr, 16), 1);
  CODE(cuMemAlloc(&p, size_t{1} << 50), 2);
  OK(cuMemFree(0));
  CODE(cuMemFree(0x1000), 1);
  OK(cuMemGetInfo(&free0, &total));
  OK(cuMemGetInfo(nullptr, &total));
  OK(cuMemAlloc(&p, 1000));
  CODE(cuMemFree(p + 1), 1);
  OK(cuMemGetAddressRange(&q, &size, p + 999));
  CHECK(q == p && size == 1000 && p % 512 == 0);
  CODE(cuMemGetAddressRange(&q, &size, p + 1000), 500);
  CODE(cuMemsetD8(p, 1, 1001), 1);
  OK(cuMemsetD8(p, 1, 1000));
  OK(cuMemFree(p));
  CODE(cuMemFree(p), 1);
  std::vector<CUdeviceptr> many(20000);
  for (CUdeviceptr& m : many) OK(cuMemAlloc(&m, 256));
  OK(cuMemGetInfo(&free1, &total));
  CHECK(free0 - free1 <= 12 * kMiB);
  for (CUdeviceptr m : many) OK(cuMemFree(m));
  OK(cuMemAlloc(&p, kPage + 512));
  OK(cuMemGetInfo(&free1, &total));
  CHECK(free0 - free1 == 2 * kPage);
  OK(cuMemFree(p));
  OK(cuMemGetInfo(&free1, &total));
  CHECK(free0 == free1);
  size_t pitch;
  OK(cuMemAllocPitch(&p, &pitch, 600, 3, 4));
  CHECK(pitch == 1024);
  OK(cuMemFree(p));
  on_thread([&] {
    CUdeviceptr r;
    CODE(cuMemAlloc(&r, 16), 201);
    CODE(cuMemAllocManaged(&r, 16, 1), 201);
    CODE(cuMemGetInfo(&free1, &total), 201);
    CODE(cuMemFree(0x1000), 1);
    OK(cuMemFree(0));
  });
}

void vmm() {
  const kvsim_counts before = counts();
  {
    const CUmemAllocationProp prop = vmm_prop();
    CUmemGenericAllocationHandle h;
    CODE(cuMemCreate(&h, 4096, &prop, 0), 1);
    const CUmemAllocationProp fabric = vmm_prop(0, CU_MEM_HANDLE_TYPE_FABRIC);
    CODE(cuMemCreate(&h, kPage, &fabric, 0), 800);
    CODE(cuMemCreate(&h, size_t{1} << 44, &prop, 0), 2);
    on_thread([] { Vmm no_context(kPage); });
    Vmm v(2 * kPage, 0, false);
    CODE(cuMemMap(v.base, v.size, 0, v.handle, 0), 1);
    CODE(cuMemsetD8(v.base, 1, 16), 1);
    v.allow(0);
    OK(cuMemsetD8(v.base + v.size - 16, 1, 16));
    CODE(cuMemsetD8(v.base + v.size - 8, 1, 16), 1);
    CODE(cuMemUnmap(v.base, kPage), 1);
    CODE(cuMemAddressFree(v.base, v.size), 1);
    CODE(cuMemFree(v.base), 1);
    CODE(cuMemFreeAsync(v.base, nullptr), 1);
    // The same memory, a second time.
    int fd = -1;
    OK(cuMemExportToShareableHandle(&fd, v.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CUmemGenericAllocationHandle again;
    CUdeviceptr twin;
    OK(cuMemImportFromShareableHandle(&again, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuMemAddressReserve(&twin, v.size, 0, 0, 0));
    OK(cuMemMap(twin, v.size, 0, again, 0));
    const CUmemAccessDesc desc{{CU_MEM_LOCATION_TYPE_DEVICE, {0}},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemSetAccess(twin, v.size, &desc, 1));
    OK(cuMemsetD8(v.base, 0x5a, 16));
    unsigned char bytes[16] = {};
    OK(cuMemcpyDtoH(bytes, twin, 16));
    CHECK(bytes[15] == 0x5a);
    OK(cuMemUnmap(twin, v.size));
    OK(cuMemRelease(again));
    OK(cuMemAddressFree(twin, v.size));
    OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(v.base + 100)));
    CHECK(again == v.handle);
    OK(cuMemRelease(again));
    CHECK(counts().device_bytes - before.device_bytes == v.size);
  }
  const kvsim_counts after = counts();
  CHECK(after.handles == before.handles && after.mappings == before.mappings);
  CHECK(after.reservations == before.reservations && after.device_bytes == before.device_bytes);
}

template <typename T>
CUresult attribute(CUpointer_attribute which, CUdeviceptr p, T* out) {
  return cuPointerGetAttribute(out, which, p);
}

void pointer_attributes() {
  CUdeviceptr native, managed;
  OK(cuMemAlloc(&native, 1000));
  OK(cuMemAllocManaged(&managed, 1000, CU_MEM_ATTACH_GLOBAL));
  Vmm v(kPage);
  const struct {
    CUdeviceptr p;
    unsigned ipc, is_managed, handles, sync;
    bool host, context;
  } rows[] = {{native + 5, 1, 0, 0, 0, false, true},
              {v.base + 5, 0, 0, 1, 0, false, false},
              {managed + 5, 0, 1, 0, 1, true, true}};
  for (const auto& row : rows) {
    unsigned type = 0, value = 9;
    CUcontext context;
    void* host;
    unsigned long long handles = 9;
    OK(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, row.p, &type));
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    OK(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, row.p, &context));
    CHECK(context == (row.context ? g_context[0] : nullptr));
    CODE(attribute(CU_POINTER_ATTRIBUTE_HOST_POINTER, row.p, &host), row.host ? 0 : 1);
    OK(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, row.p, &value));
    CHECK(value == row.is_managed);
    OK(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, row.p, &value));
    CHECK(value == row.ipc);
    OK(attribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, row.p, &value));
    CHECK(value == row.sync);
    OK(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, row.p, &handles));
    CHECK(handles == row.handles);
  }
  const unsigned on = 1;
  OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, native));
  CODE(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, v.base), 801);
  unsigned type;
  CODE(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x1000, &type), 1);
  CUipcMemHandle a, b;
  OK(cuIpcGetMemHandle(&a, native));
  OK(cuIpcGetMemHandle(&b, native + 8));
  CHECK(std::memcmp(&a, &b, sizeof(a)) == 0);
  CODE(cuIpcGetMemHandle(&b, v.base), 1);
  CODE(cuIpcGetMemHandle(&b, managed), 1);
  CUdeviceptr opened;
  CODE(cuIpcOpenMemHandle(&opened, a, 1), 201);
  CODE(cuIpcOpenMemHandle(&opened, a, 0), 1);
  OK(cuMemFree(managed));
  OK(cuMemFree(native));
}

void pools() {
  CUdeviceptr p;
  OK(cuMemAllocAsync(&p, 1000, nullptr));
  CODE(cuMemFree(p + 512), 1);
  OK(cuMemFree(p));
  OK(cuMemAllocAsync(&p, 1000, nullptr));
  OK(cuMemFreeAsync(p, nullptr));
  OK(cuMemAlloc(&p, 1000));
  OK(cuMemFreeAsync(p, nullptr));
  OK(cuCtxSynchronize());
  CODE(cuMemFree(p), 1);
}

template <typename Function>
CUresult resolve(const char* name, int version, int flags, Function* out) {
  CUdriverProcAddressQueryResult status;
  return cuGetProcAddress(name, reinterpret_cast<void**>(out), version, flags, &status);
}

void symbols() {
  void *v1, *v2, *p;
  OK(resolve("cuMemAlloc", 2000, 0, &v1));
  OK(resolve("cuMemAlloc", 3020, 0, &v2));
  CHECK(v1 != v2 && v1 != nullptr && v2 == reinterpret_cast<void*>(&cuMemAlloc));
  OK(resolve("cuMemAlloc", 13000, 2, &p));
  CHECK(p == v2);
  OK(resolve("cuMemAlloc_v2", 13000, 0, &p));
  CHECK(p == nullptr);
  OK(resolve("cuMemsetD8Async", 7000, 2, &v1));
  OK(resolve("cuMemsetD8Async", 7000, 1, &v2));
  CHECK(v1 != nullptr && v2 != nullptr && v1 != v2);
  OK(resolve("cuGetProcAddress", 11030, 0, &v1));
  OK(resolve("cuGetProcAddress", 12000, 0, &v2));
  CHECK(v1 != v2 && v2 == reinterpret_cast<void*>(&cuGetProcAddress));
  CODE(resolve("cuMemAlloc", 13010, 0, &p), 1);
  kvsim_hide("cuMemCreate", 1);
  OK(resolve("cuMemCreate", 13000, 0, &p));
  CHECK(p == nullptr);
  kvsim_reset();
}

void control() {
  CUdeviceptr p;
  OK(kvsim_fail("cuMemAlloc_v2:2:2"));
  OK(cuMemAlloc(&p, 16));
  OK(cuMemFree(p));
  CODE(cuMemAlloc(&p, 16), 2);
  OK(cuMemAlloc(&p, 16));
  OK(kvsim_fail("cuMemFree_v2:1:999:1:after"));
  CODE(cuMemFree(p), 999);
  CODE(cuMemFree(p), 1);
  kvsim_set_fabric(0, 1);
  const CUmemAllocationProp prop = vmm_prop(0, CU_MEM_HANDLE_TYPE_FABRIC);
  CUmemGenericAllocationHandle h;
  CUmemFabricHandle shared;
  OK(cuMemCreate(&h, kPage, &prop, 0));
  CODE(cuMemExportToShareableHandle(&shared, h, CU_MEM_HANDLE_TYPE_FABRIC, 0), 1);
  OK(cuMemRelease(h));
  int value;
  kvsim_set_attribute(0, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0);
  OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0));
  CHECK(value == 0);
  CODE(cuMemAllocManaged(&p, 16, 1), 801);
  kvsim_reset();
  kvsim_log_clear();
  const CUmemAllocationProp posix = vmm_prop();
  OK(cuMemCreate(&h, kPage, &posix, 0));
  char line[200];
  kvsim_log_line(0, line, sizeof(line));
  CHECK(!std::strcmp(line, "cuMemCreate size=2097152 type=1 location=1:0 handles=1 flags=0 -> 0"));
  OK(cuMemRelease(h));
  CHECK(kvsim_log_count("cuMemRelease") == 1 && kvsim_log_count(nullptr) == 2);
  kvsim_hold_until("cuMemRelease", "cuMemGetInfo_v2");
  OK(cuMemCreate(&h, kPage, &posix, 0));
  std::thread held([&] { OK(cuMemRelease(h)); });
  while (kvsim_waiting("cuMemRelease") == 0) std::this_thread::yield();
  size_t f, t;
  OK(cuMemGetInfo(&f, &t));
  held.join();
  CHECK(kvsim_gate_timeouts() == 0);
  kvsim_reset();
}

}  // namespace

int main() {
  start();
  native_memory();
  vmm();
  pointer_attributes();
  pools();
  symbols();
  control();
  return report("selftest_memory");
}
