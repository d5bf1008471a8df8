/* kvshim's public C interface. A program finds these with dlsym(RTLD_DEFAULT, ...) when
 * libkvshim.so is preloaded, or in the library that it opened itself; nothing here needs to be
 * called for a preloaded kvshim to work. docs/pluggable.md has examples. */
#ifndef KVSHIM_KVSHIM_H
#define KVSHIM_KVSHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* CUstream and cudaStream_t are pointers to it */

/* The library's version, "major.minor.patch". Static storage, never freed. */
const char* kvshim_version(void);

/* The second way in, for programs that cannot preload: an allocator over the same engine, with the
 * same options (threshold, rules, budget), and with the signatures that PyTorch's
 * torch.cuda.memory.CUDAPluggableAllocator expects. From any thread.
 *
 * A block of `size` bytes on `device`, ready for every stream at once (`stream` is not used). It
 * belongs to the thread's current context if that is one of `device`, else to the primary context
 * of `device`, which becomes the thread's current one if it had none. NULL for a size of 0, and on
 * failure, with the reason in the log. */
void* kvshim_malloc(size_t size, int device, struct CUstream_st* stream);

/* Gives a block of kvshim_malloc back, once the work in `stream` (of the thread's context, NULL is
 * the legacy stream) and all work of the block's context has finished: it waits for both, except
 * for a stream that is being captured. `size` is not used; NULL is allowed. Blocks that
 * kvshim_malloc did not make are passed on to the driver. */
void kvshim_free(void* ptr, size_t size, int device, struct CUstream_st* stream);

/* What the summary at exit is made of, at any time: counts since the process began (a forked child
 * begins anew). They change while they are read. No driver call and no lock: from any thread.
 * Sizes in bytes. */
struct kvshim_amounts {
  uint64_t blocks;     /* allocated so far */
  uint64_t live;       /* blocks now */
  uint64_t bytes;      /* allocated so far, sizes as asked for */
  uint64_t live_bytes; /* now */
  uint64_t peak_bytes; /* the most at one time */
};
struct kvshim_stats {
  struct kvshim_amounts native, vmm, managed, host; /* by the kind that blocks became */
  uint64_t fallbacks;                               /* blocks that became another kind than meant */
  uint64_t out_of_memory;                           /* requests that were answered so */
};
struct kvshim_device_stats {
  uint64_t total; /* the device's own memory, whatever the program is told; 0: not known yet */
  uint64_t free;  /* of it, as the driver said when the program last asked; 0: never asked */
  uint64_t told;  /* bytes that KVSHIM_MEMINFO=virtual adds to total */
  struct kvshim_amounts spilled; /* this device's blocks, or parts of them, in host memory */
};

/* Fill *out, of which the caller knows the first `size` bytes (sizeof(*out)); what this library
 * does not know is zero. `device` is the driver's ordinal. 0, or 1 for an argument that makes no
 * sense. */
int kvshim_get_stats(struct kvshim_stats* out, size_t size);
int kvshim_get_device_stats(int device, struct kvshim_device_stats* out, size_t size);

#ifdef __cplusplus
}
#endif
#endif
