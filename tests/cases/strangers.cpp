// Pointers that kvshim never saw, or that are not its business, handed to every free function: the
// driver gets them and its code comes back. And the host's own VMM and managed calls: forwarded
// with the very arguments, counted, named in the account.
#include <dlfcn.h>
#include <sys/wait.h>

#include <regex>
#include <thread>

#include "host.h"

using namespace cases;

extern "C" CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);

namespace {

CUmemAllocationProp device_memory(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return prop;
}

CUmemAccessDesc access_of(int device) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

CUdeviceptr map_own(std::size_t bytes) {
  const CUmemAllocationProp prop = device_memory(0);
  const CUmemAccessDesc access = access_of(0);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  OK(cuMemCreate(&handle, bytes, &prop, 0));
  OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  OK(cuMemMap(address, bytes, 0, handle, 0));
  OK(cuMemSetAccess(address, bytes, &access, 1));
  OK(cuMemRelease(handle));
  return address;
}

void free_in_every_way(const char* what, CUdeviceptr (*make)()) {
  const auto say = [what](const char* how, CUdeviceptr block, int code) {
    // What is left afterwards shows whether it was freed.
    std::printf("%s by %s: %d, known %d, again %d\n", what, how, code, kvsim_knows(block),
                static_cast<int>(cuMemFree(block)));
  };
  CUdeviceptr block = make();
  say("cuMemFree", block, cuMemFree(block));
  block = make();
  const CUresult async = cuMemFreeAsync(block, nullptr);
  OK(cuCtxSynchronize());
  say("cuMemFreeAsync", block, async);
  block = make();
  const CUresult twin = cuMemFreeAsync_ptsz(block, nullptr);
  OK(cuCtxSynchronize());
  say("cuMemFreeAsync_ptsz", block, twin);
  block = make();
  say("cuMemFree of its middle", block, cuMemFree(block + 512));
  block = make();
  say("cuMemFreeHost", block, cuMemFreeHost(reinterpret_cast<void*>(block)));
}

// The driver's log with its addresses and handles numbered in order of appearance.
std::string numbered(const Result& result) {
  static const std::regex address("0x[0-9a-f]{5,}");
  std::map<std::string, std::size_t> names;
  std::string text;
  for (const std::string& call : result.calls) {
    std::string rest = call;
    for (std::smatch found; std::regex_search(rest, found, address); rest = found.suffix()) {
      const std::size_t number = names.emplace(found[0], names.size()).first->second;
      text += found.prefix().str() + "#" + std::to_string(number);
    }
    text += rest + "\n";
  }
  return text;
}

}  // namespace

CASE("pool, managed, mapped and host pointers: every free function gives the driver's code") {
  const Result bare = run(kBare, "free_strangers", small_threshold());
  const Result preloaded = run(kPreloaded, "free_strangers", small_threshold());
  EXPECT_IN(bare.ended(0), bare.show());
  EXPECT_IN(preloaded.ended(0), preloaded.show());
  EXPECT_IN(bare.out == preloaded.out, difference(bare.out, preloaded.out));
  EXPECT_IN(summary_of(preloaded.err).kinds.empty(), preloaded.err);
  EXPECT_IN(preloaded.lines("warn").empty(), preloaded.err);
}
SCENE(free_strangers) {
  use_device();
  free_in_every_way("default pool", [] {
    CUdeviceptr block = 0;
    OK(cuMemAllocAsync(&block, 64 * kMiB, nullptr));
    OK(cuStreamSynchronize(nullptr));
    return block;
  });
  free_in_every_way("own pool", [] {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool = nullptr;
    CUdeviceptr block = 0;
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&block, 4096, pool, nullptr));
    OK(cuStreamSynchronize(nullptr));
    return block;
  });
  free_in_every_way("managed", [] {
    CUdeviceptr block = 0;
    OK(cuMemAllocManaged(&block, 64 * kMiB, CU_MEM_ATTACH_GLOBAL));
    return block;
  });
  free_in_every_way("mapped", [] { return map_own(4 * kMiB); });
  free_in_every_way("host", [] {
    void* block = nullptr;
    OK(cuMemHostAlloc(&block, 8192, 0));
    return reinterpret_cast<CUdeviceptr>(block);
  });
  free_in_every_way("unknown", [] { return CUdeviceptr{0x1234567000}; });
  return 0;
}

