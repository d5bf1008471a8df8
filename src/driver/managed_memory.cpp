// See managed_memory.h.
#include "driver/managed_memory.h"

#include <atomic>

#include "driver/functions.h"

namespace kvshim::driver {

namespace {

constexpr int kLocations = 12020;  // the CUDA version that gave the two functions a CUmemLocation

static_assert(CU_DEVICE_CPU == -1);

using ByDevice = CUresult(CUdeviceptr, std::size_t, CUmem_advise, CUdevice);
using ByLocation = CUresult(CUdeviceptr, std::size_t, CUmem_advise, CUmemLocation);
using PrefetchByDevice = CUresult(CUdeviceptr, std::size_t, CUdevice, CUstream);
using PrefetchByLocation = CUresult(CUdeviceptr, std::size_t, CUmemLocation, unsigned, CUstream);

// The first forms by their exported names, which every driver has had since CUDA 8.
constinit Function<ByDevice> advise_v1{"cuMemAdvise"};
constinit Function<PrefetchByDevice> prefetch_v1{"cuMemPrefetchAsync"};
constinit Function<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>
    get_proc_address{"cuGetProcAddress_v2"};

// The second form of a function, or NULL; asked once.
class Second {
 public:
  explicit constexpr Second(const char* name) : name_(name) {}
  void* find() noexcept {
    if (!asked_.load(std::memory_order_acquire)) {
      void* found = nullptr;
      CUdriverProcAddressQueryResult status{};
      // A driver older than that version refuses it.
      if (get_proc_address(name_, &found, kLocations, 0, &status) == CUDA_SUCCESS) {
        function_.store(found, std::memory_order_relaxed);
      }
      asked_.store(true, std::memory_order_release);
    }
    return function_.load(std::memory_order_relaxed);
  }

 private:
  const char* name_;
  std::atomic<void*> function_{nullptr};
  std::atomic<bool> asked_{false};
};
constinit Second advise_v2{"cuMemAdvise"};
constinit Second prefetch_v2{"cuMemPrefetchAsync"};

CUmemLocation location_of(MemoryPlace place) noexcept {
  CUmemLocation location{};
  location.type = place.device < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = place.device < 0 ? 0 : place.device;
  return location;
}

}  // namespace

CUresult advise(CUdeviceptr start, std::size_t bytes, CUmem_advise advice,
                MemoryPlace place) noexcept {
  if (void* function = advise_v2.find()) {
    return reinterpret_cast<ByLocation*>(function)(start, bytes, advice, location_of(place));
  }
  return advise_v1(start, bytes, advice, place.device);
}

CUresult prefetch(CUdeviceptr start, std::size_t bytes, MemoryPlace place,
                  CUstream stream) noexcept {
  if (void* function = prefetch_v2.find()) {
    return reinterpret_cast<PrefetchByLocation*>(function)(start, bytes, location_of(place), 0,
                                                           stream);
  }
  return prefetch_v1(start, bytes, place.device, stream);
}

}  // namespace kvshim::driver
