// A runtime program that shares cudaMalloc memory with a process of its own over legacy IPC, and
// looks at the last error around it: an emulated call must leave it alone, as one that works
// natively does. With KVSHIM_IPC=off the driver answers, and the attributes say so.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

namespace {

constexpr size_t kBytes = 8u << 20;

int peer(int from) {
  cudaIpcMemHandle_t handle;
  if (read(from, &handle, sizeof(handle)) != sizeof(handle)) return 2;
  void* p = nullptr;
  EXPECT(cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  EXPECT(cudaPeekAtLastError() == cudaSuccess);
  static char bytes[kBytes];
  EXPECT(cudaMemcpy(bytes, p, kBytes, cudaMemcpyDeviceToHost) == cudaSuccess);
  EXPECT(bytes[0] == 7 && bytes[kBytes - 1] == 7);
  EXPECT(cudaMemset(p, 9, kBytes) == cudaSuccess);
  EXPECT(cudaIpcCloseMemHandle(p) == cudaSuccess);
  EXPECT(cudaIpcCloseMemHandle(p) == cudaErrorInvalidValue);
  return preload::result();
}

// What the driver's attributes say; by dlsym, since the program links the runtime only.
unsigned long long attribute(CUpointer_attribute which, void* p) {
  using Get = CUresult (*)(void*, CUpointer_attribute, CUdeviceptr);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  unsigned long long value = 0;
  EXPECT(reinterpret_cast<Get>(dlsym(driver, "cuPointerGetAttribute"))(
             &value, which, reinterpret_cast<CUdeviceptr>(p)) == CUDA_SUCCESS);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2) return peer(std::atoi(argv[2]));
  const bool emulated = std::strcmp(argv[1], "emulate") == 0;
  void* p = nullptr;
  void* too_large = nullptr;
  EXPECT(cudaMalloc(&p, kBytes) == cudaSuccess);
  EXPECT((attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p) & 0xff) == emulated);
  EXPECT((attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p) == 0) == emulated);
  cudaIpcMemHandle_t handle;
  if (!emulated) {
    EXPECT(cudaIpcGetMemHandle(&handle, p) == cudaErrorInvalidValue);
    return preload::result();
  }
  EXPECT(cudaMemset(p, 7, kBytes) == cudaSuccess);
  EXPECT(cudaDeviceSynchronize() == cudaSuccess);
  EXPECT(cudaMalloc(&too_large, size_t{1} << 50) == cudaErrorMemoryAllocation);
  EXPECT(cudaIpcGetMemHandle(&handle, p) == cudaSuccess);
  EXPECT(cudaPeekAtLastError() == cudaErrorMemoryAllocation);  // what was pending still is
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
  EXPECT(cudaIpcGetMemHandle(&handle, p) == cudaSuccess);
  EXPECT(cudaGetLastError() == cudaSuccess);

  int ends[2];
  EXPECT(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char number[16];
    std::snprintf(number, sizeof(number), "%d", ends[0]);
    execl("/proc/self/exe", argv[0], argv[1], number, nullptr);
    _exit(3);
  }
  EXPECT(write(ends[1], &handle, sizeof(handle)) == sizeof(handle));
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  char last = 0;
  EXPECT(cudaMemcpy(&last, static_cast<char*>(p) + kBytes - 1, 1, cudaMemcpyDeviceToHost) ==
         cudaSuccess);
  EXPECT(last == 9);
  EXPECT(cudaFree(p) == cudaSuccess);
  return preload::result();
}
