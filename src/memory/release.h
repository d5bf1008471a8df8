// The end of a block: its memory goes back to where it came from.
#pragma once

#include "memory/blocks/registry.h"

namespace kvshim {

// Gives the memory of a block back. For vmm blocks the caller has waited for the owner's work; the
// driver itself waits for native and managed ones. The block is in no table any more. Returns the
// driver's code for native and managed memory: anything but success means that it still exists.
// What the driver does not give back stays counted as spilled.
CUresult release(const Block& block) noexcept;

// The block's IPC handle, if it has one, opens nothing any more. release() does this too; a block
// that is freed in stream order loses its handle at once, its memory later.
void withdraw_handle(Block* block) noexcept;

// The block went with its context, without release(): its bytes spill no more.
void return_budget(const Block& block) noexcept;

}  // namespace kvshim
