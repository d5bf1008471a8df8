// Blocks that were freed in stream order (cuMemFreeAsync): they wait here until the work that was
// in the stream at that time has finished. Nothing watches them: a later call looks.
//
// A managed block is given back by cuMemFree, which waits for all work of its context. So those are
// released only inside a cuMemFree of the program in the same context, which waits natively, or
// where memory is short; never inside an allocation or a query, for which a stream may be waiting.
#pragma once

#include "memory/blocks/registry.h"

namespace kvshim::retired {

struct Entry;

// Takes the block over. `event` was recorded behind its last use in a stream of `event_context`,
// and is destroyed with it. False when there is no room for the record (nothing was taken over).
bool add(const Block& block, CUevent event, CUcontext event_context) noexcept;

// Releases blocks whose event has come and returns the bytes: mappings (vmm and host ones), and
// managed ones of `owner` (NULL: none). Never waits for an event, disturbs no capture. Looks at few
// that still wait: later calls find the others.
std::uint64_t reap(const Owner* owner) noexcept;

// All mappings whose event has come, however many wait: for when memory is short, or told.
std::uint64_t reap_all() noexcept;

// All blocks of one kind, managed ones of every owner too: for when the host's memory is short.
std::uint64_t reap_kind(Kind kind) noexcept;

// Waits for other threads that are looking at mappings at this moment. True where there were any:
// something may have come free.
bool wait_for_others() noexcept;

// True for the start of a block that waits here: to the program it is freed already.
bool contains(CUdeviceptr base) noexcept;
// True for every address of such a block that is not being released at this moment.
bool covers(CUdeviceptr address) noexcept;

// Before a context is destroyed: takes out every entry whose block or event it owns, when no other
// thread works on them any more. settle() then ends them, or puts them back where the driver
// refused.
Entry* detach(const Owner* owner, CUcontext context) noexcept;
void settle(Entry* chain, const Owner* owner, CUcontext context, bool destroyed) noexcept;

void forget() noexcept;  // in a forked child

}  // namespace kvshim::retired
