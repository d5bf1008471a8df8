// The hooks as data: exact exported name -> our function. Generated from hooks.def and nvml.def.
#pragma once

#include <span>

namespace kvshim {

struct HookEntry {
  const char* name;  // "cuMemAlloc_v2"
  void* hook;        // our exported function of that name
};

// In the order of the two files; constant, usable from any thread at any time.
std::span<const HookEntry> hook_table() noexcept;

}  // namespace kvshim
