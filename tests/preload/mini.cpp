// The smallest library around the lookup code: one hook, one option. So that the lookup can be
// built without optimisation, and for another architecture, without building all of kvshim again.
#include <cstdlib>
#include <cstring>

#include "base/options.h"
#include "driver/libcuda.h"
#include "hooks/table.h"

extern "C" __attribute__((visibility("default"))) int cuMemAlloc_v2(void* out,
                                                                    unsigned long bytes) {
  using Function = int (*)(void*, unsigned long);
  void* const real = kvshim::driver::symbol("cuMemAlloc_v2");
  return real == nullptr ? 3 : reinterpret_cast<Function>(real)(out, bytes);
}

namespace kvshim {
namespace {
const HookEntry kTable[] = {{"cuMemAlloc_v2", reinterpret_cast<void*>(&cuMemAlloc_v2)}};
constinit Options g_options{};
}  // namespace

std::span<const HookEntry> hook_table() noexcept {
  return kTable;
}

const Options& options() {
  const char* const disable = std::getenv("KVSHIM_DISABLE");
  g_options.disable = disable != nullptr && std::strcmp(disable, "1") == 0;
  return g_options;
}

}  // namespace kvshim
