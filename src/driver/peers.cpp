// See peers.h.
#include "driver/peers.h"

#include <atomic>
#include <cstdint>

#include "driver/device.h"
#include "driver/functions.h"

namespace kvshim::driver {

namespace {

// A bit for each peer of a device: the driver's answer, and whether it was asked.
struct Row {
  std::atomic<std::uint64_t> asked{0};
  std::atomic<std::uint64_t> can{0};
};
constinit Row rows[kMaxDevices];

}  // namespace

bool can_access_peer(CUdevice device, CUdevice peer) noexcept {
  if (device == peer || device < 0 || device >= kMaxDevices || peer < 0 || peer >= kMaxDevices) {
    return false;
  }
  Row& row = rows[device];
  const std::uint64_t bit = 1ull << peer;
  if ((row.asked.load(std::memory_order_acquire) & bit) == 0) {
    int can = 0;
    // An error means no. Two threads may both ask; they get the same answer.
    if (cuDeviceCanAccessPeer(&can, device, peer) == CUDA_SUCCESS && can != 0) {
      row.can.fetch_or(bit, std::memory_order_relaxed);
    }
    row.asked.fetch_or(bit, std::memory_order_release);
  }
  return (row.can.load(std::memory_order_relaxed) & bit) != 0;
}

void forget_peers() noexcept {
  for (Row& row : rows) {
    row.asked.store(0, std::memory_order_relaxed);
    row.can.store(0, std::memory_order_relaxed);
  }
}

}  // namespace kvshim::driver
