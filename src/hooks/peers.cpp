// Peer access: natively it opens the peer's cuMemAlloc memory, what lives and what comes. Disabling
// is the driver's alone: access to vmm blocks stays, which no program that follows the rules sees.
#include "memory/peers.h"
#include "driver/contexts.h"
#include "hooks/hook.h"

using namespace kvshim;

KVSHIM_HOOK_DEF CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const Reentry guard;
  const CUresult code = real::cuCtxEnablePeerAccess(peer, flags);
  if (pass_through(guard)) return code;
  // Already enabled may be an earlier call that went past us.
  if ((code != CUDA_SUCCESS && code != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) ||
      peers::enable(driver::current_device(), driver::device_of(peer))) {
    return code;
  }
  // Better an answer that programs know than a kernel that dies of an illegal address.
  if (code == CUDA_SUCCESS) driver::cuCtxDisablePeerAccess(peer);
  return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}
