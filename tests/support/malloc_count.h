// Counts what a piece of code takes from the heap. Include it in one source file of a program: it
// replaces malloc, calloc and realloc for the whole of it (glibc's own underneath).
#pragma once

#include <atomic>
#include <cstddef>

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* block, std::size_t bytes);
}

namespace kvshim::test {

inline std::atomic<unsigned long> heap_calls{0};

template <typename Body>
unsigned long heap_calls_in(Body body) {
  const unsigned long before = heap_calls.load();
  body();
  return heap_calls.load() - before;
}

}  // namespace kvshim::test

extern "C" void* malloc(std::size_t bytes) {
  kvshim::test::heap_calls.fetch_add(1);
  return __libc_malloc(bytes);
}
extern "C" void* calloc(std::size_t count, std::size_t bytes) {
  kvshim::test::heap_calls.fetch_add(1);
  return __libc_calloc(count, bytes);
}
extern "C" void* realloc(void* block, std::size_t bytes) {
  kvshim::test::heap_calls.fetch_add(1);
  return __libc_realloc(block, bytes);
}
