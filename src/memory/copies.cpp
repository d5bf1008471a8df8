// See copies.h.
#include "memory/copies.h"

#include "base/log.h"
#include "base/options.h"
#include "driver/capture.h"
#include "driver/contexts.h"
#include "memory/owner.h"
#include "memory/peers.h"

namespace kvshim::copies {

namespace {

// True where the driver must have the word, whatever we think: the stream captures, a capture
// elsewhere forbids the call, the thread has no context, the stream is no stream.
bool only_the_driver(CUstream stream) noexcept {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver::cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

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

Verdict judge_both(const Stretch& to, const Stretch& from, CUstream stream) noexcept {
  registry::Spot at_to;
  registry::Spot at_from;
  registry::look(to.start, &at_to, from.start, &at_from);
  const Verdict a = judge_spot(at_to, to.bytes);
  const Verdict b = judge_spot(at_from, from.bytes);
  const Verdict worse = a > b ? a : b;
  return worse == Verdict::refused && only_the_driver(stream) ? Verdict::forward : worse;
}

// One side of a copy that the driver has refused.
struct Side {
  CUcontext context = nullptr;  // NULL: host memory, or nobody's
  CUdevice device = -1;
  bool vmm = false;
};

Side side_of(CUdeviceptr address) noexcept {
  Side side;
  Block block;
  if (registry::find(address, &block) == Place::block) {
    return {block.owner->context(), block.owner->device().ordinal(), is_mapping(block.kind)};
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

// The context that the stream's copies run in.
CUcontext context_of(CUstream stream) noexcept {
  CUcontext context = nullptr;
  if (driver::cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) driver::cuCtxGetCurrent(&context);
  return context;
}

// Runs `call`, which gives work to a stream of `context`, between what `stream` (of the context
// `running`) has been given already and what comes after it.
template <typename Call>
CUresult detour(CUcontext running, CUstream stream, bool wait, CUcontext context,
                Call call) noexcept {
  const driver::RelaxedCapture relaxed;  // waiting would end another stream's capture
  CUevent before = nullptr;
  CUevent after = nullptr;
  CUresult code = driver::within(running, [&] {
    const CUresult made = driver::cuEventCreate(&before, CU_EVENT_DISABLE_TIMING);
    return made == CUDA_SUCCESS ? driver::cuEventRecord(before, stream) : made;
  });
  if (code == CUDA_SUCCESS) {
    code = driver::within(context, [&] {
      CUresult step = driver::cuEventCreate(&after, CU_EVENT_DISABLE_TIMING);
      if (step == CUDA_SUCCESS) step = driver::cuStreamWaitEvent(CU_STREAM_PER_THREAD, before, 0);
      if (step == CUDA_SUCCESS) step = call(CU_STREAM_PER_THREAD);
      if (step == CUDA_SUCCESS) step = driver::cuEventRecord(after, CU_STREAM_PER_THREAD);
      if (step == CUDA_SUCCESS && wait) step = driver::cuStreamSynchronize(CU_STREAM_PER_THREAD);
      return step;
    });
  }
  if (code == CUDA_SUCCESS) {
    code = driver::within(running, [&] { return driver::cuStreamWaitEvent(stream, after, 0); });
  }
  if (before != nullptr) driver::cuEventDestroy_v2(before);
  if (after != nullptr) driver::cuEventDestroy_v2(after);
  return code;
}

// A copy with a vmm block of another device than the one that runs it.
struct Crossing {
  CUcontext running = nullptr;  // the stream's context
  CUdevice device = -1;         // its device
  bool to = false;              // the side that lies on another device
  bool from = false;
  explicit operator bool() const noexcept { return to || from; }
};

Crossing crossing_of(const Side& to, const Side& from, CUstream stream) noexcept {
  if (options().peers == PeerPolicy::off || (!to.vmm && !from.vmm) || only_the_driver(stream)) {
    return {};
  }
  Crossing crossing;
  crossing.running = context_of(stream);
  crossing.device = driver::device_of(crossing.running);
  if (crossing.device < 0) return {};
  crossing.to = to.vmm && to.device != crossing.device;
  crossing.from = from.vmm && from.device != crossing.device;
  return crossing;
}

// `across` copies between two devices, each reached by its own context, and `within` in one
// context.
template <typename Across, typename Within>
Retry retry_with(const Side& to, const Side& from, CUstream stream, bool wait, CUresult* result,
                 Across across, Within within) noexcept {
  const Crossing crossing = crossing_of(to, from, stream);
  if (!crossing) return Retry::stands;
  if (peers::use(crossing.device)) return Retry::again;
  if (to.context != nullptr && from.context != nullptr) {
    *result = across();
  } else {
    const CUcontext context = crossing.to ? to.context : from.context;
    *result = detour(crossing.running, stream, wait, context, within);
  }
  log::debug("a copy in a context of device {} was carried out for it: {}", crossing.device,
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

// From the first byte to behind the last one. Nothing for memory that is not given by a device
// pointer, and where that overflows.
Stretch stretch(CUmemorytype type, CUdeviceptr base, const Shape& shape) noexcept {
  if (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) return {};
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
  return stretch(
      what.dstMemoryType, what.dstDevice,
      {what.dstXInBytes, what.dstY, 0, what.dstPitch, 0, what.WidthInBytes, what.Height, 1});
}

Stretch from_side(const CUDA_MEMCPY2D& what) noexcept {
  return stretch(
      what.srcMemoryType, what.srcDevice,
      {what.srcXInBytes, what.srcY, 0, what.srcPitch, 0, what.WidthInBytes, what.Height, 1});
}

Stretch to_side(const CUDA_MEMCPY3D& what) noexcept {
  return stretch(what.dstMemoryType, what.dstDevice,
                 {what.dstXInBytes, what.dstY, what.dstZ, what.dstPitch, what.dstHeight,
                  what.WidthInBytes, what.Height, what.Depth});
}

Stretch from_side(const CUDA_MEMCPY3D& what) noexcept {
  return stretch(what.srcMemoryType, what.srcDevice,
                 {what.srcXInBytes, what.srcY, what.srcZ, what.srcPitch, what.srcHeight,
                  what.WidthInBytes, what.Height, what.Depth});
}

// The same copy, with a context for each side. For sides of linear memory only.
template <typename What>
CUDA_MEMCPY3D_PEER between(const What& what, CUcontext to, CUcontext from) noexcept {
  CUDA_MEMCPY3D_PEER copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcContext = from;
  copy.srcDevice = what.srcDevice;
  copy.srcXInBytes = what.srcXInBytes;
  copy.srcY = what.srcY;
  copy.srcPitch = what.srcPitch;
  copy.dstContext = to;
  copy.dstDevice = what.dstDevice;
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
