// See remedies.h. The names were read in the frameworks' own sources and documents: PyTorch's "CUDA
// semantics" page (PYTORCH_ALLOC_CONF; PYTORCH_CUDA_ALLOC_CONF is its older name), JAX's "GPU
// memory allocation" page and jax-ml/jax#36579 (vmm), openxla/xla#41069 (all allocators by
// cuMemCreate), TensorFlow's gpu_process_state.cc, ggml's CMakeLists.txt (GGML_CUDA_NO_VMM is a
// build option; no variable of that name is read) and llama.cpp's docs/build.md, vLLM's
// device_allocator/cumem.py, TensorRT-LLM's runtime/kv_cache_manager_v2, NCCL's "Environment
// variables".
#include "telemetry/remedies.h"

#include <stdlib.h>
#include <string.h>

#include "telemetry/objects.h"

namespace kvshim::telemetry {

namespace {

struct Remedy {
  Way way;
  const char* variable;  // fits where this one is set ...
  const char* holds;     // ... and has this text in it
  const char* object;    // or fits where this is loaded (objects.h)
  const char* text;
};

constexpr Remedy kRemedies[] = {
    {Way::own_vmm, "PYTORCH_ALLOC_CONF", "expandable_segments:True", nullptr,
     "PyTorch: take expandable_segments:True out of PYTORCH_ALLOC_CONF"},
    {Way::own_vmm, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", nullptr,
     "PyTorch: take expandable_segments:True out of PYTORCH_CUDA_ALLOC_CONF"},
    {Way::own_vmm, "XLA_PYTHON_CLIENT_ALLOCATOR", "vmm", nullptr,
     "JAX: unset XLA_PYTHON_CLIENT_ALLOCATOR=vmm"},
    {Way::own_vmm, nullptr, nullptr, "/libggml-cuda.so",
     "ggml: build it with -DGGML_CUDA_NO_VMM=ON, then its pool uses cudaMalloc"},
    {Way::own_vmm, nullptr, nullptr, "/xla_cuda_plugin.so",
     "JAX: where XLA maps all memory itself, XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async with "
     "KVSHIM_ASYNC=route"},
    {Way::own_vmm, nullptr, nullptr, "/cumem_allocator.",
     "vLLM: without --enable-sleep-mode weights and KV cache come by cudaMalloc"},
    {Way::own_vmm, nullptr, nullptr, "/libtensorrt_llm.so",
     "TensorRT-LLM: use_kv_cache_manager_v2: false takes the KV cache by cudaMalloc"},
    {Way::own_vmm, nullptr, nullptr, "/libnccl.so",
     "NCCL: its own buffers, best left alone; NCCL_CUMEM_ENABLE=0 takes them by cudaMalloc"},
    {Way::pool, "PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync", nullptr,
     "PyTorch: take backend:cudaMallocAsync out of PYTORCH_ALLOC_CONF"},
    {Way::pool, "PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", nullptr,
     "PyTorch: take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"},
    {Way::pool, "XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async", nullptr,
     "JAX: unset XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"},
    {Way::pool, "TF_GPU_ALLOCATOR", "cuda_malloc_async", nullptr,
     "TensorFlow: unset TF_GPU_ALLOCATOR=cuda_malloc_async"},
    {Way::own_managed, "GGML_CUDA_ENABLE_UNIFIED_MEMORY", "", nullptr,
     "ggml: unset GGML_CUDA_ENABLE_UNIFIED_MEMORY"},
    {Way::own_managed, "TF_FORCE_UNIFIED_MEMORY", "", nullptr,
     "TensorFlow, JAX: unset TF_FORCE_UNIFIED_MEMORY"},
    {Way::own_managed, nullptr, nullptr, "/libnvshare.so", "nvshare: see its line below"},
};

// Indexed by Way.
constexpr const char* kGeneral[] = {
    "the program maps memory itself. PyTorch: is expandable_segments on? ggml: "
    "-DGGML_CUDA_NO_VMM=ON when it is built. JAX: XLA_PYTHON_CLIENT_ALLOCATOR",
    "the program uses memory pools. PyTorch: backend:native. JAX: another "
    "XLA_PYTHON_CLIENT_ALLOCATOR than cuda_async",
    "the program asks for managed memory itself, which stays as it is: nothing to do",
};

bool fits(const Remedy& remedy) {
  if (remedy.object != nullptr) return find_object(remedy.object) != Where::absent;
  const char* value = secure_getenv(remedy.variable);
  return value != nullptr && strstr(value, remedy.holds) != nullptr;
}

}  // namespace

void for_each_remedy(Way way, void (*say)(void* argument, const char* text), void* argument) {
  bool said = false;
  for (const Remedy& remedy : kRemedies) {
    if (remedy.way != way || !fits(remedy)) continue;
    say(argument, remedy.text);
    said = true;
  }
  if (!said) say(argument, kGeneral[static_cast<unsigned>(way)]);
}

}  // namespace kvshim::telemetry
