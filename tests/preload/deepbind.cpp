// RTLD_DEEPBIND plugins pass every preloaded library by: a documented limit. What they allocate is
// native and kvshim never hears of it; freeing it through kvshim works and is reported in one line,
// and nothing crashes when the plugin is handed a block of kvshim's.
#include <cuda.h>

#include <unistd.h>

#include <fstream>
#include <string>

#include "check.h"

namespace {

template <typename Function>
Function find(void* in, const char* name) {
  const auto found = reinterpret_cast<Function>(dlsym(in, name));
  EXPECT_TEXT(found != nullptr, name);
  return found;
}

// Lines of kvshim's log (KVSHIM_LOG_FILE ends in %p.log) that speak of such memory.
int reports() {
  std::string path = std::getenv("KVSHIM_LOG_FILE");
  path.replace(path.find("%p"), 2, std::to_string(getpid()));
  std::ifstream log(path);
  int count = 0;
  for (std::string line; std::getline(log, line);) {
    if (line.find("allocated past kvshim") != std::string::npos) ++count;
  }
  unlink(path.c_str());
  return count;
}

}  // namespace

int main() {
  void* const plugin = dlopen(DEEPBIND_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  EXPECT_TEXT(plugin != nullptr, plugin == nullptr ? dlerror() : "");
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  EXPECT(driver != nullptr);
  if (plugin == nullptr || driver == nullptr) return preload::result();

  CUcontext context = nullptr;
  EXPECT(find<CUresult (*)(unsigned)>(driver, "cuInit")(0) == CUDA_SUCCESS);
  EXPECT((find<CUresult (*)(CUcontext*, CUdevice)>(driver, "cuDevicePrimaryCtxRetain")(
             &context, 0)) == CUDA_SUCCESS);
  EXPECT(find<CUresult (*)(CUcontext)>(driver, "cuCtxSetCurrent")(context) == CUDA_SUCCESS);
  const auto alloc = find<CUresult (*)(CUdeviceptr*, size_t)>(driver, "cuMemAlloc_v2");
  const auto release = find<CUresult (*)(CUdeviceptr)>(driver, "cuMemFree_v2");
  EXPECT(preload::in_kvshim(reinterpret_cast<void*>(alloc)));

  const auto plugin_alloc = find<CUresult (*)(CUdeviceptr*, size_t)>(plugin, "plugin_alloc");
  const auto plugin_free = find<CUresult (*)(CUdeviceptr)>(plugin, "plugin_free");
  void* const target = find<void* (*)()>(plugin, "plugin_target")();
  EXPECT_TEXT(!preload::in_kvshim(target), "caught after all: say so in docs/compatibility.md");

  CUdeviceptr theirs = 0;
  EXPECT(plugin_alloc(&theirs, 4096) == CUDA_SUCCESS && theirs != 0);
  EXPECT(release(theirs) == CUDA_SUCCESS);
  EXPECT(release(theirs) == CUDA_ERROR_INVALID_VALUE);
  EXPECT(plugin_alloc(&theirs, 3 << 20) == CUDA_SUCCESS);
  EXPECT(release(theirs) == CUDA_SUCCESS);
  EXPECT(reports() == 1);

  CUdeviceptr ours = 0;
  EXPECT(alloc(&ours, 4096) == CUDA_SUCCESS && ours != 0);
  // The driver refuses a vmm block and frees a native one: whichever it is, the block ends once.
  if (plugin_free(ours) != CUDA_SUCCESS) EXPECT(release(ours) == CUDA_SUCCESS);
  return preload::result();
}
