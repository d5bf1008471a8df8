// What src/sharing/ must hear of. It stands above this folder, so it leaves its functions here the
// first time it has something to listen for. None is called with a lock held.
#pragma once

#include <atomic>

#include "memory/blocks/registry.h"

namespace kvshim {

struct Listener {
  // A block with an export_slot is about to be given back: nobody may open it any more.
  void (*released)(const Block& block) noexcept;
  // This context was destroyed, and with it, natively, what was opened in it.
  void (*context_gone)(const Owner& owner) noexcept;
  // In a forked child.
  void (*forked)() noexcept;
};

inline constinit std::atomic<const Listener*> listener{nullptr};

}  // namespace kvshim
