// cuIpcGetMemHandle for vmm blocks, and what stands behind the handles it has given out.
//
// Natively a small cudaMalloc block shares its 2 MiB page with its neighbours over IPC too: the
// peer gets the page. So it is here: a block in a slab is opened as the whole slab, and the pointer
// that the peer gets lies in it. But no block that comes later gets a place there (SlabAllocator::
// seal), and in the peer copies end where the block ends. Blocks that were in the page before share
// it.
#pragma once

#include <cuda.h>

#include "memory/blocks/registry.h"
#include "sharing/board.h"

namespace kvshim::sharing {

// Fills *out for the vmm block that `address` lies in: the same bytes for every address of it and
// every time, others for the next block at that address. False: not such a block, the driver's word
// (a managed block gets a line that says why it cannot be shared).
bool get_handle(CUipcMemHandle* out, CUdeviceptr address, CUresult* result) noexcept;

// For the socket server: what a line offers, with a descriptor that the caller closes (-1 for a
// fabric handle). False when that block is not there (any more), or no descriptor can be had.
bool lend(std::uint32_t slot, std::uint64_t block, Offer* offer, int* fd) noexcept;

// The block's memory goes away: clears its line, then closes the descriptor of its mapping if it
// was the mapping's last block with a handle.
void withdraw(const Block& block) noexcept;

void forget_exports() noexcept;  // in a forked child

}  // namespace kvshim::sharing
