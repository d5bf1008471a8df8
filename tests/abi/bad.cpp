// A library that breaks every promise that guard.sh checks, one per macro, to show that the guards
// can fail. Never part of anything.
#if defined(BAD_NEEDED) || defined(BAD_RUNTIME)
#include <string>
std::string* bad_string(const char* text) {
  return new std::string(text);
}
#endif

#ifdef BAD_CONSTRUCTORS
extern "C" char* getenv(const char*);
struct Reader {
  const char* value = getenv("HOME");
} bad_static;
__attribute__((constructor)) static void bad_start() {
  bad_static.value = nullptr;
}
#endif

#ifdef BAD_LOOKUPS
#include <dlfcn.h>
void* bad_lookup(const char* name) {
  return dlsym(RTLD_NEXT, name);
}
#endif

#ifdef BAD_BINDING
extern "C" void log_line();
void (*bad_table[])() = {&log_line};
#endif

#ifdef BAD_PRIVATE
extern "C" int __libc_enable_secure;
int bad_private() {
  return __libc_enable_secure;
}
#endif

#ifdef BAD_GLIBC
#include <unistd.h>
long bad_glibc() {
  return getpid();
}
#endif

#ifdef BAD_TLS
thread_local char bad_tls[128];
char* bad_thread() {
  return bad_tls;
}
#endif

#ifdef BAD_TLS_MODEL
thread_local int bad_tls;
int* bad_thread() {
  return &bad_tls;
}
#endif

#ifdef BAD_TEXT
__asm__(".text\n.globl bad_target\nbad_words: .quad bad_target\n");
#endif

#ifdef BAD_STACK
__asm__(".section .note.GNU-stack, \"x\"\n.text\n");
#endif

#ifdef BAD_VERSIONED
extern "C" {
void cuMemAlloc_v2() {}
void dlsym() {}
void dlvsym() {}
void kvshim_version() {}
}
#endif

#ifndef BAD_MISSING
extern "C" void log_line() {}  // an export that no table lists
#endif
