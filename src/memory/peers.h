// Which devices may access vmm blocks. cuMemAlloc memory can be copied between devices without any
// call, and is read by kernels of a device whose context has called cuCtxEnablePeerAccess; VMM
// memory belongs to its own device only, until cuMemSetAccess says otherwise. So with
// KVSHIM_PEERS=auto every vmm block gives access to each device that this process uses and that can
// reach it, whether it was made before or after that device came into use. More access than
// natively breaks no program. A process that uses one device makes no further driver call for this.
#pragma once

#include <cuda.h>

#include "memory/blocks/registry.h"

namespace kvshim::peers {

// The process uses `device`: it allocates, copies, opens or enables peer access there. The first
// time (auto only) it gets access to all live blocks of the other used devices, and they to its
// own; so it has, whichever thread was first, when this returns. True when this call has done so:
// an operation that lacked access may be tried again.
bool use(CUdevice device) noexcept;

// The program has enabled access of `device` to memory of `owner` (cuCtxEnablePeerAccess): to live
// and to future blocks. False when the driver refuses it for vmm memory (a first block is tried
// where there is none) and the options make such blocks: a kernel would die of them.
bool enable(CUdevice device, CUdevice owner) noexcept;

// Memory of `home` is about to be opened by IPC: the devices in use are to have access to it, those
// that come into use later too. What is opened is then given by share(), like a block.
void adopt(CUdevice home) noexcept;

// Gives a new mapping to those who are to have access. It is in the registry already, so that no
// device that comes into use at this moment is missed. Never fails: a peer that the driver refuses
// goes without (one log line for a pair of devices).
void share(const MappedRange& range) noexcept;

void forget() noexcept;  // in a forked child

}  // namespace kvshim::peers
