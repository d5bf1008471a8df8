// Debuggers, profilers and exception tables see through kvshim's assembly: a backtrace taken inside
// a lookup shows kvshim's dlsym and the program's frames behind it.
#include <execinfo.h>

#include "check.h"

namespace {

__attribute__((noinline)) void* ask(void* in, const char* name) {
  void* const found = dlsym(in, name);
  __asm__ volatile("" ::: "memory");  // not a tail call: this frame must be on the stack
  return found;
}

}  // namespace

int main() {
  void* warm[4];
  backtrace(warm, 4);  // its first call loads libgcc_s
  void* const library = dlopen(UNWIND_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  EXPECT_TEXT(library != nullptr, library == nullptr ? dlerror() : "");
  if (library == nullptr) return preload::result();
  const auto frames = static_cast<void**>(dlsym(library, "unwind_frames"));
  const auto count = static_cast<int*>(dlsym(library, "unwind_count"));
  EXPECT(frames != nullptr && count != nullptr);
  *count = 0;
  EXPECT(ask(library, "cuMemAlloc_v2") != nullptr);
  EXPECT(*count > 0);
  int thunk = -1;
  int program = -1;
  for (int i = 0; i < *count; ++i) {
    Dl_info info;
    if (dladdr(frames[i], &info) == 0) continue;
    if (preload::in_kvshim(frames[i]) && info.dli_sname != nullptr &&
        std::strcmp(info.dli_sname, "dlsym") == 0) {
      thunk = i;
    }
    if (std::strcmp(preload::object_of(frames[i]),
                    preload::object_of(reinterpret_cast<void*>(&ask))) == 0 &&
        program < 0) {
      program = i;
    }
  }
  EXPECT(thunk > 0);
  EXPECT(program == thunk + 1);
  // The C library's start-up code is the end of every stack.
  EXPECT(std::strncmp(preload::object_of(frames[*count - 1]), "libc.so", 7) == 0 ||
         std::strcmp(preload::object_of(frames[*count - 1]),
                     preload::object_of(reinterpret_cast<void*>(&ask))) == 0);
  return preload::result();
}
