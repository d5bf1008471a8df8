// A plugin that is linked with the driver: loaded with RTLD_DEEPBIND it passes every preload by.
#include <cuda.h>

extern "C" CUresult plugin_alloc(CUdeviceptr* out, size_t bytes) {
  return cuMemAlloc(out, bytes);
}
extern "C" CUresult plugin_free(CUdeviceptr ptr) {
  return cuMemFree(ptr);
}
