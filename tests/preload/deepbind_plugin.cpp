// A plugin that is linked with the driver. Loaded with RTLD_DEEPBIND it finds the driver's
// functions before anything preloaded.
#include <cuda.h>

extern "C" CUresult plugin_alloc(CUdeviceptr* out, size_t bytes) {
  return cuMemAlloc(out, bytes);
}
extern "C" CUresult plugin_free(CUdeviceptr ptr) {
  return cuMemFree(ptr);
}
extern "C" void* plugin_target() {
  return reinterpret_cast<void*>(&cuMemAlloc);
}
