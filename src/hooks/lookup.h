// What a program's dlsym or dlvsym is answered. The assembly thunks (dlsym_*.S) ask here and then
// return the answer or jump to the real function; the rules stand in lookup.cpp.
#pragma once

#include "hooks/table.h"

namespace kvshim {

// The hook of exactly this exported name, or NULL. No heap, no lock, any thread, any time.
const HookEntry* find_hook(const char* name) noexcept;

// How the thunk goes on. Two pointers, so that the value travels in two registers.
struct Decision {
  void* answer;  // returned to the program when `jump` is NULL
  void* jump;    // otherwise: jump there with the program's own arguments and return address
};

}  // namespace kvshim

// `caller` is the program's return address.
extern "C" {
kvshim::Decision kvshim_decide_dlsym(void* handle, const char* name, const void* caller) noexcept;
kvshim::Decision kvshim_decide_dlvsym(void* handle, const char* name, const char* version,
                                      const void* caller) noexcept;
}
