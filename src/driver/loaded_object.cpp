// See loaded_object.h.
#include "driver/loaded_object.h"

#include <link.h>

#include <cstdint>
#include <cstring>

#include "driver/libcuda.h"

namespace kvshim::driver {

namespace {

// struct dl_find_object of <dlfcn.h>, which headers of glibc 2.34 lack.
struct Found {
  unsigned long long flags;
  void* begin;
  void* end;
  link_map* map;
  void* eh_frame;
  unsigned long long reserved[16];  // it has 7; other architectures more fields
};
using Find = int (*)(void*, Found*);

constinit std::atomic<Find> finder{nullptr};
constinit std::atomic<bool> looked{false};

Find find_function() noexcept {
  if (!looked.load(std::memory_order_acquire)) {
    finder.store(reinterpret_cast<Find>(libc_function("_dl_find_object")),
                 std::memory_order_release);
    looked.store(true, std::memory_order_release);
  }
  return finder.load(std::memory_order_acquire);
}

const char* file_of(const char* path) noexcept {
  const char* const slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

struct Walk {
  std::uintptr_t address;
  LoadedObject* out;
};

int visit(dl_phdr_info* info, std::size_t, void* argument) {
  const auto* walk = static_cast<Walk*>(argument);
  std::uintptr_t begin = ~std::uintptr_t{0};
  bool holds = false;
  for (int index = 0; index < info->dlpi_phnum; ++index) {
    const ElfW(Phdr)& part = info->dlpi_phdr[index];
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t at = info->dlpi_addr + part.p_vaddr;
    if (at < begin) begin = at;
    holds = holds || walk->address - at < part.p_memsz;
  }
  if (!holds) return 0;
  *walk->out = {file_of(info->dlpi_name), reinterpret_cast<const void*>(begin)};
  return 1;
}

}  // namespace

bool object_at(const void* address, LoadedObject* out) noexcept {
  if (const Find find = find_function()) {
    Found found{};
    if (find(const_cast<void*>(address), &found) != 0 || found.map == nullptr) return false;
    *out = {found.map->l_name != nullptr ? file_of(found.map->l_name) : "", found.begin};
    return true;
  }
  Walk walk{reinterpret_cast<std::uintptr_t>(address), out};
  return dl_iterate_phdr(visit, &walk) != 0;
}

void* FunctionOf::get() noexcept {
  LoadedObject object;
  void* function = found_.load(std::memory_order_acquire);
  if (function != nullptr && object_at(function, &object) &&
      std::strncmp(object.file, object_, std::strlen(object_)) == 0) {
    return function;
  }
  function = symbol_of(object_, name_);
  found_.store(function, std::memory_order_release);
  return function;
}

}  // namespace kvshim::driver
