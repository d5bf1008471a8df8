// Modules and launches. A module is its text; a function is the imitation of the kernel it names.
#include <string>

#include "driver/call.h"
#include "driver/kernels.h"

namespace {

using namespace sim;

struct Module {
  std::string text;  // empty for a binary image: every known kernel is assumed to be in it
};

bool is_text(const char* image) {
  return image[0] == '/' || image[0] == '.' || image[0] == '\n' || image[0] == ' ';
}

CUresult load(Api api, CUmodule* out, const void* image) {
  Call call(api);
  return call.run(kContext, [&](Lock&) {
    if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto* module = new Module;
    const auto* bytes = static_cast<const char*>(image);
    if (is_text(bytes)) module->text = bytes;
    if (!module->text.empty() && module->text.find(".version") == std::string::npos) {
      delete module;
      return CUDA_ERROR_INVALID_PTX;
    }
    *out = reinterpret_cast<CUmodule>(module);
    return CUDA_SUCCESS;
  });
}

// Copies the parameters out of either form of cuLaunchKernel's arguments.
bool read_params(const Kernel& kernel, void** params, void** extra, KernelParams* out) {
  const char* packed = nullptr;
  for (std::size_t i = 0; extra != nullptr && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = static_cast<const char*>(extra[i + 1]);
  }
  std::size_t offset = 0;
  for (unsigned i = 0; i < kMaxParams && kernel.param_bytes[i] != 0; ++i) {
    const unsigned size = kernel.param_bytes[i];
    offset = round_up(offset, size);
    const void* from = packed != nullptr   ? packed + offset
                       : params != nullptr ? params[i]
                                           : nullptr;
    if (from == nullptr) return false;
    std::memcpy(&out->value[i], from, size);
    offset += size;
  }
  return true;
}

CUresult launch(Api api, CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                unsigned by, unsigned bz, unsigned shared, CUstream stream_handle, void** params,
                void** extra) {
  const auto* kernel = reinterpret_cast<const Kernel*>(function);
  Call call(api);
  call.args("kernel=%s grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%p",
            kernel == nullptr ? "none" : kernel->name, gx, gy, gz, bx, by, bz, shared,
            static_cast<void*>(stream_handle));
  return call.run(kContext, [&](Lock& lock) {
    if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (gx == 0 || gy == 0 || gz == 0 || bx == 0 || by == 0 || bz == 0 || bx * by * bz > 1024)
      return CUDA_ERROR_INVALID_VALUE;
    KernelParams values;
    if (!read_params(*kernel, params, extra, &values)) return CUDA_ERROR_INVALID_VALUE;
    CUresult why = CUDA_SUCCESS;
    Stream* stream = find_stream(api, stream_handle, &why);
    if (stream == nullptr) return why;
    return submit(
        lock, *stream, CU_GRAPH_NODE_TYPE_KERNEL, kernel->ranges(values),
        [=](Context& context) { return kernel->run(values, context); }, false);
  });
}

CUresult launch_ex(Api api, const CUlaunchConfig* c, CUfunction function, void** params,
                   void** extra) {
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(api, function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                c->blockDimZ, c->sharedMemBytes, c->hStream, params, extra);
}

}  // namespace

KVSIM_API CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  return load({"cuModuleLoadData"}, out, image);
}
KVSIM_API CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, CUjit_option*,
                                      void**) {
  return load({"cuModuleLoadDataEx"}, out, image);
}
KVSIM_API CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) {
  return load({"cuModuleLoadFatBinary"}, out, image);
}

KVSIM_API CUresult cuModuleUnload(CUmodule handle) {
  Call call({"cuModuleUnload"});
  return call.run(kContext, [&](Lock&) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    delete reinterpret_cast<Module*>(handle);
    return CUDA_SUCCESS;
  });
}

KVSIM_API CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  Call call({"cuModuleGetFunction"});
  call.args("name=%s", name == nullptr ? "" : name);
  return call.run(kContext, [&](Lock&) {
    if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const auto* module = reinterpret_cast<const Module*>(handle);
    const Kernel* kernel = find_kernel(name);
    const bool there = module->text.empty() || module->text.find(name) != std::string::npos;
    if (kernel == nullptr || !there) return CUDA_ERROR_NOT_FOUND;
    *out = reinterpret_cast<CUfunction>(const_cast<Kernel*>(kernel));
    return CUDA_SUCCESS;
  });
}

KVSIM_TWIN(cuLaunchKernel, cuLaunchKernel_ptsz, launch,
           (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
            unsigned bz, unsigned shared, CUstream s, void** params, void** extra),
           (f, gx, gy, gz, bx, by, bz, shared, s, params, extra))
KVSIM_TWIN(cuLaunchKernelEx, cuLaunchKernelEx_ptsz, launch_ex,
           (const CUlaunchConfig* c, CUfunction f, void** params, void** extra),
           (c, f, params, extra))
