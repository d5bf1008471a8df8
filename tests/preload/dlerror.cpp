// OpenAL and others take any pending dlerror() after a lookup for that lookup's failure: a good
// lookup leaves none, a failing one leaves exactly one that names the symbol asked for.
#include "check.h"

namespace {

void* library = nullptr;

void good(void* in, const char* name) {
  dlerror();
  EXPECT_TEXT(dlsym(in, name) != nullptr, name);
  EXPECT_TEXT(dlerror() == nullptr, name);
}

void bad(void* in, const char* name) {
  dlerror();
  EXPECT_TEXT(dlsym(in, name) == nullptr, name);
  const char* const message = dlerror();
  EXPECT_TEXT(message != nullptr && std::strstr(message, name) != nullptr,
              message == nullptr ? "no message" : message);
  EXPECT_TEXT(dlerror() == nullptr, "a second message");
}

void all() {
  good(RTLD_DEFAULT, "puts");
  good(library, "cuMemAlloc_v2");
  good(library, "cuInit");
  bad(library, "cuMemFree_v2");
  bad(library, "cuNoSuchFunction");
  bad(library, "no_such_function");
  bad(RTLD_DEFAULT, "cuMemFree_v2");
  bad(RTLD_NEXT, "cuNoSuchFunction");
  // A failure that nobody asked about does not outlive the next good lookup.
  dlsym(library, "cuMemFree_v2");
  EXPECT(dlsym(library, "cuMemAlloc_v2") != nullptr && dlerror() == nullptr);
}

}  // namespace

int main() {
  library = dlopen(OTHER_LIBRARY, RTLD_NOW | RTLD_LOCAL);  // no driver loaded: probes for it fail
  EXPECT(library != nullptr);
  all();
  library = dlopen(STUB_CUDA, RTLD_NOW | RTLD_LOCAL);
  EXPECT(library != nullptr);
  all();
  return preload::result();
}
