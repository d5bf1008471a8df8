// See objects.h. The loader's list and not /proc/self/maps: it has the order, and works in a
// chroot.
#include "telemetry/objects.h"

#include <link.h>
#include <string.h>

#include <cstdint>

namespace kvshim::telemetry {

namespace {

struct Search {
  const char* ending;
  bool past_us = false;
  Where found = Where::absent;
};

bool ends_so(const char* path, const char* ending) noexcept {
  const char* at = strstr(path, ending);
  return at != nullptr && strchr(at + strlen(ending), '/') == nullptr;
}

bool is_us(const dl_phdr_info& info) noexcept {
  static constinit const char anchor = 0;
  const auto address = reinterpret_cast<std::uintptr_t>(&anchor);
  for (int index = 0; index < info.dlpi_phnum; ++index) {
    const auto& segment = info.dlpi_phdr[index];
    const std::uintptr_t start = info.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && address - start < segment.p_memsz) return true;
  }
  return false;
}

int visit(dl_phdr_info* info, std::size_t, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  search.past_us = search.past_us || is_us(*info);
  if (info->dlpi_name == nullptr || !ends_so(info->dlpi_name, search.ending)) return 0;
  search.found = search.past_us ? Where::after_us : Where::before_us;
  return 1;
}

}  // namespace

Where find_object(const char* ending) noexcept {
  Search search{ending};
  dl_iterate_phdr(visit, &search);
  return search.found;
}

}  // namespace kvshim::telemetry
