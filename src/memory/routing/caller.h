// Which library asked for memory: the first one on the stack that is not the CUDA runtime, the
// driver or kvshim. For rules that depend on it, and only then: walking the stack costs
// microseconds.
#pragma once

#include <cstddef>
#include <string_view>

namespace kvshim::caller {

inline constexpr std::size_t kNameMax = 256;

// Its file name ("libnccl.so.2"; the program's own for the program), written into `name`. Empty
// where it cannot be known: libgcc_s.so.1, which walks the stack, is not loaded (a program without
// any C++; said once), a frame without unwind tables stands before it, or the code that asked is in
// no file (made at run time). Uses no heap of its own and none of the loader's locks that a
// constructor may hold.
std::string_view library(char (&name)[kNameMax]) noexcept;

}  // namespace kvshim::caller
