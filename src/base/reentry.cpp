// The one thread-local variable of the library; see reentry.h.
#include "base/reentry.h"

namespace kvshim {

constinit thread_local int Reentry::depth_ = 0;

}  // namespace kvshim
