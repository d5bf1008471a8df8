// C++ exceptions in the program work as without kvshim: with the shared and with a static C++
// runtime (built twice), through C frames, in threads, and out of functions found by dlsym.
#include <pthread.h>

#include <stdexcept>
#include <string>

#include "check.h"

extern "C" __attribute__((visibility("default"))) void thrower(int value) {
  throw std::runtime_error("value " + std::to_string(value));
}

namespace {

std::string caught(void (*function)(int), int value) {
  try {
    function(value);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

int compare(const void*, const void*) {
  throw 5;
}

void* in_thread(void* out) {
  *static_cast<bool*>(out) = caught(&thrower, 3) == "value 3";
  return nullptr;
}

struct Static {
  bool worked = caught(&thrower, 1) == "value 1";
} before_main;

}  // namespace

int main() {
  EXPECT(before_main.worked);
  const auto found = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "thrower"));
  EXPECT(found == &thrower);
  EXPECT(found != nullptr && caught(found, 2) == "value 2");
  int numbers[2] = {1, 2};
  bool through_c = false;
  try {
    std::qsort(numbers, 2, sizeof(int), &compare);
  } catch (int value) {
    through_c = value == 5;
  }
  EXPECT(through_c);
  bool threads = false;
  pthread_t thread;
  EXPECT(pthread_create(&thread, nullptr, &in_thread, &threads) == 0);
  pthread_join(thread, nullptr);
  EXPECT(threads);
  return preload::result();
}
