// Types of CUDA 12.8 that the batched copies take, and 12.4's of green contexts, by name only where
// the headers are older.
#pragma once

#include <cuda.h>

#if CUDA_VERSION < 12040
typedef struct CUgreenCtx_st* CUgreenCtx;
#endif
#if CUDA_VERSION < 12080
typedef struct CUmemcpyAttributes_st CUmemcpyAttributes;
typedef struct CUDA_MEMCPY3D_BATCH_OP_st CUDA_MEMCPY3D_BATCH_OP;
#endif