CASE("memory of another process (legacy IPC) is freed by nobody here, and closed as ever") {
  const Environment native = {{"KVSHIM_SMALL", "native"}};
  const Result bare = run(kBare, "opened", native);
  const Result preloaded = run(kPreloaded, "opened", native);
  EXPECT_IN(bare.ended(0), bare.show());
  EXPECT_IN(preloaded.ended(0) && bare.out == preloaded.out, preloaded.show());
}
SCENE(opened) {
  int to_importer[2], to_exporter[2];
  OK(pipe(to_importer));
  OK(pipe(to_exporter));
  CUipcMemHandle handle;
  char done = 0;
  const pid_t exporter = fork();
  if (exporter == 0) {
    use_device();
    OK(cuIpcGetMemHandle(&handle, allocate(4 * kMiB)));
    if (write(to_importer[1], &handle, sizeof(handle)) != sizeof(handle)) _exit(1);
    close(to_exporter[1]);
    if (read(to_exporter[0], &done, 1) < 0) _exit(2);
    _exit(0);
  }
  use_device();
  EXPECT(read(to_importer[0], &handle, sizeof(handle)) == sizeof(handle));
  CUdeviceptr block = 0;
  OK(cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  std::printf("free %d\n", static_cast<int>(cuMemFree(block)));
  std::printf("free async %d\n", static_cast<int>(cuMemFreeAsync(block, nullptr)));
  std::printf("memset %d\n", static_cast<int>(cuMemsetD8(block, 1, 4096)));
  std::printf("close %d\n", static_cast<int>(cuIpcCloseMemHandle(block)));
  std::printf("free %d\n", static_cast<int>(cuMemFree(block)));
  close(to_exporter[1]);
  waitpid(exporter, nullptr, 0);
  return 0;
}

CASE("memory of an RTLD_DEEPBIND plugin is freed by the driver, and named once") {
  const Result result = run(kPreloaded, "deepbind", small_threshold());
  EXPECT_IN(result.ended(0), result.show());
  EXPECT_IN(result.lines("RTLD_DEEPBIND?").size() == 1, result.err);
  Summary summary = summary_of(result.err);
  EXPECT_IN(summary.says("RTLD_DEEPBIND"), result.err);
  EXPECT_IN(summary.kinds["vmm"].blocks == 1, result.err);
}
SCENE(deepbind) {
  void* const plugin = dlopen(DEEPBIND_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  EXPECT(plugin != nullptr);
  if (plugin == nullptr) return 1;
  const auto alloc =
      reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(dlsym(plugin, "plugin_alloc"));
  const auto release = reinterpret_cast<CUresult (*)(CUdeviceptr)>(dlsym(plugin, "plugin_free"));
  use_device();
  for (int round = 0; round < 3; ++round) {
    CUdeviceptr theirs = 0;
    OK(alloc(&theirs, 3 * kMiB));
    OK(cuMemsetD8(theirs, 1, 3 * kMiB));
    OK(cuMemFree(theirs));
    CODE(cuMemFree(theirs), CUDA_ERROR_INVALID_VALUE);
  }
  const CUdeviceptr ours = allocate(3 * kMiB);
  CODE(release(ours), CUDA_ERROR_INVALID_VALUE);  // a mapping to the driver: it frees nothing
  OK(cuMemFree(ours));
  return 0;
}

CASE("the host's own VMM, managed and pool calls reach the driver as they are, and alone") {
  const Result bare = run(kBare, "own_calls", {{"KVSHIM_THRESHOLD", "64MiB"}});
  const Result preloaded = run(kPreloaded, "own_calls", {{"KVSHIM_THRESHOLD", "64MiB"}});
  EXPECT_IN(bare.ended(0), bare.show());
  EXPECT_IN(preloaded.ended(0) && preloaded.err.empty(), preloaded.show());
  EXPECT(bare.calls.size() > 30);
  EXPECT_IN(numbered(bare) == numbered(preloaded), difference(numbered(bare), numbered(preloaded)));
}
SCENE(own_calls) {
  use_device();
  // A pool as ggml's: one large reservation that is filled piece by piece.
  CUdeviceptr pool = 0;
  const CUmemAllocationProp prop = device_memory(0);
  const CUmemAccessDesc access = access_of(0);
  OK(cuMemAddressReserve(&pool, 32 * kGiB, 0, 0, 0));
  const std::size_t pieces[] = {2 * kMiB, 64 * kMiB, 128 * kMiB, 6 * kMiB};
  std::size_t used = 0;
  for (const std::size_t piece : pieces) {
    CUmemGenericAllocationHandle handle = 0;
    OK(cuMemCreate(&handle, piece, &prop, 0));
    OK(cuMemMap(pool + used, piece, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemSetAccess(pool + used, piece, &access, 1));
    OK(cuMemsetD8(pool + used, 3, piece));
    used += piece;
  }
  OK(cuMemUnmap(pool, used));
  OK(cuMemAddressFree(pool, 32 * kGiB));
  // As a communication library: exportable memory, asked about, exported, mapped twice.
  CUmemAllocationProp shared = prop;
  shared.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  shared.allocFlags.gpuDirectRDMACapable = 1;
  CUmemGenericAllocationHandle first = 0, retained = 0, second = 0;
  std::size_t granularity = 0;
  CUdeviceptr at = 0, again = 0, base = 0;
  int fd = -1, dma_buf = -1;
  unsigned long long flags = 0;
  unsigned on = 1;
  OK(cuMemGetAllocationGranularity(&granularity, &shared, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  OK(cuMemCreate(&first, 4 * kMiB, &shared, 0));
  OK(cuMemAddressReserve(&at, 4 * kMiB, granularity, 0, 0));
  OK(cuMemMap(at, 4 * kMiB, 0, first, 0));
  OK(cuMemSetAccess(at, 4 * kMiB, &access, 1));
  OK(cuMemGetAccess(&flags, &access.location, at));
  OK(cuMemGetAddressRange(&base, nullptr, at + 100));
  OK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(at + 100)));
  OK(cuMemGetAllocationPropertiesFromHandle(&shared, retained));
  OK(cuMemExportToShareableHandle(&fd, retained, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemImportFromShareableHandle(&second, reinterpret_cast<void*>(static_cast<long>(fd)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  OK(cuMemGetHandleForAddressRange(&dma_buf, at, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  CODE(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at), CUDA_ERROR_NOT_SUPPORTED);
  OK(cuMemAddressReserve(&again, 4 * kMiB, 0, 0, 0));
  OK(cuMemMap(again, 4 * kMiB, 0, second, 0));
  OK(cuMemSetAccess(again, 4 * kMiB, &access, 1));
  OK(cuMemcpy(again, at + kMiB, kMiB));
  CODE(cuMemcpy(again, at, 5 * kMiB), CUDA_ERROR_INVALID_VALUE);
  for (const CUmemGenericAllocationHandle handle : {first, retained, second}) {
    OK(cuMemRelease(handle));
  }
  for (const CUdeviceptr ptr : {at, again}) {
    OK(cuMemUnmap(ptr, 4 * kMiB));
    OK(cuMemAddressFree(ptr, 4 * kMiB));
  }
  close(fd);
  close(dma_buf);
  // Managed memory of its own, over and under the threshold, with advice that kvshim never gives.
  for (const std::size_t bytes : {64 * kMiB, std::size_t{1000}}) {
    CUdeviceptr block = 0;
    OK(cuMemAllocManaged(&block, bytes, CU_MEM_ATTACH_HOST));
    OK(cuMemAdvise(block, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, {CU_MEM_LOCATION_TYPE_DEVICE, 0}));
    OK(cuMemPrefetchAsync(block, bytes, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, 0, nullptr));
    OK(cuMemsetD32(block, 7, bytes / 4));
    OK(cuMemcpy(block, block + bytes / 2, bytes / 2));
    int last = 0;
    OK(cuMemRangeGetAttribute(&last, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, block,
                              bytes));
  }
  CUdeviceptr block = 0;
  OK(cuMemAllocAsync(&block, 64 * kMiB, nullptr));
  OK(cuMemFreeAsync(block, nullptr));
  OK(cuCtxSynchronize());
  return 0;
}

CASE("threads without a context: own cuMemCreate untouched, cuMemAlloc 201, before cuInit 3") {
  for (const How how : {kBare, kPreloaded}) {
    const Result result = run(how, "no_context", {{"KVSHIM_THRESHOLD", "64MiB"}});
    EXPECT_IN(result.ended(0), result.show());
    const auto created = result.calls_of("cuMemCreate");
    EXPECT_IN(created.size() == 3, result.show());
    EXPECT_IN(result.count("cuMemCreate size=67108864 type=1 location=1:1 handles=1 flags=0") == 1,
              result.show());
    EXPECT_IN(result.count("cuMemCreate size=2097152 type=1 location=3:0 handles=1 flags=0") == 1,
              result.show());
    EXPECT_IN(result.count("cuMemCreate size=4194304 type=1 location=1:0 handles=0 flags=0") == 1,
              result.show());
    EXPECT_IN(result.count("cuMemAllocManaged") == 0, result.show());
  }
}
SCENE(no_context) {
  CUdeviceptr block = 0;
  for (const std::size_t bytes : {std::size_t{100}, 64 * kMiB}) {
    CODE(cuMemAlloc(&block, bytes), CUDA_ERROR_NOT_INITIALIZED);
  }
  CODE(cuMemFree(0x10000), CUDA_ERROR_NOT_INITIALIZED);
  OK(cuInit(0));
  std::thread([] {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop = device_memory(1);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&handle, 64 * kMiB, &prop, 0));
    prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    OK(cuMemCreate(&handle, 2 * kMiB, &prop, 0));
    prop = device_memory(0);
    OK(cuMemCreate(&handle, 4 * kMiB, &prop, 0));
    CUdeviceptr none = 77;
    for (const std::size_t bytes : {std::size_t{100}, 3 * kMiB, 64 * kMiB}) {
      CODE(cuMemAlloc(&none, bytes), CUDA_ERROR_INVALID_CONTEXT);
      EXPECT(none == 77);
    }
    CUcontext current = nullptr;
    OK(cuCtxGetCurrent(&current));
    EXPECT(current == nullptr);
  }).join();
  return 0;
}
CASE("the host's own allocation that is refused for what kvshim holds back is made once more") {
  const Result result = run(kPreloaded, "once_more", small_threshold({{"KVSIM_MEMORY", "1G"}}));
  EXPECT_IN(result.ended(0), result.show());
}
SCENE(once_more) {
  use_device();
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUmemoryPool pool = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  // Freed in stream order and not given back yet: natively the stream would give it back by itself.
  const auto hold_back = [&] {
    CUdeviceptr pieces[12];  // 756 MiB of the device's 1 GiB, each under the threshold
    for (CUdeviceptr& piece : pieces) piece = allocate(63 * kMiB);
    for (const CUdeviceptr piece : pieces) OK(cuMemFreeAsync(piece, stream));
    OK(cuStreamSynchronize(stream));
    kvsim_log_clear();
  };
  CUdeviceptr block = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = device_memory(0);

  hold_back();
  OK(cuMemCreate(&handle, 800 * kMiB, &prop, 0));
  EXPECT(kvsim_log_count("cuMemCreate") == 2);
  OK(cuMemRelease(handle));

  using PoolCall = CUresult (*)(CUdeviceptr*, CUmemoryPool, CUstream);
  const PoolCall from_pools[] = {[](CUdeviceptr* out, CUmemoryPool, CUstream s) {
                                   return cuMemAllocAsync(out, 800 * kMiB, s);
                                 },
                                 [](CUdeviceptr* out, CUmemoryPool p, CUstream s) {
                                   return cuMemAllocFromPoolAsync(out, 800 * kMiB, p, s);
                                 }};
  for (const PoolCall call : from_pools) {
    hold_back();
    OK(call(&block, pool, stream));
    OK(cuMemFreeAsync(block, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolTrimTo(pool, 0));
  }

  // Managed memory takes nothing of the device, here: the refusal is made up.
  hold_back();
  kvsim_fail("cuMemAllocManaged:1:2");
  OK(cuMemAllocManaged(&block, kMiB, CU_MEM_ATTACH_GLOBAL));
  EXPECT(kvsim_log_count("cuMemAllocManaged") == 2);
  OK(cuMemFree(block));

  // Once, not for ever; not where nothing was given back; not for another code.
  hold_back();
  block = 77;
  kvsim_fail("cuMemAllocManaged:1:2:*");
  CODE(cuMemAllocManaged(&block, kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(kvsim_log_count("cuMemAllocManaged") == 2);
  CODE(cuMemAllocManaged(&block, kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(kvsim_log_count("cuMemAllocManaged") == 3);
  kvsim_fail_none();
  hold_back();
  kvsim_fail("cuMemAllocManaged:1:999");
  CODE(cuMemAllocManaged(&block, kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_UNKNOWN);
  EXPECT(kvsim_log_count("cuMemAllocManaged") == 1);
  EXPECT(block == 77);
  return 0;
}

CASE("kvshim never holds a primary context, so the program's last release ends it") {
  const Result result = run(kPreloaded, "primaries_end");
  EXPECT_IN(result.ended(0) && result.out == "alive 0\n", result.show());
  // One retain by the program for each round, none by kvshim.
  EXPECT_IN(result.count("cuDevicePrimaryCtxRetain") == 300, result.show());
}
SCENE(primaries_end) {
  OK(cuInit(0));
  std::atomic<bool> stop{false};
  std::thread beside;
  int alive = 0;
  for (int round = 0; round < 300; ++round) {
    CUcontext context = nullptr;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    if (round == 0) {
      beside = std::thread([&] {
        while (!stop) {
          CUcontext own = nullptr;
          OK(cuCtxCreate(&own, nullptr, 0, 0));
          OK(cuMemFree(allocate(4096)));  // whose it is, is asked at the first allocation
          OK(cuCtxDestroy(own));
        }
      });
    }
    const CUdeviceptr ptr = allocate(3 * kMiB);
    OK(cuDevicePrimaryCtxRelease(0));
    // The other thread may have a small block there by now.
    std::size_t bytes = 0;
    alive += cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr) == CUDA_SUCCESS &&
             bytes == 3 * kMiB;
    OK(cuCtxSetCurrent(nullptr));
  }
  stop = true;
  beside.join();
  say("alive", alive);
  return 0;
}
