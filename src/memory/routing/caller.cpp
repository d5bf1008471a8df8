// Walks the stack with the unwinder that the process has already; see caller.h.
//
// Why libgcc_s and not a chain of return addresses: neither the CUDA runtime nor most libraries
// keep frame pointers. Why not linked in: the static unwinder needs glibc 2.35 (_dl_find_object),
// malloc, and a destructor; libgcc_s.so.1 is there in every process with C++ in it (Python with any
// of the frameworks). It is looked up, never loaded: dlopen would take the loader's lock inside a
// call.
#include "memory/routing/caller.h"

#include <errno.h>
#include <link.h>
#include <unistd.h>
#include <unwind.h>

#include <cstdint>
#include <cstring>

#include "base/log.h"
#include "driver/libcuda.h"
#include "driver/loader_walk.h"

namespace kvshim::caller {

namespace {

using Backtrace = _Unwind_Reason_Code (*)(_Unwind_Trace_Fn, void*);
using GetIp = _Unwind_Ptr (*)(_Unwind_Context*);

constexpr unsigned kFramesMax = 64;
constexpr unsigned kSpansMax = 16;  // kvshim, libcuda, a few libnvidia-*, one or two runtimes

struct Span {
  std::uintptr_t begin = ~std::uintptr_t{0};
  std::uintptr_t end = 0;
  bool holds(std::uintptr_t address) const { return address >= begin && address < end; }
};

Span span_of(const dl_phdr_info& object) {
  Span span;
  for (int index = 0; index < object.dlpi_phnum; ++index) {
    const ElfW(Phdr)& part = object.dlpi_phdr[index];
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t begin = object.dlpi_addr + part.p_vaddr;
    if (begin < span.begin) span.begin = begin;
    if (begin + part.p_memsz > span.end) span.end = begin + part.p_memsz;
  }
  return span;
}

const char* file_of(const dl_phdr_info& object) {
  const char* const slash = std::strrchr(object.dlpi_name, '/');
  return slash == nullptr ? object.dlpi_name : slash + 1;
}

// Objects that are between the program and kvshim.
struct Border {
  std::uintptr_t self;
  Span spans[kSpansMax];
  unsigned count = 0;

  bool holds(std::uintptr_t address) const {
    for (unsigned index = 0; index < count; ++index) {
      if (spans[index].holds(address)) return true;
    }
    return false;
  }
};

int collect_border(dl_phdr_info* object, std::size_t, void* argument) {
  auto* border = static_cast<Border*>(argument);
  const char* const file = file_of(*object);
  const bool known = std::strncmp(file, "libcudart", 9) == 0 || driver::is_driver_file(file);
  // Ours by address, whatever the file is called.
  const bool near = object->dlpi_addr <= border->self;
  if (!known && !near) return 0;
  const Span span = span_of(*object);
  if ((known || span.holds(border->self)) && border->count < kSpansMax) {
    border->spans[border->count++] = span;
  }
  return 0;
}

struct Walk {
  const Border* border;
  GetIp get_ip;
  unsigned frames = 0;
  std::uintptr_t found = 0;
};

_Unwind_Reason_Code step(_Unwind_Context* context, void* argument) {
  auto* walk = static_cast<Walk*>(argument);
  const std::uintptr_t address = walk->get_ip(context);
  if (address == 0 || ++walk->frames > kFramesMax) return _URC_NORMAL_STOP;
  if (walk->border->holds(address - 1)) return _URC_NO_REASON;  // -1: inside the call instruction
  walk->found = address - 1;
  return _URC_NORMAL_STOP;
}

// `name` is all zeros.
void copy(char (&name)[kNameMax], const char* file) {
  std::memcpy(name, file, strnlen(file, kNameMax - 1));
}

struct Naming {
  std::uintptr_t address;
  char (*name)[kNameMax];
  bool program = false;
};

int name_object(dl_phdr_info* object, std::size_t, void* argument) {
  auto* naming = static_cast<Naming*>(argument);
  if (!span_of(*object).holds(naming->address)) return 0;
  const char* const file = file_of(*object);
  naming->program = file[0] == '\0';
  // Copied here: the object may be unloaded once this walk is over.
  copy(*naming->name, file);
  return 1;
}

// The program's own object has no name in the loader's list.
void name_program(char (&name)[kNameMax]) {
  const int saved_errno = errno;
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  errno = saved_errno;
  if (length <= 0) return;
  path[length] = '\0';
  const char* const slash = std::strrchr(path, '/');
  copy(name, slash == nullptr ? path : slash + 1);
}

}  // namespace

std::string_view library(char (&name)[kNameMax]) noexcept {
  std::memset(name, 0, sizeof(name));
  const auto backtrace =
      reinterpret_cast<Backtrace>(driver::symbol_of("libgcc_s.so", "_Unwind_Backtrace"));
  const auto get_ip = reinterpret_cast<GetIp>(driver::symbol_of("libgcc_s.so", "_Unwind_GetIP"));
  if (backtrace == nullptr || get_ip == nullptr) {
    static constinit log::Once said;
    if (said.first()) {
      log::warn(
          "KVSHIM_RULES: libgcc_s.so.1 is not loaded, so the library that asks for memory cannot "
          "be found: rules with lib= match nothing");
    }
    return {};
  }
  Border border;
  border.self = reinterpret_cast<std::uintptr_t>(&step);
  driver::for_each_object(collect_border, &border);
  Walk walk{&border, get_ip};
  {
    // One built for glibc before 2.35, which has no _dl_find_object, calls dl_iterate_phdr.
    const driver::LoaderWalk guard;
    backtrace(step, &walk);
  }
  if (walk.found == 0) return {};
  Naming naming{walk.found, &name};
  driver::for_each_object(name_object, &naming);
  if (naming.program) name_program(name);
  return name;
}

}  // namespace kvshim::caller
