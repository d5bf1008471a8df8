// Which device can reach whose memory, as the driver says, each pair asked once. No policy. A
// process that uses one device never gets here.
#pragma once

#include <cuda.h>

namespace kvshim::driver {

// True when `device` can reach memory of `peer` over PCIe or NVLink without the host. Needs no
// context. Not true of a device and itself, nor of ordinals from kMaxDevices on.
bool can_access_peer(CUdevice device, CUdevice peer) noexcept;

void forget_peers() noexcept;  // in a forked child

}  // namespace kvshim::driver
