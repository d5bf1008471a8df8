// A device's own memory, where host memory is told as part of it (KVSHIM_MEMINFO=virtual): what of
// it blocks have. Such a device can hold the front of a managed block that is larger than what the
// host has, and the driver moves those pages into host memory, past every limit, as soon as
// something else wants their place. So nothing else gets it while such a block lives. With
// KVSHIM_MEMINFO=real nothing is counted. Thread-safe; no lock.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace kvshim::device_room {

inline constexpr std::uint64_t kAny = ~0ull;

// For a block that lies on the device. False: its place belongs to the front of another one.
bool claim(CUdevice device, std::uint64_t bytes) noexcept;

// For the front of a managed block: as much as there is, a little left for small blocks. In whole
// pages of 2 MiB; 0: nothing. Asks for the free memory of the current context's device.
std::uint64_t claim_front(CUdevice device) noexcept;

// Claims end with their blocks, or when none was made.
void give_back(CUdevice device, std::uint64_t bytes) noexcept;
void give_back_front(CUdevice device, std::uint64_t bytes) noexcept;

// What further blocks may get on the device; kAny: only the driver knows.
std::uint64_t left(CUdevice device) noexcept;

void forget() noexcept;  // in a forked child

}  // namespace kvshim::device_room
