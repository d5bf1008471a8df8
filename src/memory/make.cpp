// See make.h.
#include "memory/make.h"

#include "base/log.h"
#include "base/options.h"
#include "driver/device.h"
#include "driver/functions.h"
#include "memory/blocks/retired.h"
#include "memory/budget/device_room.h"
#include "memory/engine.h"
#include "memory/kinds/host.h"
#include "memory/kinds/managed.h"
#include "memory/kinds/vmm.h"

namespace kvshim {

namespace {

CUresult make_vmm(Owner& owner, std::uint64_t bytes, Block* block) noexcept {
  driver::Device& device = owner.device();
  if (!device.vmm()) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult code;
  if (bytes < device.granularity()) {
    SlabAllocator::Place place;
    code = owner.slabs().allocate(device, bytes, &place);
    if (code == CUDA_SUCCESS) {
      block->base = place.base;
      block->slab = place.slab;
    }
  } else {
    code = vmm::create(device, bytes, &block->mapping);
    if (code == CUDA_SUCCESS) block->base = block->mapping.base;
  }
  return code;
}

CUresult make_host(Owner& owner, std::uint64_t bytes, Block* block) noexcept {
  const CUresult code = host::create(owner.device(), bytes, &block->mapping, &block->spilled);
  if (code == CUDA_SUCCESS) block->base = block->mapping.base;
  return code;
}

CUresult make(Kind kind, Owner& owner, std::uint64_t bytes, Block* block) noexcept {
  block->kind = kind;
  switch (kind) {
    case Kind::host:
      return make_host(owner, bytes, block);
    case Kind::managed:
      return managed::create(owner.device(), bytes, &block->base, &block->spilled);
    case Kind::vmm:
      return make_vmm(owner, bytes, block);
    case Kind::native:
      break;
  }
  return driver::cuMemAlloc_v2(&block->base, bytes);
}

// Where host memory is told as the device's, a block that the host is short of may lie on the
// device.
bool short_host_falls(CUresult code) noexcept {
  return code == CUDA_ERROR_OUT_OF_MEMORY && options().meminfo == MemInfo::with_spill;
}

// Blocks of this kind that were freed in stream order give back what they hold.
bool freed_come_free(Kind kind) noexcept {
  const std::uint64_t bytes = retired::reap_kind(kind);
  const bool others = is_mapping(kind) && retired::wait_for_others();
  return bytes != 0 || others;
}

// A kind that lives in host memory gets that memory back before it is refused or falls. Managed
// blocks come last: their end waits (retired.h).
CUresult make_in_host(Kind kind, Owner& owner, std::uint64_t bytes, Block* block) noexcept {
  CUresult code = make(kind, owner, bytes, block);
  for (const Kind freed : {Kind::host, Kind::managed}) {
    if (code == CUDA_ERROR_OUT_OF_MEMORY && freed_come_free(freed))
      code = make(kind, owner, bytes, block);
  }
  return code;
}

// In the device's memory, as vmm or natively.
CUresult make_on_device(Kind kind, Owner& owner, std::uint64_t bytes, Block* block) noexcept {
  const CUdevice device = owner.device().ordinal();
  if (!device_room::claim(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult code = make(kind, owner, bytes, block);
  if (code == CUDA_ERROR_OUT_OF_MEMORY && engine::make_room())
    code = make(kind, owner, bytes, block);
  const bool may_fall = code == CUDA_ERROR_OUT_OF_MEMORY || driver::Device::is_refusal(code);
  if (kind == Kind::vmm && may_fall) code = make(Kind::native, owner, bytes, block);
  if (code != CUDA_SUCCESS) device_room::give_back(device, bytes);
  return code;
}

// From the routed kind down to native. A kind that a device lacks falls to the next one; out of
// memory is tried again with what is cached given back, and then natively.
CUresult make_or_fall(Kind wanted, Owner& owner, std::uint64_t bytes, Block* block) noexcept {
  Kind kind = wanted;
  if (kind == Kind::host) {
    const CUresult code = make_in_host(kind, owner, bytes, block);
    if (!driver::Device::is_refusal(code) && !short_host_falls(code)) return code;
    kind = Kind::managed;
  }
  if (kind == Kind::managed) {
    const CUresult code = make_in_host(kind, owner, bytes, block);
    if (code != CUDA_ERROR_NOT_SUPPORTED && !short_host_falls(code)) return code;
    kind = Kind::vmm;
  }
  return make_on_device(kind, owner, bytes, block);
}

}  // namespace

Kind suited(Kind kind, std::uint64_t bytes, const driver::Device& device, Kind instead) noexcept {
  return kind == Kind::host && bytes < device.granularity() ? instead : kind;
}

CUresult make_or_spill(Route* route, Owner& owner, std::uint64_t bytes, Block* block) noexcept {
  CUresult code = make_or_fall(route->kind, owner, bytes, block);
  if (code == CUDA_SUCCESS && block->kind != route->kind) route->why = Why::fallback;
  if (code != CUDA_ERROR_OUT_OF_MEMORY || uses_host(route->kind) || !may_spill(bytes, options())) {
    return code;
  }
  // Where there is no managed memory, each small block gets a page of the host to itself.
  const Kind small = owner.device().managed() ? Kind::managed : Kind::host;
  const Kind spilled = suited(spill_kind(options()), bytes, owner.device(), small);
  code = make_or_fall(spilled, owner, bytes, block);
  if (code != CUDA_SUCCESS) return code;
  route->why = block->kind == spilled ? Why::pressure : Why::fallback;
  static constinit log::Once said[driver::kMaxDevices];
  if (block->kind == spilled && said[owner.device().ordinal()].first()) {
    log::info("device {} is full: from now on blocks become {} while it is (KVSHIM_SPILL)",
              owner.device().ordinal(), kind_name(spilled));
  }
  return code;
}

}  // namespace kvshim
