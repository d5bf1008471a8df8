// Memory that a program takes past kvshim: its own mappings, pools, managed memory. Counted by the
// way it took, and told in the account with the remedy of the framework that the process shows.
#include <dlfcn.h>

#include <filesystem>

#include "host.h"

using namespace cases;

namespace {

Summary account(const char* scene, Environment more = {}) {
  more.emplace_back("KVSHIM_SUMMARY", "1");
  more.emplace_back("KVSHIM_THRESHOLD", "64MiB");
  const Result result = run(kPreloaded, scene, more);
  EXPECT_IN(result.ended(0), result.show());
  const Summary summary = summary_of(result.err);
  EXPECT_IN(summary.tables == 1, result.err);
  return summary;
}

int times(const Summary& summary, const std::string& piece) {
  int count = 0;
  for (auto at = summary.text.find(piece); at != std::string::npos;
       at = summary.text.find(piece, at + 1)) {
    ++count;
  }
  return count;
}

std::string named(const std::string& name) {
  const std::string path = work_folder() + "/" + name;
  std::filesystem::copy_file(ONLY_THERE, path, std::filesystem::copy_options::skip_existing);
  return path;
}

// What a framework brings with it.
void load_libraries() {
  if (const char* path = std::getenv("LOADS")) {
    EXPECT(dlopen(path, RTLD_NOW | RTLD_LOCAL) != nullptr);
  }
}

// A reservation that is filled piece by piece: expandable segments, ggml's pool, XLA's.
void map_own(std::size_t piece, int pieces) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr pool = 0;
  OK(cuMemAddressReserve(&pool, kGiB, 0, 0, 0));
  for (int i = 0; i < pieces; ++i) {
    const CUdeviceptr at = pool + static_cast<std::size_t>(i) * piece;
    CUmemGenericAllocationHandle handle = 0;
    OK(cuMemCreate(&handle, piece, &prop, 0));
    OK(cuMemMap(at, piece, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemSetAccess(at, piece, &access, 1));
  }
}

struct Hint {
  Environment shown;  // how the process shows what it is
  const char* said;
};

// Each hint alone, and nothing of the others with it.
void expect_hints(const char* scene, const std::vector<Hint>& hints, const char* general) {
  const Summary plain = account(scene);
  EXPECT_IN(times(plain, general) == 1, plain.text);
  for (const Hint& hint : hints) {
    const Summary summary = account(scene, hint.shown);
    EXPECT_IN(times(summary, hint.said) == 1, summary.text + hint.said);
    EXPECT_IN(!summary.says(general), summary.text);
    for (const Hint& other : hints) {
      EXPECT_IN(other.said == hint.said || !summary.says(other.said), summary.text);
    }
  }
}

}  // namespace

