// Which object an address belongs to, and functions of objects that come and go.
#include "driver/loaded_object.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "support/catch.h"

using namespace kvshim;

TEST_CASE("code of the program, of a library, and of nobody") {
  driver::LoadedObject program, library, again;
  REQUIRE(driver::object_at(reinterpret_cast<const void*>(&driver::object_at), &program));
  CHECK(std::string(program.file).empty());
  REQUIRE(driver::object_at(reinterpret_cast<const void*>(dlsym(RTLD_DEFAULT, "qsort")), &library));
  CHECK(std::string(library.file) == "libc.so.6");
  REQUIRE(driver::object_at(reinterpret_cast<const void*>(dlsym(RTLD_DEFAULT, "atoi")), &again));
  CHECK(library == again);
  CHECK_FALSE(library == program);
  void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK_FALSE(driver::object_at(page, &library));
  munmap(page, 4096);
}

TEST_CASE("from glibc 2.35 on nobody waits for a walk of another thread, nor takes part in one") {
  if (dlsym(RTLD_DEFAULT, "_dl_find_object") == nullptr) {
    std::puts("skipped: this C library has no _dl_find_object");
    return;
  }
  driver::FunctionOf known{"libc.so", "qsort"};
  REQUIRE(known.get() != nullptr);
  std::atomic<int> step{0};
  std::thread other([&] {
    dl_iterate_phdr(
        [](dl_phdr_info*, std::size_t, void* argument) {
          auto& now = *static_cast<std::atomic<int>*>(argument);
          now = 1;
          for (int i = 0; i < 5000 && now != 2; ++i) usleep(1000);
          return 1;
        },
        &step);
    step = 3;
  });
  while (step != 1) usleep(100);
  driver::LoadedObject object;
  CHECK(driver::object_at(known.get(), &object));
  CHECK(step == 1);  // it stands there still
  step = 2;
  other.join();
}

TEST_CASE("a function of an object that is loaded, unloaded and loaded again") {
  driver::FunctionOf function{"libresolv.so", "ns_put16"};
  driver::FunctionOf none{"libresolv.so", "no_such_function"};
  for (int round = 0; round < 3; ++round) {
    CHECK(function.get() == nullptr);
    void* const library = dlopen("libresolv.so.2", RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library != nullptr);
    CHECK(function.get() == dlsym(library, "ns_put16"));
    CHECK(function.get() == dlsym(library, "ns_put16"));
    CHECK(none.get() == nullptr);
    REQUIRE(dlclose(library) == 0);
  }
}
