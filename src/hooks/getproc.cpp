// cuGetProcAddress: the way in of every CUDA runtime since 11.3. The driver answers first; kvshim
// only exchanges an answer that it recognises as a function it has a hook for. So versions, `_v2`
// and per-thread twins come out as the driver chose them, and unknown names, errors and the status
// stay the driver's.
#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "base/log.h"
#include "base/options.h"
#include "driver/function.h"
#include "driver/libcuda.h"
#include "hooks/table.h"

#undef cuGetProcAddress  // cuda.h makes it the v2 form; both exist and differ

namespace kvshim {
namespace {

// Real address of each hook_table() entry, looked up when its base name is first asked for. Two
// threads may do so at once and store the same address.
constexpr std::size_t kMaxHooks = 128;
constinit std::array<std::atomic<void*>, kMaxHooks> g_real{};
constinit log::Once g_unknown;

void* real_address(std::size_t index, const char* name) {
  if (index >= kMaxHooks) return driver::symbol(name);
  void* address = g_real[index].load(std::memory_order_relaxed);
  if (address == nullptr) {
    address = driver::symbol(name);
    g_real[index].store(address, std::memory_order_relaxed);
  }
  return address;
}

// "cuMemsetD8_v2_ptds" is an entry of the base name "cuMemsetD8": the rest is (_vN)?(_ptds|_ptsz)?
bool is_entry_of(const char* entry, const char* base) {
  const std::size_t length = std::strlen(base);
  if (std::strncmp(entry, base, length) != 0) return false;
  const char* rest = entry + length;
  if (rest[0] == '_' && rest[1] == 'v') {
    rest += 2;
    while (*rest >= '0' && *rest <= '9') ++rest;
  }
  return *rest == '\0' || std::strcmp(rest, "_ptds") == 0 || std::strcmp(rest, "_ptsz") == 0;
}

bool is_per_thread(const char* entry) {
  const std::size_t length = std::strlen(entry);
  return length > 5 && std::strncmp(entry + length - 5, "_pt", 3) == 0;
}

// The toolkit version from which a base name means this entry: the numbers in the PFN_ names of
// cudaTypedefs.h (CUDA 13.0). An older ABI that kvshim has no hook for has no line: a version below
// every line means such an entry.
struct Since {
  const char* entry;
  int version;
};
constexpr Since kSince[] = {
    {"cuCtxDestroy", 2000},
    {"cuCtxDestroy_v2", 4000},
    {"cuCtxEnablePeerAccess", 4000},
    {"cuDevicePrimaryCtxRelease", 7000},
    {"cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxReset", 7000},
    {"cuDevicePrimaryCtxReset_v2", 11000},
    {"cuDevicePrimaryCtxRetain", 7000},
    {"cuDeviceTotalMem", 2000},
    {"cuDeviceTotalMem_v2", 3020},
    {"cuGetProcAddress", 11030},
    {"cuGetProcAddress_v2", 12000},
    {"cuGreenCtxDestroy", 12040},
    {"cuIpcCloseMemHandle", 4010},
    {"cuIpcGetMemHandle", 4010},
    {"cuIpcOpenMemHandle", 4010},
    {"cuIpcOpenMemHandle_v2", 11000},
    {"cuMemAlloc_v2", 3020},
    {"cuMemAllocAsync", 11020},
    {"cuMemAllocAsync_ptsz", 11020},
    {"cuMemAllocFromPoolAsync", 11020},
    {"cuMemAllocFromPoolAsync_ptsz", 11020},
    {"cuMemAllocManaged", 6000},
    {"cuMemAllocPitch_v2", 3020},
    {"cuMemCreate", 10020},
    {"cuMemFree_v2", 3020},
    {"cuMemFreeAsync", 11020},
    {"cuMemFreeAsync_ptsz", 11020},
    {"cuMemGetAddressRange_v2", 3020},
    {"cuMemGetInfo", 2000},
    {"cuMemGetInfo_v2", 3020},
    {"cuMemHostGetDevicePointer_v2", 3020},
    {"cuMemcpy", 4000},
    {"cuMemcpy_ptds", 7000},
    {"cuMemcpy2D_v2", 3020},
    {"cuMemcpy2D_v2_ptds", 7000},
    {"cuMemcpy2DAsync_v2", 3020},
    {"cuMemcpy2DAsync_v2_ptsz", 7000},
    {"cuMemcpy2DUnaligned_v2", 3020},
    {"cuMemcpy2DUnaligned_v2_ptds", 7000},
    {"cuMemcpy3D_v2", 3020},
    {"cuMemcpy3D_v2_ptds", 7000},
    {"cuMemcpy3DAsync_v2", 3020},
    {"cuMemcpy3DAsync_v2_ptsz", 7000},
    {"cuMemcpy3DBatchAsync", 12080},
    {"cuMemcpy3DBatchAsync_ptsz", 12080},
    {"cuMemcpy3DBatchAsync_v2", 13000},
    {"cuMemcpy3DBatchAsync_v2_ptsz", 13000},
    {"cuMemcpyAsync", 4000},
    {"cuMemcpyAsync_ptsz", 7000},
    {"cuMemcpyBatchAsync", 12080},
    {"cuMemcpyBatchAsync_ptsz", 12080},
    {"cuMemcpyBatchAsync_v2", 13000},
    {"cuMemcpyBatchAsync_v2_ptsz", 13000},
    {"cuMemcpyDtoD_v2", 3020},
    {"cuMemcpyDtoD_v2_ptds", 7000},
    {"cuMemcpyDtoDAsync_v2", 3020},
    {"cuMemcpyDtoDAsync_v2_ptsz", 7000},
    {"cuMemcpyDtoH_v2", 3020},
    {"cuMemcpyDtoH_v2_ptds", 7000},
    {"cuMemcpyDtoHAsync_v2", 3020},
    {"cuMemcpyDtoHAsync_v2_ptsz", 7000},
    {"cuMemcpyHtoD_v2", 3020},
    {"cuMemcpyHtoD_v2_ptds", 7000},
    {"cuMemcpyHtoDAsync_v2", 3020},
    {"cuMemcpyHtoDAsync_v2_ptsz", 7000},
    {"cuMemcpyPeer", 4000},
    {"cuMemcpyPeer_ptds", 7000},
    {"cuMemcpyPeerAsync", 4000},
    {"cuMemcpyPeerAsync_ptsz", 7000},
    {"cuMemsetD2D16_v2", 3020},
    {"cuMemsetD2D16_v2_ptds", 7000},
    {"cuMemsetD2D16Async", 3020},
    {"cuMemsetD2D16Async_ptsz", 7000},
    {"cuMemsetD2D32_v2", 3020},
    {"cuMemsetD2D32_v2_ptds", 7000},
    {"cuMemsetD2D32Async", 3020},
    {"cuMemsetD2D32Async_ptsz", 7000},
    {"cuMemsetD2D8_v2", 3020},
    {"cuMemsetD2D8_v2_ptds", 7000},
    {"cuMemsetD2D8Async", 3020},
    {"cuMemsetD2D8Async_ptsz", 7000},
    {"cuMemsetD16_v2", 3020},
    {"cuMemsetD16_v2_ptds", 7000},
    {"cuMemsetD16Async", 3020},
    {"cuMemsetD16Async_ptsz", 7000},
    {"cuMemsetD32_v2", 3020},
    {"cuMemsetD32_v2_ptds", 7000},
    {"cuMemsetD32Async", 3020},
    {"cuMemsetD32Async_ptsz", 7000},
    {"cuMemsetD8_v2", 3020},
    {"cuMemsetD8_v2_ptds", 7000},
    {"cuMemsetD8Async", 3020},
    {"cuMemsetD8Async_ptsz", 7000},
    {"cuPointerGetAttribute", 4000},
    {"cuPointerGetAttributes", 7000},
    {"cuPointerSetAttribute", 6000},
};

int since(const char* entry) {
  for (const Since& line : kSince) {
    if (std::strcmp(line.entry, entry) == 0) return line.version;
  }
  return CUDA_VERSION + 1;
}

// The second rule, for a driver whose answer is an internal address that no symbol carries: the
// entry that the requested version and stream flag mean. Versions after the headers kvshim was
// built with may mean an ABI it does not know, so they are left alone.
const HookEntry* by_version(const char* base, int version, bool per_thread) {
  const HookEntry* best = nullptr;
  int best_since = 0;
  if (version > CUDA_VERSION) return nullptr;
  for (const HookEntry& entry : hook_table()) {
    if (!is_entry_of(entry.name, base) || since(entry.name) > version) continue;
    const bool twin = is_per_thread(entry.name);
    if (twin && !per_thread) continue;
    // A per-thread twin is preferred to any plain entry, and a later entry to an earlier one.
    const int rank = since(entry.name) + (twin ? 1000000 : 0);
    if (best != nullptr && rank < best_since) continue;
    best = &entry;
    best_since = rank;
  }
  return best;
}

// Exchanges the driver's answer for the hook that stands for exactly that function.
void exchange(const char* base, void** answer, int version, cuuint64_t flags) {
  if (base == nullptr || answer == nullptr || *answer == nullptr || options().disable) return;
  bool hooked_base = false;
  std::size_t index = 0;
  for (const HookEntry& entry : hook_table()) {
    // Both tests: unrelated functions may share an address where a linker folded equal code.
    if (is_entry_of(entry.name, base)) {
      hooked_base = true;
      if (real_address(index, entry.name) == *answer) {
        *answer = entry.hook;
        return;
      }
    }
    ++index;
  }
  // A function with a symbol of its own is an ABI that kvshim has no hook for.
  if (!hooked_base || driver::exports(*answer)) return;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  if (const HookEntry* const entry = by_version(base, version, per_thread)) {
    *answer = entry->hook;
  } else if (g_unknown.first()) {
    log::warn("{} of CUDA version {} is unknown to kvshim and goes to the driver untouched", base,
              version);
  }
}

constinit driver::Function<CUresult(const char*, void**, int, cuuint64_t)> g_get_v1{
    "cuGetProcAddress"};
constinit driver::Function<CUresult(const char*, void**, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult*)>
    g_get_v2{"cuGetProcAddress_v2"};

}  // namespace
}  // namespace kvshim

// Not noexcept: cuda.h declares them without, and clang takes the difference for an error.
extern "C" {

__attribute__((visibility("default"))) CUresult cuGetProcAddress(const char* symbol, void** out,
                                                                 int version, cuuint64_t flags) {
  const CUresult result = kvshim::g_get_v1(symbol, out, version, flags);
  if (result == CUDA_SUCCESS) kvshim::exchange(symbol, out, version, flags);
  return result;
}

__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(
    const char* symbol, void** out, int version, cuuint64_t flags,
    CUdriverProcAddressQueryResult* status) {
  const CUresult result = kvshim::g_get_v2(symbol, out, version, flags, status);
  if (result == CUDA_SUCCESS) kvshim::exchange(symbol, out, version, flags);
  return result;
}

}  // extern "C"
