// The hook table as data; see table.h.
#include "hooks/table.h"

#include "hooks/hook.h"
#include "hooks/nvml.h"

namespace kvshim {

std::span<const HookEntry> hook_table() noexcept {
  static const HookEntry entries[] = {
#define KVSHIM_HOOK(name, params, args) {#name, reinterpret_cast<void*>(&::name)},
#include "hooks/hooks.def"
#include "hooks/nvml.def"
#undef KVSHIM_HOOK
  };
  return entries;
}

}  // namespace kvshim
