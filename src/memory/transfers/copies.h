// cuMemcpy* on vmm blocks. The driver copies; kvshim adds what it cannot know or will not do:
//   - the end of a block: the driver checks a copy against the mapping, behind a block in a slab
//   lies
//     another one, and memory that no live block covers is nobody's to the program;
//   - another device's block: native memory is copied between devices without any call, by way of
//   the
//     host if need be, while VMM memory without access for the copying device is refused with 1.
// While the stream captures the driver alone decides.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "memory/blocks/registry.h"
#include "memory/transfers/detour.h"

namespace kvshim::copies {

// What the function's name says of its arguments: one that it calls a device pointer must not be
// ordinary host memory.
enum class Form : unsigned char { any, to_device, to_host, on_device };

// A copy of bytes in linear memory, either side device or host.
struct Linear {
  CUdeviceptr to;
  CUdeviceptr from;
  std::size_t bytes;
  CUstream stream;  // explicit: resolve_stream()
  bool wait;        // the blocking forms: a copy to or from the host returns when it is done
  Form form = Form::any;
};

// A copy of a rectangle, and of a box.
struct Rectangle {
  const CUDA_MEMCPY2D* what;  // not NULL
  CUstream stream;
  bool wait;
};
struct Box {
  const CUDA_MEMCPY3D* what;  // not NULL
  CUstream stream;
  bool wait;
};

enum class Verdict : unsigned char {
  forward,  // no vmm block in it: the driver's answer stands
  ours,     // to the driver; if it answers 1, `retry` has more to say
  refused,  // 1, without asking the driver
};
Verdict judge_ours(const Linear& copy) noexcept;
inline Verdict judge(const Linear& copy) noexcept {
  if (!registry::may_be_vmm(copy.to) && !registry::may_be_vmm(copy.from)) return Verdict::forward;
  return judge_ours(copy);
}
Verdict judge(const Rectangle& copy) noexcept;
Verdict judge(const Box& copy) noexcept;

// True for a copy in a context of one device that reads or writes a vmm block of another one, in a
// stream that does not capture, where KVSHIM_PEERS lets kvshim see to it.
bool crosses(const Linear& copy) noexcept;
bool crosses(const Box& copy) noexcept;

// After the driver has answered 1 to a copy with vmm blocks in it.
using kvshim::Retry;
Retry retry(const Linear& copy, CUresult* result) noexcept;
Retry retry(const Rectangle& copy, CUresult* result) noexcept;
Retry retry(const Box& copy, CUresult* result) noexcept;

}  // namespace kvshim::copies
