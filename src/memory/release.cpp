// Gives a block's memory back to its slab, to VMM or to the driver; see release.h.
#include "memory/release.h"

#include "driver/functions.h"
#include "memory/owner.h"

namespace kvshim {

CUresult release(const Block& block) noexcept {
  if (block.kind != Kind::vmm) return driver::cuMemFree_v2(block.base);
  if (block.slab != nullptr) {
    block.owner->slabs().free({block.base, block.slab}, block.bytes);
  } else {
    vmm::destroy(block.mapping);
  }
  return CUDA_SUCCESS;
}

}  // namespace kvshim
