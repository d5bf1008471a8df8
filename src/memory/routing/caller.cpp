// Walks the stack with the unwinder that the process has already; see caller.h.
//
// Why libgcc_s and not a chain of return addresses: neither the CUDA runtime nor most libraries
// keep frame pointers. Why not linked in: the static unwinder needs glibc 2.35 (_dl_find_object),
// malloc, and a destructor; libgcc_s.so.1 is there in every process with C++ in it (Python with any
// of the frameworks). It is looked up, never loaded: dlopen would take the loader's lock inside a
// call.
#include "memory/routing/caller.h"

#include <errno.h>
#include <unistd.h>
#include <unwind.h>

#include <cstdint>
#include <cstring>

#include "base/log.h"
#include "driver/libcuda.h"
#include "driver/loaded_object.h"

namespace kvshim::caller {

namespace {

using Backtrace = _Unwind_Reason_Code (*)(_Unwind_Trace_Fn, void*);
using GetIp = _Unwind_Ptr (*)(_Unwind_Context*);
using driver::LoadedObject;

constexpr unsigned kFramesMax = 64;

constinit driver::FunctionOf unwind_backtrace{"libgcc_s.so", "_Unwind_Backtrace"};
constinit driver::FunctionOf unwind_get_ip{"libgcc_s.so", "_Unwind_GetIP"};

// `name` is all zeros.
void copy(char (&name)[kNameMax], const char* file) {
  std::memcpy(name, file, strnlen(file, kNameMax - 1));
}

struct Walk {
  GetIp get_ip;
  LoadedObject self;  // kvshim, whatever its file is called
  unsigned frames = 0;
  bool found = false;
  LoadedObject who;
};

// Objects that are between the program and kvshim.
bool is_border(const LoadedObject& object, const LoadedObject& self) {
  return object == self || std::strncmp(object.file, "libcudart", 9) == 0 ||
         driver::is_driver_file(object.file);
}

_Unwind_Reason_Code step(_Unwind_Context* context, void* argument) {
  auto* walk = static_cast<Walk*>(argument);
  const std::uintptr_t address = walk->get_ip(context);
  if (address == 0 || ++walk->frames > kFramesMax) return _URC_NORMAL_STOP;
  // -1: inside the call instruction. Code that was made at run time belongs to nobody.
  if (!driver::object_at(reinterpret_cast<const void*>(address - 1), &walk->who)) {
    return _URC_NORMAL_STOP;
  }
  if (is_border(walk->who, walk->self)) return _URC_NO_REASON;
  walk->found = true;
  return _URC_NORMAL_STOP;
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
  const auto backtrace = reinterpret_cast<Backtrace>(unwind_backtrace.get());
  const auto get_ip = reinterpret_cast<GetIp>(unwind_get_ip.get());
  if (backtrace == nullptr || get_ip == nullptr) {
    static constinit log::Once said;
    if (said.first()) {
      log::warn(
          "KVSHIM_RULES: libgcc_s.so.1 is not loaded, so the library that asks for memory cannot "
          "be found: rules with lib= match nothing");
    }
    return {};
  }
  Walk walk{.get_ip = get_ip, .self = {}, .who = {}};
  driver::object_at(reinterpret_cast<const void*>(&step), &walk.self);
  backtrace(step, &walk);
  if (!walk.found) return {};
  if (walk.who.file[0] == '\0') {
    name_program(name);
  } else {
    copy(name, walk.who.file);
  }
  return name;
}

}  // namespace kvshim::caller
