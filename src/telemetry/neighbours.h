// Known libraries that have a hand in CUDA memory too, and what to do about each.
#pragma once

#include "telemetry/objects.h"

namespace kvshim::telemetry {

struct Neighbour {
  const char* ending;  // of its path (objects.h)
  const char* name;    // as its project calls it
  const char* does;    // what it does with memory
  const char* before;  // what that means when it stands before kvshim, and the remedy
  const char* after;   // the same when it stands after kvshim
};

// In the order of the table. NULL: there are no more.
const Neighbour* neighbour(unsigned index) noexcept;

}  // namespace kvshim::telemetry
