// cuda.h in the form in which it declares every entry point under its exact symbol name (old ABIs
// and per-thread twins included), plus the macros that define one. Include it before anything else.
#pragma once

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <cstddef>
#include <cstdint>

#define KVSIM_API extern "C" __attribute__((visibility("default")))

// A function whose symbol name cannot be its C++ name, because cuda.h declares that name with
// another signature.
#define KVSIM_SYMBOL(symbol) __asm__(symbol)

namespace sim {

using Address = std::uint64_t;

inline constexpr std::size_t kPage = std::size_t{2} << 20;  // a device page
inline constexpr std::size_t kSmall = 512;                  // alignment of a small native block

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
  return (value + step - 1) / step * step;
}

// Which entry point was called: its symbol name, and whether stream 0 means the per-thread stream.
struct Api {
  const char* name;
  bool per_thread = false;
};

}  // namespace sim

#define KVSIM_UNPACK(...) __VA_ARGS__
// Defines an entry point and its per-thread twin; both call impl(Api, args...).
#define KVSIM_TWIN(plain, twin, impl, params, args)          \
  KVSIM_API CUresult plain params {                          \
    return impl(sim::Api{#plain, false}, KVSIM_UNPACK args); \
  }                                                          \
  KVSIM_API CUresult twin params {                           \
    return impl(sim::Api{#twin, true}, KVSIM_UNPACK args);   \
  }
