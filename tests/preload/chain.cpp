// dlsym(RTLD_NEXT) answers from the caller's place in the chain, not from kvshim's.
#include "check.h"

extern "C" {
const char* foo();
void* ompt_start_tool(unsigned version, const char* runtime);
void* next_puts(const char* version);
void chain_b();
}

#if defined(__x86_64__)
constexpr const char* kBaseVersion = "GLIBC_2.2.5";
#else
constexpr const char* kBaseVersion = "GLIBC_2.17";
#endif

int main() {
  chain_b();
  const char* const answer = foo();
  EXPECT_TEXT(std::strcmp(answer, "b") == 0, answer);
  EXPECT(ompt_start_tool(5, "test") == nullptr);
  EXPECT(std::strncmp(preload::object_of(next_puts(kBaseVersion)), "libc.so", 7) == 0);
  EXPECT(next_puts("GLIBC_9.9") == nullptr);
  // kvshim's lookup must really be in the way, or this test shows nothing.
  if (std::getenv("LD_PRELOAD") != nullptr) {
    EXPECT(preload::in_kvshim(reinterpret_cast<void*>(&dlsym)));
    EXPECT(preload::in_kvshim(reinterpret_cast<void*>(&dlvsym)));
  }
  return preload::result();
}
