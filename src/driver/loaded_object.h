// Which loaded object an address belongs to, and functions of other objects that are asked for
// again and again.
//
// Why not dl_iterate_phdr each time: it holds a lock of the loader (dl_load_write_lock) which glibc
// does not make new in the child of a fork, as it does dl_load_lock (seen with 2.36). The child of
// a fork that falls into another thread's walk hangs in its first dlopen. _dl_find_object (glibc
// 2.35) takes no lock. With glibc 2.34 a walk it is, each time.
#pragma once

#include <atomic>

namespace kvshim::driver {

struct LoadedObject {
  const char* file = "";  // its name without the folder, "" for the program itself
  const void* begin = nullptr;

  bool operator==(const LoadedObject& other) const { return begin == other.begin; }
};

// False where no object is mapped. The name is good while the object is loaded: for code that is
// on a stack, or just called.
bool object_at(const void* address, LoadedObject* out) noexcept;

// A function of the first object whose file name begins with `object`. Looked up once; once more
// when that object has been unloaded (and perhaps loaded again).
class FunctionOf {
 public:
  constexpr FunctionOf(const char* object, const char* name) noexcept
      : object_(object), name_(name) {}
  void* get() noexcept;  // NULL: not loaded, or it has none

 private:
  const char* object_;
  const char* name_;
  std::atomic<void*> found_{nullptr};
};

}  // namespace kvshim::driver
