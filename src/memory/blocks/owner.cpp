// Owners of blocks and the wait that a free needs; owner.h says why it is made this way. Nothing
// here decides what a block becomes.
#include "memory/blocks/owner.h"

#include <sys/mman.h>

#include <new>

#include "driver/contexts.h"

namespace kvshim {

constinit Owners owners;

namespace {

constexpr std::size_t kSpareBytes = 256;

using driver::within;

// A refusal that means that the context no longer exists: confirmed by its id where there are ids.
bool means_gone(CUresult code, CUcontext context, unsigned long long id) noexcept {
  if (code != CUDA_ERROR_INVALID_VALUE && code != CUDA_ERROR_INVALID_CONTEXT &&
      code != CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    return false;
  }
  unsigned long long now = 0;
  return context == nullptr || id == 0 || driver::cuCtxGetId(context, &now) != CUDA_SUCCESS ||
         now != id;
}

}  // namespace

void Owner::give_spare(CUdeviceptr spare) noexcept {
  for (std::atomic<CUdeviceptr>& slot : spares_) {
    CUdeviceptr empty = 0;
    if (slot.compare_exchange_strong(empty, spare, std::memory_order_acq_rel)) return;
  }
  driver::cuMemFree_v2(spare);  // a third one, from two frees at once
}

CUresult Owner::allocate_spare(CUdeviceptr* spare) noexcept {
  return within(context(), [&] { return driver::cuMemAlloc_v2(spare, kSpareBytes); });
}

CUresult Owner::take_spare(CUdeviceptr* spare) noexcept {
  // The first slot moves, the second one stays: it holds the page.
  *spare = spares_[0].exchange(0, std::memory_order_acq_rel);
  if (*spare != 0) return CUDA_SUCCESS;
  const CUresult code = allocate_spare(spare);
  if (code != CUDA_ERROR_OUT_OF_MEMORY) return code;
  *spare = spares_[1].exchange(0, std::memory_order_acq_rel);
  return *spare != 0 ? CUDA_SUCCESS : code;
}

void Owner::stock_spare() noexcept {
  for (std::atomic<CUdeviceptr>& slot : spares_) {
    if (slot.load(std::memory_order_relaxed) != 0) continue;
    CUdeviceptr spare = 0;
    if (driver::cuMemAlloc_v2(&spare, kSpareBytes) != CUDA_SUCCESS) return;
    CUdeviceptr empty = 0;
    // Freeing would wait: when another thread was first, keep it in the other slot or not at all.
    if (!slot.compare_exchange_strong(empty, spare, std::memory_order_acq_rel)) give_spare(spare);
  }
}

CUresult Owner::wait_idle(bool* gone) noexcept {
  *gone = false;
  CUdeviceptr spare = 0;
  CUresult code = take_spare(&spare);
  if (code == CUDA_SUCCESS) {
    code = driver::cuMemFree_v2(spare);
    if (code == CUDA_SUCCESS) return code;
    // Refused (a capture, a broken context, shutdown): the spare is still there for the next time.
    // One that the driver does not know (1) is lost.
    if (code != CUDA_ERROR_INVALID_VALUE && !means_gone(code, context(), id_)) give_spare(spare);
  } else if (code == CUDA_ERROR_OUT_OF_MEMORY) {
    // Not a byte left and no spare: the plain wait, which only a relaxed capture could tell apart.
    code = within(context(), [] { return driver::cuCtxSynchronize(); });
  }
  *gone = means_gone(code, context(), id_);
  return code;
}

CUresult Owner::verdict_async(CUstream stream) noexcept {
  CUdeviceptr spare = 0;
  CUresult code = take_spare(&spare);
  if (code != CUDA_SUCCESS) return code;
  code = driver::cuMemFreeAsync(spare, stream);
  if (code != CUDA_SUCCESS) give_spare(spare);
  return code;
}

void Owner::abandon() noexcept {
  for (std::atomic<CUdeviceptr>& slot : spares_) slot.store(0, std::memory_order_release);
  stream_.store(nullptr, std::memory_order_release);
  slabs_.trim();
}

CUresult Owner::take_stream(CUstream* stream) noexcept {
  *stream = stream_.exchange(nullptr, std::memory_order_acq_rel);
  if (*stream != nullptr && driver::cuStreamQuery(*stream) == CUDA_SUCCESS) return CUDA_SUCCESS;
  // What one that is busy has to do it still does; nobody waits for that.
  if (*stream != nullptr) driver::cuStreamDestroy_v2(*stream);
  return driver::cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
}

void Owner::give_stream(CUstream stream) noexcept {
  const CUstream other = stream_.exchange(stream, std::memory_order_acq_rel);
  if (other != nullptr) driver::cuStreamDestroy_v2(other);
}

Owner* Owners::find(CUcontext context) const noexcept {
  unsigned long long id = 0;
  driver::cuCtxGetId(context, &id);  // CUDA 12; on older drivers the address alone has to do
  for (Owner* owner = first(); owner != nullptr; owner = owner->next_) {
    if (owner->context() == context && owner->id_ == id) return owner;
  }
  return nullptr;
}

// A record for a context that has none, or the one that another thread has made meanwhile. NULL
// when the host is out of memory.
Owner* Owners::make(CUcontext context, driver::Device& device, Owner* home) noexcept {
  void* memory =
      mmap(nullptr, sizeof(Owner), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* made = new (memory) Owner;
  made->context_.store(context, std::memory_order_relaxed);
  driver::cuCtxGetId(context, &made->id_);
  made->device_ = &device;
  made->home_ = home;

  const Guard guard(lock_);
  for (Owner* owner = first(); owner != nullptr; owner = owner->next_) {
    if (owner->context() == context && owner->id_ == made->id_ && owner->home_ == home) {
      munmap(memory, sizeof(Owner));
      return owner;
    }
  }
  made->next_ = first();
  first_.store(made, std::memory_order_release);
  return made;
}

CUresult Owners::current(Owner** out) noexcept {
  CUcontext context = nullptr;
  CUresult code = driver::cuCtxGetCurrent(&context);
  if (code != CUDA_SUCCESS) return code;
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *out = find(context);
  if (*out != nullptr && (*out = (*out)->home()) != nullptr) return CUDA_SUCCESS;

  CUdevice ordinal = 0;
  code = driver::cuCtxGetDevice(&ordinal);
  if (code != CUDA_SUCCESS) return code;
  driver::Device* device = driver::device(ordinal);
  if (device == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUcontext owner = context;
  CUdeviceptr spare = 0;
  if (context != driver::primary_context(ordinal)) {
    // A green context looks like any other one. Its memory is not its own and outlives it: so ask
    // the driver whose a block is, by one that serves as a spare afterwards.
    code = driver::cuMemAlloc_v2(&spare, kSpareBytes);
    if (code != CUDA_SUCCESS) return code;
    driver::cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, spare);
    if (owner == nullptr) owner = context;
  }
  *out = find(owner);
  if (*out == nullptr) *out = make(owner, *device, nullptr);
  if (*out != nullptr && owner != context && make(context, *device, *out) == nullptr) {
    *out = nullptr;
  }
  if (*out != nullptr && spare != 0) (*out)->give_spare(spare);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void Owners::forget() noexcept {
  lock_.renew();
  first_.store(nullptr, std::memory_order_relaxed);
}

}  // namespace kvshim
