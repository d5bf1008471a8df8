// The public C interface; see include/kvshim/kvshim.h.
#include "kvshim/kvshim.h"

extern "C" __attribute__((visibility("default"))) const char* kvshim_version(void) {
  return KVSHIM_VERSION;
}
