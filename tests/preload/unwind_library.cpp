// A driver library whose function is chosen by a resolver when it is looked up (STT_GNU_IFUNC). The
// resolver notes who called it, from inside the lookup.
#include <execinfo.h>

extern "C" {

void* unwind_frames[64];
int unwind_count = 0;

static int allocate(void*, unsigned long) {
  return 222;
}
__attribute__((used)) static int (*resolve_alloc())(void*, unsigned long) {
  // The loader may also resolve it while it relocates; the lookup's turn is the last.
  unwind_count = backtrace(unwind_frames, 64);
  return &allocate;
}
int cuMemAlloc_v2(void*, unsigned long) __attribute__((ifunc("resolve_alloc")));

}  // extern "C"
