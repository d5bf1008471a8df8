// Legacy IPC on machines with several devices: who gets access to what was opened, and when.
#include <atomic>
#include <thread>

#include "ipc_peers.h"

using namespace kvshim;

namespace {

constexpr std::size_t kSizes[] = {4096, 3 * kMiB2 + 512};  // in a slab; with a handle of its own

}  // namespace

TEST_CASE("a block of another device: access for both where they reach each other, 217 where not") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  set_word(ptr, 4711);
  const CUipcMemHandle handle = handle_of(ptr);
  const auto on_device_1 = [&](bool p2p) -> long long {
    CUcontext second = nullptr;
    CUdeviceptr out = 5;
    kvsim_set_p2p(1, 0, p2p);
    if (cuDevicePrimaryCtxRetain(&second, 1) != 0 || cuCtxSetCurrent(second) != 0) return -1;
    const Traces before;
    const long long code = open(&out, handle);
    if (code != 0) return Traces() == before && out == 5 ? code : -2;
    int devices[4];
    if (kvsim_access_list(out, devices, 4) != 2) return -3;
    return word_at(out) == 4711 && close_opened(out) == 0 ? 0 : -4;
  };
  CHECK(in_peer([&] { return on_device_1(true); }) == 0);
  CHECK(in_peer([&] { return on_device_1(false); }) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  CHECK(in_peer([&]() -> long long {
          CUdeviceptr first = 0, second = 0;
          CUcontext other = nullptr;
          if (open(&first, handle) != 0) return 1;
          cuDevicePrimaryCtxRetain(&other, 1);
          cuCtxSetCurrent(other);
          if (open(&second, handle) != 0 || first != second) return 2;
          int devices[4];
          if (kvsim_access_list(first, devices, 4) != 2) return 3;
          return close_opened(first) != 0 || close_opened(second) != 0;
        }) == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

namespace {

using Devices = std::vector<int>;

Devices access(CUdeviceptr ptr) {
  int devices[8] = {};
  const int count = kvsim_access_list(ptr, devices, 8);
  return count < 0 ? Devices{-1} : Devices(devices, devices + count);
}

// In a peer: this device's context is current from here on.
CUcontext on(int device) {
  CUcontext context = nullptr;
  if (cuDevicePrimaryCtxRetain(&context, device) != 0 || cuCtxSetCurrent(context) != 0) _exit(9);
  return context;
}

// As the hook does it.
bool enable(int device, int owner) {
  const CUcontext context = on(owner);
  on(device);
  const CUresult code = cuCtxEnablePeerAccess(context, 0);
  return (code == CUDA_SUCCESS || code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) &&
         peers::enable(device, owner);
}

bool use(int device) {
  CUdeviceptr ptr = 0;
  on(device);
  return allocate(&ptr, 4096) == CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("an opened block becomes accessible for each device that comes into use later") {
  const Sharing sharing;
  for (const std::size_t bytes : kSizes) {
    const CUdeviceptr ptr = block(bytes);
    set_word(ptr, 4711);
    const CUipcMemHandle handle = handle_of(ptr);
    CHECK(in_peer([&]() -> long long {  // opened where the memory is
            CUdeviceptr out = 0;
            if (open(&out, handle) != 0 || access(out) != Devices{0}) return 1;
            if (!use(1) || access(out) != Devices{0, 1}) return 2;
            if (!enable(2, 0) || access(out) != Devices{0, 1, 2}) return 3;
            return close_opened(out);
          }) == 0);
    CHECK(in_peer([&]() -> long long {  // opened on another device, the memory's never used
            CUdeviceptr out = 0;
            on(1);
            if (open(&out, handle) != 0 || access(out) != Devices{0, 1}) return 1;
            if (!use(2) || access(out) != Devices{0, 1, 2}) return 2;
            return close_opened(out);
          }) == 0);
    CHECK(in_peer([&]() -> long long {  // the others were in use before it was opened
            CUdeviceptr out = 0;
            if (!use(1) || !use(2)) return 1;
            if (open(&out, handle) != 0 || access(out) != Devices{0, 1, 2}) return 2;
            return close_opened(out);
          }) == 0);
    CHECK(release(ptr) == CUDA_SUCCESS);
  }
}

TEST_CASE("opened blocks follow the P2P matrix, each direction for itself") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  const CUipcMemHandle handle = handle_of(ptr);
  const auto after = [&](auto prepare, auto then) {
    return in_peer([&]() -> long long {
      CUdeviceptr out = 0;
      prepare();
      if (open(&out, handle) != 0) return -1;
      if (!then()) return -2;
      long long list = 0;  // devices as digits
      for (const int device : access(out)) list = list * 10 + device + 1;
      return close_opened(out) == 0 ? list : -3;
    });
  };
  const auto second = [] { return use(1); };
  CHECK(after([] {}, second) == 12);
  CHECK(after([] { kvsim_set_p2p(1, 0, 0); }, second) == 1);  // only memory of 1 is reachable
  CHECK(after([] { kvsim_set_p2p(0, 1, 0); }, second) == 12);
  CHECK(after([] { kvsim_set_p2p(0, 1, 0), kvsim_set_p2p(1, 0, 0); }, second) == 1);
  // Offered and refused: told at cuCtxEnablePeerAccess, and what was opened stays usable.
  CHECK(after([] { kvsim_set_peer_access(1, 217); }, [] { return !enable(1, 0); }) == 1);
  // Refused for want of memory: once more at the next block.
  CHECK(after([] { kvsim_fail("cuMemSetAccess@device=1:1:2:2"); }, second) == 1);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("a refusal on the way to open leaves nothing, and other devices in peace") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  const CUipcMemHandle handle = handle_of(ptr);
  CHECK(in_peer([&]() -> long long {
          CUdeviceptr out = 5;
          kvsim_set_peer_access(1, 801);
          on(1);
          const Traces before;
          if (open(&out, handle) != CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || out != 5) return 1;
          if (!(Traces() == before)) return 2;
          on(0);
          if (open(&out, handle) != 0 || access(out) != Devices{0}) return 3;
          return close_opened(out);
        }) == 0);
  // The block's own device is out of sight: its number says nothing about devices here.
  CHECK(in_peer([&]() -> long long {
          CUdeviceptr out = 0;
          on(1);
          kvsim_fail("cuMemSetAccess@device=0:1:101:1");
          if (open(&out, handle) != 0 || access(out) != Devices{1}) return 1;
          if (!use(2) || access(out) != Devices{1}) return 2;
          on(2);
          CUdeviceptr again = 0;
          if (open(&again, handle) != 0 || again != out || access(out) != Devices{1, 2}) return 3;
          return close_opened(out) != 0 || close_opened(out) != 0;
        }) == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}

TEST_CASE("devices come into use while blocks are opened and closed") {
  const Sharing sharing;
  const CUdeviceptr ptr = block(3 * kMiB2);
  const CUipcMemHandle handle = handle_of(ptr);
  CHECK(in_peer([&]() -> long long {
          std::atomic<bool> done{false};
          std::atomic<int> wrong{0};
          std::thread opening([&] {
            on(0);
            while (!done) {
              CUdeviceptr out = 0;
              wrong += open(&out, handle) != 0 || close_opened(out) != 0;
            }
          });
          for (int round = 0; round < 200; ++round) {
            peers::forget();
            CUdeviceptr own = 0;
            on(1 + round % 2);
            wrong += allocate(&own, kMiB2) != 0;
            wrong += release(own) != 0;
          }
          done = true;
          opening.join();
          CUdeviceptr out = 0;
          use(1), use(2), on(0);
          if (open(&out, handle) != 0 || access(out) != Devices{0, 1, 2}) return -1;
          return wrong + static_cast<int>(kvsim_violations());
        }) == 0);
  CHECK(release(ptr) == CUDA_SUCCESS);
}
