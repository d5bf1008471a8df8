// A library that starts up as some inference servers' plugins do: its constructor, inside dlopen,
// starts a thread that makes the process's first CUDA calls, and waits for it. The loader holds its
// lock meanwhile: whoever takes that lock on the thread waits for ever.
#include <cuda.h>
#include <pthread.h>

#include <initializer_list>

#undef cuGetProcAddress

extern "C" {
int plugin_result = -1;
}

namespace {

#define STEP(call) \
  if ((call) != CUDA_SUCCESS) return __LINE__

int work() {
  CUcontext context = nullptr;
  STEP(cuInit(0));
  STEP(cuDevicePrimaryCtxRetain(&context, 0));
  STEP(cuCtxSetCurrent(context));
  std::size_t free = 0, total = 0;
  STEP(cuMemGetInfo(&free, &total));
  for (const std::size_t bytes : {std::size_t{1000}, std::size_t{3} << 20, std::size_t{64} << 20}) {
    CUdeviceptr block = 0, base = 0;
    std::size_t size = 0;
    STEP(cuMemAlloc(&block, bytes));
    STEP(cuMemsetD8(block, 5, bytes));
    STEP(cuMemGetAddressRange(&base, &size, block));
    CUipcMemHandle handle;
    cuIpcGetMemHandle(&handle, block);  // not of managed memory
    STEP(cuMemFree(block));
    STEP(cuMemAlloc(&block, bytes));
    STEP(cuMemFreeAsync(block, nullptr));
    STEP(cuStreamSynchronize(nullptr));
  }
  // All that a runtime asks for at its start, as far as kvshim has to do with it, in any version.
  for (const char* const name :
       {"cuMemAlloc", "cuMemFree", "cuMemsetD8", "cuCtxDestroy", "cuMemCreate",
        "cuIpcOpenMemHandle", "cuGetProcAddress", "cuNoSuchFunction"}) {
    for (const int version : {2000, 3020, 4010, 11030, 12000, 13000}) {
      void* function = nullptr;
      cuGetProcAddress_v2(name, &function, version, 0, nullptr);
    }
  }
  STEP(cuDevicePrimaryCtxRelease(0));
  return 0;
}

__attribute__((constructor)) void begin() {
  pthread_t thread;
  const auto run = [](void*) -> void* {
    plugin_result = work();
    return nullptr;
  };
  if (pthread_create(&thread, nullptr, run, nullptr) == 0) pthread_join(thread, nullptr);
}

}  // namespace
