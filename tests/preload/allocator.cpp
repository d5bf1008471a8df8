// A program with an allocator of its own whose first use calls dlsym and getenv, as jemalloc's
// does. If kvshim's lookup allocated, the allocator would be entered again before it is ready (a
// deadlock in jemalloc; here a message and exit code 1). Uses nothing that allocates before main.
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

alignas(16) char arena[1 << 20];
std::size_t used = 0;
int state = 0;  // 0 unused, 1 starting, 2 ready
void* thread_create = nullptr;

[[noreturn]] void fail(const char* text) {
  (void)!write(2, text, std::strlen(text));
  _exit(1);
}

void start() {
  if (state == 1) fail("the allocator was entered while it starts\n");
  if (state == 2) return;
  state = 1;
  thread_create = dlsym(RTLD_NEXT, "pthread_create");
  if (dlsym(RTLD_DEFAULT, "puts") == nullptr) fail("puts was not found\n");
  if (dlsym(RTLD_DEFAULT, "cuserid") == nullptr) fail("cuserid was not found\n");
  (void)std::getenv("MALLOC_CONF");
  state = 2;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void* malloc(std::size_t bytes) {
  start();
  const std::size_t begin = (used + 15) & ~std::size_t{15};
  if (bytes > sizeof(arena) - begin) {
    errno = ENOMEM;
    return nullptr;
  }
  used = begin + bytes;
  return arena + begin;
}
__attribute__((visibility("default"))) void free(void*) {
  start();
}
__attribute__((visibility("default"))) void* calloc(std::size_t count, std::size_t bytes) {
  return malloc(count * bytes);  // the arena is never reused, so it is zero
}
__attribute__((visibility("default"))) void* realloc(void* old, std::size_t bytes) {
  void* const fresh = malloc(bytes);
  if (fresh != nullptr && old != nullptr) {
    const auto rest = static_cast<std::size_t>(arena + sizeof(arena) - static_cast<char*>(old));
    std::memmove(fresh, old, bytes < rest ? bytes : rest);
  }
  return fresh;
}

}  // extern "C"

int main() {
  void* volatile block = malloc(100);
  free(block);
  if (state != 2 || thread_create == nullptr) fail("the allocator never started\n");
  if (dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != nullptr) fail("a driver function without a driver\n");
  return 0;
}
