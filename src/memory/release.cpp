// Gives a block's memory back to its slab, to VMM or to the driver; see release.h.
#include "memory/release.h"

#include "driver/functions.h"
#include "memory/blocks/owner.h"
#include "memory/budget/spill.h"
#include "memory/listener.h"

namespace kvshim {

void withdraw_handle(Block* block) noexcept {
  if (block->export_slot == 0) return;
  listener.load(std::memory_order_acquire)->released(*block);
  block->export_slot = 0;
}

void return_budget(const Block& block) noexcept {
  if (block.spilled != 0) spill::returned(block.owner->device().ordinal(), block.spilled);
}

CUresult release(const Block& given) noexcept {
  Block block = given;
  withdraw_handle(&block);
  if (!is_mapping(block.kind)) {
    const CUresult code = driver::cuMemFree_v2(block.base);
    if (code == CUDA_SUCCESS) return_budget(block);
    return code;
  }
  if (block.slab != nullptr) {
    block.owner->slabs().free({block.base, block.slab}, block.bytes);
  } else if (vmm::destroy(block.mapping)) {
    return_budget(block);  // memory that is lost stays counted
  }
  return CUDA_SUCCESS;
}

}  // namespace kvshim