CASE("memory that the program maps itself: counted, with the framework's remedy") {
  const Summary summary = account("maps_itself");
  EXPECT_IN(summary.kinds.empty() && summary.says("no allocation went through kvshim"),
            summary.text);
  EXPECT_IN(summary.says("bypassed kvshim: 40 MiB in 2 cuMemCreate calls"), summary.text);
  EXPECT_IN(!summary.says("stream-ordered") && !summary.says("cuMemAllocManaged"), summary.text);
  expect_hints(
      "maps_itself",
      {{{{"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True"}},
        "PyTorch: take expandable_segments:True out of PYTORCH_CUDA_ALLOC_CONF"},
       {{{"PYTORCH_ALLOC_CONF", "expandable_segments:True"}}, "out of PYTORCH_ALLOC_CONF"},
       {{{"XLA_PYTHON_CLIENT_ALLOCATOR", "vmm"}}, "JAX: unset XLA_PYTHON_CLIENT_ALLOCATOR=vmm"},
       {{{"LOADS", named("libggml-cuda.so")}}, "ggml: build it with -DGGML_CUDA_NO_VMM=ON"},
       {{{"LOADS", named("xla_cuda_plugin.so")}}, "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async with"},
       {{{"LOADS", named("cumem_allocator.abi3.so")}}, "vLLM: without --enable-sleep-mode"},
       {{{"LOADS", named("libtensorrt_llm.so")}}, "use_kv_cache_manager_v2: false"},
       {{{"LOADS", named("libnccl.so.2")}}, "NCCL_CUMEM_ENABLE=0"}},
      "the program maps memory itself");
  // Set, and not to what it would be about.
  EXPECT(account("maps_itself", {{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False"}})
             .says("the program maps memory itself"));
}
SCENE(maps_itself) {
  load_libraries();
  use_device();
  map_own(20 * kMiB, 2);
  return 0;
}

CASE("stream-ordered allocation: counted, how much of it is large, with the remedy") {
  const Summary summary = account("pools");
  EXPECT_IN(summary.says("bypassed kvshim: 66 MiB in 3 stream-ordered allocations, 1 of them "
                         "(64 MiB) at or over the threshold"),
            summary.text);
  EXPECT_IN(times(summary, "KVSHIM_ASYNC=route gives those to kvshim") == 1, summary.text);
  expect_hints(
      "pools",
      {{{{"PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"}}, "out of PYTORCH_CUDA_ALLOC_CONF"},
       {{{"PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync"}}, "out of PYTORCH_ALLOC_CONF"},
       {{{"XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async"}}, "JAX: unset"},
       {{{"TF_GPU_ALLOCATOR", "cuda_malloc_async"}}, "TensorFlow: unset TF_GPU_ALLOCATOR"}},
      "the program uses memory pools");
  const Summary routed = account("pools", {{"KVSHIM_ASYNC", "route"}});
  EXPECT_IN(routed.says("2 MiB in 2 stream-ordered allocations, 0 of them"), routed.text);
  EXPECT_IN(!routed.says("KVSHIM_ASYNC=route"), routed.text);
}
SCENE(pools) {
  load_libraries();
  use_device();
  for (const std::size_t bytes : {kMiB, kMiB, 64 * kMiB}) {
    CUdeviceptr block = 0;
    OK(cuMemAllocAsync(&block, bytes, nullptr));
    OK(cuMemFreeAsync(block, nullptr));
  }
  OK(cuCtxSynchronize());
  return 0;
}

CASE("managed memory of the program's own: counted once, with the remedy") {
  const Summary summary = account("manages_itself");
  EXPECT_IN(summary.says("bypassed kvshim: 3 MiB in 1 cuMemAllocManaged calls"), summary.text);
  EXPECT_IN(summary.kinds.empty(), summary.text);
  expect_hints("manages_itself",
               {{{{"GGML_CUDA_ENABLE_UNIFIED_MEMORY", "1"}}, "ggml: unset"},
                {{{"TF_FORCE_UNIFIED_MEMORY", "1"}}, "unset TF_FORCE_UNIFIED_MEMORY"}},
               "managed memory itself, which stays as it is");
}
SCENE(manages_itself) {
  load_libraries();
  use_device();
  CUdeviceptr block = 0;
  OK(cuMemAllocManaged(&block, 3 * kMiB, CU_MEM_ATTACH_HOST));
  OK(cuMemFree(block));
  return 0;
}

CASE("all ways at once, beside kvshim's own blocks: each is counted by its way") {
  const Summary summary = account("everything");
  EXPECT_IN(summary.kinds.size() == 2 && !summary.says("no allocation went"), summary.text);
  EXPECT_IN(summary.says("60 MiB in 3 cuMemCreate calls of the program"), summary.text);
  EXPECT_IN(summary.says("66 MiB in 3 stream-ordered allocations"), summary.text);
  EXPECT_IN(summary.says("3 MiB in 1 cuMemAllocManaged calls"), summary.text);
}
SCENE(everything) {
  use_device();
  allocate(kMiB);
  allocate(64 * kMiB);
  map_own(20 * kMiB, 3);
  return scene_pools() + scene_manages_itself();
}

CASE("calls that fail have taken nothing, and are not counted") {
  const Result result = run(kPreloaded, "fails", {{"KVSHIM_SUMMARY", "1"}});
  EXPECT_IN(result.ended(0) && summary_of(result.err).tables == 0, result.show());
}
SCENE(fails) {
  use_device();
  CUdeviceptr block = 0;
  CODE(cuMemAllocManaged(&block, 0, CU_MEM_ATTACH_HOST), CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp none{};
  CODE(cuMemCreate(&handle, kMiB, &none, 0), CUDA_ERROR_INVALID_VALUE);
  CODE(cuMemAllocAsync(&block, 1ull << 50, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  return 0;
}
