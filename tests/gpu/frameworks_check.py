"""What CuPy, JAX and numba-cuda compute, as digests: the same bare and under LD_PRELOAD.

    frameworks_check.py cupy|jax|numba

Matrix products are of small whole numbers, exact in any order of summation, so that a library's
choice of algorithm cannot change a digest. Prints one line of JSON; exit 77: not installed here.
"""
import hashlib
import json
import sys

MIB = 1 << 20
GIB = 1 << 30
result = {"digests": {}, "checks": {}, "counts": {}, "times": {}, "errors": {}}


def digest(name, array):
    result["digests"][name] = hashlib.sha256(array.tobytes()).hexdigest()[:16]


def check(name, holds):
    result["checks"][name] = bool(holds)


def run_cupy():
    import cupy as cp

    pool = cp.get_default_memory_pool()
    small = (cp.arange(2048 * 2048, dtype=cp.int64) % 7).astype(cp.float32).reshape(2048, 2048)
    digest("matmul", cp.asnumpy(small @ (small.T + 1)))
    x = cp.linspace(0, 100, MIB + 3, dtype=cp.float32)
    digest("elementwise", cp.asnumpy(cp.sqrt(x) * 2 + cp.sin(x)))
    digest("sort", cp.asnumpy(cp.sort(cp.arange(MIB + 1, dtype=cp.int64)[::-1] * 7919 % 1_000_003)))

    large = cp.zeros(5 * GIB // 2, dtype=cp.uint8)
    check("a block of 2.5 GiB is zero", int(large.sum(dtype=cp.int64)) == 0)
    large[GIB : GIB + 1000] = 9
    check("a partial write lands", int(large.sum(dtype=cp.int64)) == 9000)
    large.fill(0)
    check("fill(0)", int(large.sum(dtype=cp.int64)) == 0)

    scale = cp.RawKernel(
        r"""extern "C" __global__ void scale(const float* in, float* out, int count) {
              const int i = blockIdx.x * blockDim.x + threadIdx.x;
              if (i < count) out[i] = in[i] * 3.0f + 1.0f;
            }""", "scale")
    out = cp.empty_like(x)
    scale(((x.size + 255) // 256,), (256,), (x, out, cp.int32(x.size)))
    digest("RawKernel", cp.asnumpy(out))

    del small, x, large, out
    pool.free_all_blocks()
    check("the pool gives the large blocks back", pool.total_bytes() < 64 * MIB)
    with cp.cuda.using_allocator(cp.cuda.MemoryAsyncPool().malloc):
        digest("stream-ordered pool", cp.asnumpy(cp.arange(MIB, dtype=cp.int32) * 3))
    with cp.cuda.using_allocator(cp.cuda.malloc_managed):
        digest("its own managed memory", cp.asnumpy(cp.arange(MIB, dtype=cp.int32) * 5))


def run_jax():
    import jax
    import jax.numpy as jnp
    import numpy as np

    check("on the GPU", jax.devices()[0].platform in ("gpu", "cuda"))
    small = (jnp.arange(2048 * 2048, dtype=jnp.int32) % 7).astype(jnp.float32).reshape(2048, 2048)
    product = jax.jit(lambda a, b: jnp.dot(a, b + 1, precision="highest"))
    digest("matmul", np.asarray(product(small, small.T)))
    x = jnp.linspace(0, 100, MIB + 3, dtype=jnp.float32)
    digest("elementwise", np.asarray(jax.jit(lambda v: jnp.sqrt(v) * 2 + jnp.sin(v))(x)))
    digest("random", np.asarray(jax.random.normal(jax.random.PRNGKey(3), (MIB,))))

    large = jnp.zeros((300, MIB), dtype=jnp.int32)  # 1.2 GiB
    large = jax.jit(lambda v: v.at[7, ::3].add(2), donate_argnums=0)(large)
    check("a large array", int(jnp.sum(large)) == 2 * ((MIB + 2) // 3))
    digest("a row of it", np.asarray(large[7]))


def run_numba():
    import numpy as np

    if not hasattr(np, "row_stack"):  # NumPy 2.5 dropped it, numba-cuda still names it
        np.row_stack = np.vstack
    from numba import cuda

    @cuda.jit
    def saxpy(a, x, y, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a * x[i] + y[i]

    @cuda.jit
    def fill(out, value):
        step = cuda.gridsize(1)
        for i in range(cuda.grid(1), out.size, step):
            out[i] = value

    x = np.linspace(0, 100, MIB + 3).astype(np.float32)
    y = x[::-1].copy()
    out = cuda.device_array_like(x)
    saxpy[(x.size + 255) // 256, 256](np.float32(2.5), cuda.to_device(x), cuda.to_device(y), out)
    digest("saxpy", out.copy_to_host())

    large = cuda.device_array(GIB + 4096, dtype=np.uint8)
    fill[1024, 256](large, np.uint8(6))
    ends = np.concatenate([large[:4096].copy_to_host(), large[-4096:].copy_to_host()])
    check("a block over 1 GiB", bool((ends == 6).all()))
    stream = cuda.stream()
    pinned = cuda.pinned_array(MIB, dtype=np.int32)
    pinned[:] = np.arange(MIB, dtype=np.int32)
    back = cuda.to_device(pinned, stream=stream).copy_to_host(stream=stream)
    stream.synchronize()
    digest("a stream and pinned memory", back)


def main():
    try:
        {"cupy": run_cupy, "jax": run_jax, "numba": run_numba}[sys.argv[1]]()
    except ImportError as error:
        print(f"not here: {error}", file=sys.stderr)
        sys.exit(77)
    except Exception as error:
        import traceback

        traceback.print_exc()
        result["errors"][sys.argv[1]] = f"{type(error).__name__}: {str(error)[:200]}"
    print(json.dumps(result))


if __name__ == "__main__":
    main()
