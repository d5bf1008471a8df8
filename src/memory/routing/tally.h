// Blocks as they come and go: the counters of the account, and what rules go by (how many blocks
// there were, how many bytes are held), for the process and each device. Thread-safe.
#pragma once

#include <cstdint>

#include "memory/blocks/registry.h"
#include "memory/routing/route.h"

namespace kvshim::tally {

struct Held {
  std::uint64_t blocks = 0;  // ever allocated
  std::uint64_t bytes = 0;   // now, requested sizes
};
struct Before {
  Held process;
  Held device;
};
// What there is, requests under way included. Counted only while a rule depends on it; else zeroes.
Before look(int device) noexcept;
// The same, and in one step this request is counted: no other one is told the same.
Before reserve(int device, std::uint64_t bytes) noexcept;
// That request made no block.
void cancel(int device, std::uint64_t bytes) noexcept;

// A block was made from a reserved request, as `route` says; a block's life ended. In a dry run
// both count as the kind that the block would have become (Block::planned).
void add(const Block& block, const Route& route) noexcept;
void remove(const Block& block) noexcept;

void forget() noexcept;  // in a forked child

}  // namespace kvshim::tally
