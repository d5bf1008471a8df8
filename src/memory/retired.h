// Blocks that were freed in stream order (cuMemFreeAsync): they wait here until the work that was in
// the stream at that time has finished. Nothing watches them: the next allocation or free looks.
#pragma once

#include "memory/registry.h"

namespace kvshim::retired {

// Takes the block over; `event` was recorded in the stream behind its last use and is destroyed
// with it. False when there is no room for the record (nothing was taken over).
bool add(const Block& block, CUevent event) noexcept;

// Releases every block whose event has come and returns the bytes. Never waits for an event: the
// stream may be waiting for what the calling thread does next. Disturbs no capture.
std::uint64_t reap() noexcept;

// True for the start of a block that waits here: to the program it is freed already.
bool contains(CUdeviceptr base) noexcept;

// Removes every block of `owner`, whose context is gone, and releases it.
void drop(const Owner& owner) noexcept;

void forget() noexcept;  // in a forked child

}  // namespace kvshim::retired
