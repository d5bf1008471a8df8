// The host kind: VMM memory of the host's NUMA node nearest the device (EGM on Grace). Its pages
// never move and never fault: the GPU reads them where they are, at the speed of its link to the
// host.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "memory/kinds/vmm.h"

namespace kvshim::host {

// Bytes of one physical handle; the last one of a block is what is left. Memory appears at some
// 4 GB/s (measured), so a block is made piece by piece: with a progress line, a look at what the
// host has left before each piece, and a failure that takes back what is there. A variable for the
// tests only, which have no 3 GiB to spend.
extern constinit std::uint64_t handle_bytes;

// One reservation, mapped from as many handles as it takes, access for the device and, where the
// driver grants it, for the CPU; zeroed. `bytes` is rounded up to the granularity.
// out->handle is 0 where there are several: they live by their mapping alone (vmm::destroy unmaps
// all at once), and cuMemRetainAllocationHandle finds them for whoever exports them.
// On failure everything done so far is undone in reverse and *out is left alone. Errors:
// CUDA_ERROR_NOT_SUPPORTED where the device cannot (said once; take another kind),
// CUDA_ERROR_OUT_OF_MEMORY when the host lacks the memory, with one line of arithmetic; else the
// driver's. `spilled`: as of managed blocks. Needs a current context only where the CPU may not
// write.
CUresult create(driver::Device& device, std::uint64_t bytes, vmm::Mapping* out,
                std::uint64_t* spilled) noexcept;

}  // namespace kvshim::host
