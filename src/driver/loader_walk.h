// Walks over the loaded objects that no fork falls into.
//
// Why: dl_iterate_phdr holds a lock of the loader (dl_load_write_lock) which glibc does not make
// new in the child of a fork, as it does dl_load_lock (seen with 2.36). The child of a fork that
// falls into another thread's walk hangs in its first dlopen. To remember what walks find would
// make that rarer, not go away; a fork that waits for walks ends it for all of them, whatever this
// C library and its unwinder do. _Fork and vfork run no handlers and are not waited for.
#pragma once

#include <link.h>

#include <cstddef>

namespace kvshim::driver {

// While one lives, fork() waits, in whatever thread. For a moment and around nothing but the walk:
// no CUDA call, no log line. Needed around code that walks by itself (an older libgcc_s does).
class LoaderWalk {
 public:
  LoaderWalk() noexcept;
  ~LoaderWalk();
  LoaderWalk(const LoaderWalk&) = delete;
  LoaderWalk& operator=(const LoaderWalk&) = delete;

 private:
  bool held_;
};

// dl_iterate_phdr in a LoaderWalk. `visit` must not walk in turn.
void for_each_object(int (*visit)(dl_phdr_info*, std::size_t, void*), void* argument) noexcept;

}  // namespace kvshim::driver
