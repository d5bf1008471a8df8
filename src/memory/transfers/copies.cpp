// See copies.h.
#include "memory/transfers/copies.h"

#include "base/log.h"
#include "base/options.h"
#include "driver/capture.h"
#include "driver/contexts.h"
#include "memory/blocks/owner.h"
#include "memory/blocks/retired.h"
#include "memory/peers.h"
#include "memory/transfers/detour.h"

namespace kvshim::copies {

namespace {

// A stretch of memory that a copy reads or writes; address 0 for one that is not ours to judge.
struct Stretch {
  CUdeviceptr start = 0;
  std::uint64_t bytes = 0;
};

Verdict judge_spot(const registry::Spot& spot, std::uint64_t bytes) noexcept {
  if (spot.place == Place::hole) return Verdict::refused;
  // The driver knows where native and managed blocks end.
  if (spot.place == Place::foreign || !is_mapping(spot.kind)) return Verdict::forward;
  return bytes <= spot.left ? Verdict::ours : Verdict::refused;
}

// A large block that was freed in stream order is still mapped, for as long as it waits to be
// released; to the program it is gone.
void note_freed(CUdeviceptr address, registry::Spot* spot) noexcept {
  if (spot->place == Place::foreign && registry::may_be_vmm(address) && retired::covers(address)) {
    spot->place = Place::hole;
  }
}

Verdict judge_both(const Stretch& to, const Stretch& from, CUstream stream) noexcept {
  registry::Spot at_to;
  registry::Spot at_from;
  registry::look(to.start, &at_to, from.start, &at_from);
  note_freed(to.start, &at_to);
  note_freed(from.start, &at_from);
  const Verdict a = judge_spot(at_to, to.bytes);
  const Verdict b = judge_spot(at_from, from.bytes);
  const Verdict worse = a > b ? a : b;
  return worse == Verdict::refused && driver::only_the_driver(stream) ? Verdict::forward : worse;
}

// One side of a copy that the driver has refused.
struct Side {
  CUcontext context = nullptr;  // NULL: host memory, or nobody's
  CUdevice device = -1;
  Owner* vmm = nullptr;  // the owner of a vmm block
};

Side side_of(CUdeviceptr address) noexcept {
  Side side;
  Block block;
  if (registry::find(address, &block) == Place::block) {
    return {block.owner->context(), block.owner->device().ordinal(),
            is_mapping(block.kind) ? block.owner : nullptr};
  }
  unsigned type = 0;
  if (driver::cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
          CUDA_SUCCESS ||
      type != CU_MEMORYTYPE_DEVICE ||
      driver::cuPointerGetAttribute(&side.device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) !=
          CUDA_SUCCESS) {
    return {};
  }
  // The program's own VMM memory and pools have no context.
  driver::cuPointerGetAttribute(&side.context, CU_POINTER_ATTRIBUTE_CONTEXT, address);
  if (side.context == nullptr) side.context = driver::primary_context(side.device);
  return side;
}

// A copy with a vmm block of another device than the one that runs it.
struct Crossing {
  Running running;
  bool to = false;  // the side that lies on another device
  bool from = false;
  explicit operator bool() const noexcept { return to || from; }
};

Crossing crossing_of(const Side& to, const Side& from, CUstream stream) noexcept {
  if (options().peers == PeerPolicy::off || (to.vmm == nullptr && from.vmm == nullptr) ||
      driver::only_the_driver(stream)) {
    return {};
  }
  Crossing crossing;
  crossing.running = running_in(stream);
  const CUdevice device = crossing.running.device;
  if (device < 0) return {};
  crossing.to = to.vmm != nullptr && to.device != device;
  crossing.from = from.vmm != nullptr && from.device != device;
  return crossing;
}

// `across` copies between two devices, each reached by its own context, and `within` in one
// context.
template <typename Across, typename Within>
Retry retry_with(const Side& to, const Side& from, CUstream stream, bool wait, CUresult* result,
                 Across across, Within within) noexcept {
  const Crossing crossing = crossing_of(to, from, stream);
  if (!crossing) return Retry::stands;
  if (peers::use(crossing.running.device)) return Retry::again;
  if (to.context != nullptr && from.context != nullptr) {
    *result = across();
  } else {
    Owner& owner = crossing.to ? *to.vmm : *from.vmm;
    *result = detour(crossing.running, stream, wait, owner, within);
  }
  log::debug("a copy in a context of device {} was carried out for it: {}", crossing.running.device,
             static_cast<int>(*result));
  return Retry::done;
}

// A box in memory, of whose rows and layers not all need be part of a copy; a rectangle is one
// layer.
struct Shape {
  std::uint64_t x, y, z;
  std::uint64_t pitch, layer_height;
  std::uint64_t width, height, depth;  // none of them zero
};

// Where a side of linear memory begins, 0 for an array. What is called host memory may be a block:
// the driver takes device pointers there too.
CUdeviceptr base_of(CUmemorytype type, CUdeviceptr device, const void* host) noexcept {
  if (type == CU_MEMORYTYPE_HOST) return reinterpret_cast<CUdeviceptr>(host);
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? device : 0;
}
CUdeviceptr to_base(const auto& what) noexcept {
  return base_of(what.dstMemoryType, what.dstDevice, what.dstHost);
}
CUdeviceptr from_base(const auto& what) noexcept {
  return base_of(what.srcMemoryType, what.srcDevice, what.srcHost);
}

// From the first byte to behind the last one. Nothing for an array, and where that overflows.
Stretch stretch(CUdeviceptr base, const Shape& shape) noexcept {
  if (base == 0) return {};
  // a * b + c
  const auto sum = [](std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t* out) {
    return !__builtin_mul_overflow(a, b, out) && !__builtin_add_overflow(*out, c, out);
  };
  Stretch side;
  std::uint64_t layer = 0;
  std::uint64_t skipped = 0;
  std::uint64_t rows = 0;
  const bool fits = sum(shape.pitch, shape.layer_height, 0, &layer) &&
                    sum(shape.y, shape.pitch, shape.x, &skipped) &&
                    sum(shape.z, layer, skipped, &skipped) &&
                    !__builtin_add_overflow(base, skipped, &side.start) &&
                    sum(shape.height - 1, shape.pitch, shape.width, &rows) &&
                    sum(shape.depth - 1, layer, rows, &side.bytes);
  return fits ? side : Stretch{};
}

Stretch to_side(const CUDA_MEMCPY2D& what) noexcept {
  return stretch(to_base(what), {what.dstXInBytes, what.dstY, 0, what.dstPitch, 0,
                                 what.WidthInBytes, what.Height, 1});
}

Stretch from_side(const CUDA_MEMCPY2D& what) noexcept {
  return stretch(from_base(what), {what.srcXInBytes, what.srcY, 0, what.srcPitch, 0,
                                   what.WidthInBytes, what.Height, 1});
}

Stretch to_side(const CUDA_MEMCPY3D& what) noexcept {
  return stretch(to_base(what), {what.dstXInBytes, what.dstY, what.dstZ, what.dstPitch,
                                 what.dstHeight, what.WidthInBytes, what.Height, what.Depth});
}

Stretch from_side(const CUDA_MEMCPY3D& what) noexcept {
  return stretch(from_base(what), {what.srcXInBytes, what.srcY, what.srcZ, what.srcPitch,
                                   what.srcHeight, what.WidthInBytes, what.Height, what.Depth});
}

// The same copy, with a context for each side. For sides of linear memory only.
template <typename What>
CUDA_MEMCPY3D_PEER between(const What& what, CUcontext to, CUcontext from) noexcept {
  CUDA_MEMCPY3D_PEER copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcContext = from;
  copy.srcDevice = from_base(what);
  copy.srcXInBytes = what.srcXInBytes;
  copy.srcY = what.srcY;
  copy.srcPitch = what.srcPitch;
  copy.dstContext = to;
  copy.dstDevice = to_base(what);
  copy.dstXInBytes = what.dstXInBytes;
  copy.dstY = what.dstY;
  copy.dstPitch = what.dstPitch;
  copy.WidthInBytes = what.WidthInBytes;
  copy.Height = what.Height;
  copy.Depth = 1;
  return copy;
}

CUDA_MEMCPY3D_PEER with_contexts(const CUDA_MEMCPY2D& what, CUcontext to, CUcontext from) noexcept {
  return between(what, to, from);
}

CUDA_MEMCPY3D_PEER with_contexts(const CUDA_MEMCPY3D& what, CUcontext to, CUcontext from) noexcept {
  CUDA_MEMCPY3D_PEER copy = between(what, to, from);
  copy.srcZ = what.srcZ;
  copy.srcHeight = what.srcHeight;
  copy.dstZ = what.dstZ;
  copy.dstHeight = what.dstHeight;
  copy.Depth = what.Depth;
  return copy;
}

template <typename Copy>
Verdict judge_shape(const Copy& copy) noexcept {
  const Stretch to = to_side(*copy.what);
  const Stretch from = from_side(*copy.what);
  if (!registry::may_be_vmm(to.start) && !registry::may_be_vmm(from.start)) {
    return Verdict::forward;
  }
  return judge_both(to, from, copy.stream);
}

template <typename Copy, typename Within>
Retry retry_shape(const Copy& copy, CUresult* result, Within within) noexcept {
  const Side to = side_of(to_side(*copy.what).start);
  const Side from = side_of(from_side(*copy.what).start);
  return retry_with(
      to, from, copy.stream, copy.wait, result,
      [&] {
        const CUDA_MEMCPY3D_PEER peer = with_contexts(*copy.what, to.context, from.context);
        return driver::cuMemcpy3DPeerAsync(&peer, copy.stream);
      },
      within);
}

}  // namespace

Verdict judge_ours(const Linear& copy) noexcept {
  if (copy.bytes == 0) return Verdict::forward;
  return judge_both({copy.to, copy.bytes}, {copy.from, copy.bytes}, copy.stream);
}

Verdict judge(const Rectangle& copy) noexcept {
  const CUDA_MEMCPY2D& what = *copy.what;
  if (what.WidthInBytes == 0 || what.Height == 0) return Verdict::forward;
  return judge_shape(copy);
}

Verdict judge(const Box& copy) noexcept {
  const CUDA_MEMCPY3D& what = *copy.what;
  if (what.WidthInBytes == 0 || what.Height == 0 || what.Depth == 0) return Verdict::forward;
  return judge_shape(copy);
}

bool crosses(const Linear& copy) noexcept {
  return static_cast<bool>(crossing_of(side_of(copy.to), side_of(copy.from), copy.stream));
}

bool crosses(const Box& copy) noexcept {
  return static_cast<bool>(crossing_of(side_of(to_side(*copy.what).start),
                                       side_of(from_side(*copy.what).start), copy.stream));
}

Retry retry(const Linear& copy, CUresult* result) noexcept {
  const Side to = side_of(copy.to);
  const Side from = side_of(copy.from);
  return retry_with(
      to, from, copy.stream, copy.wait, result,
      [&] {
        return driver::cuMemcpyPeerAsync(copy.to, to.context, copy.from, from.context, copy.bytes,
                                         copy.stream);
      },
      [&](CUstream stream) {
        switch (copy.form) {
          case Form::to_device:
            return driver::cuMemcpyHtoDAsync_v2(copy.to, reinterpret_cast<const void*>(copy.from),
                                                copy.bytes, stream);
          case Form::to_host:
            return driver::cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(copy.to), copy.from,
                                                copy.bytes, stream);
          case Form::on_device:
            return driver::cuMemcpyDtoDAsync_v2(copy.to, copy.from, copy.bytes, stream);
          case Form::any:
            break;
        }
        return driver::cuMemcpyAsync(copy.to, copy.from, copy.bytes, stream);
      });
}

Retry retry(const Rectangle& copy, CUresult* result) noexcept {
  return retry_shape(
      copy, result, [&](CUstream stream) { return driver::cuMemcpy2DAsync_v2(copy.what, stream); });
}

Retry retry(const Box& copy, CUresult* result) noexcept {
  return retry_shape(
      copy, result, [&](CUstream stream) { return driver::cuMemcpy3DAsync_v2(copy.what, stream); });
}

}  // namespace kvshim::copies
