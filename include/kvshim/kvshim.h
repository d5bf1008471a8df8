/* kvshim's public C interface. A program finds these with dlsym(RTLD_DEFAULT, ...) when
 * libkvshim.so is preloaded, or in the library that it opened itself; nothing here needs to be
 * called for a preloaded kvshim to work. docs/pluggable.md has examples. */
#ifndef KVSHIM_KVSHIM_H
#define KVSHIM_KVSHIM_H

#include <stddef.h>

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

#ifdef __cplusplus
}
#endif
#endif
