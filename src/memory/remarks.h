// What is said about a request whose size or fate the user should know of. Once a process each.
#pragma once

#include <cstdint>

#include "base/kind.h"
#include "driver/device.h"

namespace kvshim {

// A framework that takes most of the device in one block makes every decision about it an all or
// nothing.
void call_out_large(std::uint64_t bytes, const driver::Device& device, Kind kind) noexcept;

// Refused, although the program was told of host memory that this block may not take.
void call_out_refusal(std::uint64_t bytes, const driver::Device& device, Kind kind) noexcept;

}  // namespace kvshim
