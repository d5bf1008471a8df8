// Filling and copying simulated memory: the checks at call time and the work itself.
#pragma once

#include <functional>

#include "driver/call.h"

namespace sim {

// A box: `depth` layers, `layer` bytes apart, of `height` rows, `pitch` bytes apart, of `width`
// bytes. A rectangle is one layer.
struct Rect {
  Address base = 0;
  std::size_t pitch = 0;
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t layer = 0;
  std::size_t depth = 1;
  // All the bytes from the first to the last.
  std::size_t span() const {
    if (width == 0 || height == 0 || depth == 0) return 0;
    return (depth - 1) * layer + (height - 1) * pitch + width;
  }
};

// Repeats `unit` (1, 2 or 4 bytes) over a rectangle of the stream's device.
CUresult fill(Api api, const Rect& rect, std::uint32_t value, unsigned unit, CUstream stream,
              bool asynchronous);

enum class Side { any, device };  // device: plain host memory is refused
struct Copy {
  Rect to;
  Rect from;
  Side to_side = Side::any;
  Side from_side = Side::any;
  bool peer = false;  // cuMemcpyPeer: each side is reached by its own device
};
CUresult copy(Api api, const Copy& what, CUstream stream, bool asynchronous);

// The parts of the above, for batches and graph nodes.
bool copy_fits(const Copy& what, Context& context);  // both sides exist, with access
CUresult do_copy(const Copy& what, Context& context);
CUresult do_fill(const Rect& rect, std::uint32_t value, unsigned unit, Context& context);
bool is_plain_host(Address address);

// A box as the program describes it; false where it makes no sense here (arrays do not exist).
bool describe(const CUDA_MEMCPY3D* c, Copy* what);

}  // namespace sim
