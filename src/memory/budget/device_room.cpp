// See device_room.h.
#include "memory/budget/device_room.h"

#include <atomic>

#include "base/options.h"
#include "base/sizes.h"
#include "driver/device.h"
#include "driver/functions.h"

namespace kvshim::device_room {

namespace {

constexpr auto kOrder = std::memory_order_acq_rel;
constexpr std::uint64_t kPage = 2 * kMiB;
constexpr std::uint64_t kSlackMost = 256 * kMiB;

struct Room {
  std::atomic<std::uint64_t> held{0};    // by blocks, fronts included
  std::atomic<std::uint64_t> fronts{0};  // of it by fronts
  // All that blocks can have: what the device has, less what contexts and others had taken of it
  // when the first front was asked for. 0: not known yet.
  std::atomic<std::uint64_t> limit{0};
};
constinit Room rooms[driver::kMaxDevices];

bool counts(CUdevice device) noexcept {
  return options().meminfo == MemInfo::with_spill && !options().dry_run && device >= 0 &&
         device < driver::kMaxDevices;
}

std::uint64_t less(std::uint64_t from, std::uint64_t what) noexcept {
  return from > what ? from - what : 0;
}

}  // namespace

bool claim(CUdevice device, std::uint64_t bytes) noexcept {
  if (!counts(device)) return true;
  Room& room = rooms[device];
  std::uint64_t before = room.held.load(std::memory_order_acquire);
  do {
    if (room.fronts.load(std::memory_order_acquire) != 0 &&
        bytes > less(room.limit.load(std::memory_order_acquire), before)) {
      return false;
    }
  } while (!room.held.compare_exchange_weak(before, before + bytes, kOrder));
  return true;
}

std::uint64_t claim_front(CUdevice device) noexcept {
  std::size_t free = 0;
  std::size_t total = 0;
  if (!counts(device) || driver::cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS) return 0;
  Room& room = rooms[device];
  std::uint64_t before = room.held.load(std::memory_order_acquire);
  std::uint64_t limit = 0;
  const std::uint64_t now = less(total, less(less(total, free), before));
  if (room.limit.compare_exchange_strong(limit, now, kOrder)) limit = now;
  std::uint64_t bytes = 0;
  do {
    const std::uint64_t there = less(limit, before) < free ? less(limit, before) : free;
    const std::uint64_t slack = there / 16 < kSlackMost ? there / 16 : kSlackMost;
    bytes = (there - slack) / kPage * kPage;
    if (bytes == 0) return 0;
  } while (!room.held.compare_exchange_weak(before, before + bytes, kOrder));
  room.fronts.fetch_add(bytes, kOrder);
  return bytes;
}

void give_back(CUdevice device, std::uint64_t bytes) noexcept {
  if (counts(device)) rooms[device].held.fetch_sub(bytes, kOrder);
}

void give_back_front(CUdevice device, std::uint64_t bytes) noexcept {
  if (!counts(device)) return;
  rooms[device].held.fetch_sub(bytes, kOrder);
  rooms[device].fronts.fetch_sub(bytes, kOrder);
}

std::uint64_t left(CUdevice device) noexcept {
  if (!counts(device) || rooms[device].fronts.load(std::memory_order_acquire) == 0) return kAny;
  return less(rooms[device].limit.load(std::memory_order_acquire),
              rooms[device].held.load(std::memory_order_acquire));
}

void forget() noexcept {
  for (Room& room : rooms) {
    room.held.store(0, std::memory_order_relaxed);
    room.fronts.store(0, std::memory_order_relaxed);
    room.limit.store(0, std::memory_order_relaxed);
  }
}

}  // namespace kvshim::device_room
