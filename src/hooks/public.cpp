// The public C interface; see include/kvshim/kvshim.h. The allocator works preloaded or opened by
// dlopen: the engine finds the driver by itself, and needs no hook of its own to be in place.
#include "kvshim/kvshim.h"

#include <atomic>

#include "base/log.h"
#include "driver/capture.h"
#include "driver/contexts.h"
#include "driver/errors.h"
#include "hooks/hook.h"

using namespace kvshim;

namespace {

#define KVSHIM_PUBLIC extern "C" __attribute__((visibility("default")))

// The primary context of each device, retained for the rest of the process (once more after each
// reset): it must not end while blocks of it live.
constinit std::atomic<CUcontext> g_primary[driver::kMaxDevices];

CUresult primary_context(int device, CUcontext* out) {
  if (device < 0 || device >= driver::kMaxDevices) return CUDA_ERROR_INVALID_DEVICE;
  *out = g_primary[device].load(std::memory_order_acquire);
  if (*out != nullptr) return CUDA_SUCCESS;
  CUresult code = driver::cuDevicePrimaryCtxRetain(out, device);
  if (code != CUDA_SUCCESS) return code;
  CUcontext first = nullptr;
  if (!g_primary[device].compare_exchange_strong(first, *out, std::memory_order_acq_rel)) {
    driver::cuDevicePrimaryCtxRelease_v2(device);  // another thread was first
  }
  return CUDA_SUCCESS;
}

bool lost(CUresult code) {
  return code == CUDA_ERROR_CONTEXT_IS_DESTROYED || code == CUDA_ERROR_INVALID_CONTEXT;
}

// A reset of the primary context (cuDevicePrimaryCtxReset, cudaDeviceReset) ends it, but neither
// its handle nor its references: who retains it again has it again, as the CUDA runtime does at its
// next call. False: what has ended is a context of the program's own.
bool retain_again(int device) {
  unsigned flags = 0;
  int active = 0;
  if (device < 0 || device >= driver::kMaxDevices ||
      driver::cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS) {
    return false;
  }
  if (active != 0) return true;  // another thread was first
  CUcontext primary = nullptr;
  if (driver::cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS) return false;
  // Never asked for here: then it is the program's, current in this thread.
  CUcontext current = nullptr;
  if (g_primary[device].load(std::memory_order_acquire) == nullptr &&
      (driver::cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != primary)) {
    driver::cuDevicePrimaryCtxRelease_v2(device);
    return false;
  }
  g_primary[device].store(primary, std::memory_order_release);
  return true;
}

// Makes a context of `device` current for as long as this lives, and for good where the thread has
// none, as the CUDA runtime does.
class OnDevice {
 public:
  explicit OnDevice(int device) noexcept {
    if (!driver::load()) {
      code_ = CUDA_ERROR_NOT_INITIALIZED;
      return;
    }
    CUcontext context = nullptr;
    code_ = driver::cuCtxGetCurrent(&context);
    if (code_ == CUDA_ERROR_NOT_INITIALIZED) {
      code_ = driver::cuInit(0);
      if (code_ == CUDA_SUCCESS) code_ = driver::cuCtxGetCurrent(&context);
    }
    if (code_ != CUDA_SUCCESS) return;
    if (context != nullptr && driver::current_device() == device) return;
    CUcontext primary = nullptr;
    code_ = primary_context(device, &primary);
    if (code_ != CUDA_SUCCESS) return;
    if (context == nullptr) {
      code_ = driver::cuCtxSetCurrent(primary);
    } else {
      code_ = driver::cuCtxPushCurrent_v2(primary);
      pushed_ = code_ == CUDA_SUCCESS;
    }
  }
  ~OnDevice() {
    CUcontext popped = nullptr;
    if (pushed_) driver::cuCtxPopCurrent_v2(&popped);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  CUresult code() const noexcept { return code_; }

 private:
  CUresult code_ = CUDA_SUCCESS;
  bool pushed_ = false;
};

// `call` in a context of `device`; once more in the next one where the first has ended.
template <typename Call>
CUresult on_device(int device, Call call) noexcept {
  const auto once = [&] {
    const OnDevice on(device);
    return on.code() == CUDA_SUCCESS ? call() : on.code();
  };
  const CUresult code = once();
  return lost(code) && retain_again(device) ? once() : code;
}

const char* name_of(CUresult code) {
  return code == CUDA_ERROR_NOT_INITIALIZED ? "no CUDA driver" : driver::error_name(code);
}

CUresult free_block(CUdeviceptr ptr, CUstream stream) noexcept {
  // The caller cannot try again: in another capture mode a free would be refused, and would end the
  // capture.
  const driver::RelaxedCapture relaxed;
  // The block's own context is waited for by its free; the stream may be of another one.
  stream = driver::resolve_stream(stream, driver::StreamZero::legacy);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver::cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
      status == CU_STREAM_CAPTURE_STATUS_NONE) {
    const CUresult code = driver::cuStreamSynchronize(stream);
    if (code != CUDA_SUCCESS) {
      log::debug("kvshim_free: waiting for the stream: {} {}", static_cast<int>(code),
                 driver::error_name(code));
    }
  }
  CUresult result = CUDA_SUCCESS;
  if (engine::active() && engine::free(ptr, &result)) return result;
  return driver::cuMemFree_v2(ptr);
}

}  // namespace

KVSHIM_PUBLIC const char* kvshim_version(void) {
  return KVSHIM_VERSION;
}

KVSHIM_PUBLIC void* kvshim_malloc(std::size_t size, int device, CUstream) {
  if (size == 0) return nullptr;
  const Reentry guard;
  CUdeviceptr block = 0;
  const CUresult code = on_device(device, [&] {
    // The memory exists at once, captured or not; only the capture's mode would refuse it.
    const driver::RelaxedCapture relaxed;
    return engine::active() ? engine::allocate(&block, size) : driver::cuMemAlloc_v2(&block, size);
  });
  if (code == CUDA_SUCCESS) return reinterpret_cast<void*>(block);
  log::error("kvshim_malloc of {} bytes on device {} failed: {} {}", size, device,
             static_cast<int>(code), name_of(code));
  return nullptr;
}

KVSHIM_PUBLIC void kvshim_free(void* ptr, std::size_t size, int device, CUstream stream) {
  if (ptr == nullptr) return;
  const Reentry guard;
  const CUresult code =
      on_device(device, [&] { return free_block(reinterpret_cast<CUdeviceptr>(ptr), stream); });
  if (code == CUDA_SUCCESS || code == CUDA_ERROR_DEINITIALIZED) return;  // the process is ending
  log::error("kvshim_free of {} ({} bytes, device {}) failed: {} {}", ptr, size, device,
             static_cast<int>(code), name_of(code));
}
