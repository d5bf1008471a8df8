// Filling and copying simulated memory: the checks at call time and the work itself.
#pragma once

#include <functional>

#include "driver/call.h"

namespace sim {

// A rectangle: `height` rows of `width` bytes, `pitch` bytes apart.
struct Rect {
  Address base = 0;
  std::size_t pitch = 0;
  std::size_t width = 0;
  std::size_t height = 1;
  // All the bytes from the first to the last.
  std::size_t span() const { return height == 0 || width == 0 ? 0 : (height - 1) * pitch + width; }
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

}  // namespace sim
