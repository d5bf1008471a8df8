"""kvshim as an allocator by name: PyTorch's pluggable allocator, a MemPool, wrapped blocks.

    pluggable_check.py /path/to/libkvshim.so pool|all|torch|cupy

Run with KVSHIM_THRESHOLD=256MiB, bare (the library is only opened here) and with the library in
LD_PRELOAD as well. Takes about 1.5 GiB. Prints one line of JSON; exit 1: a check failed; 77: the
framework is not installed here.

    pool   CUDAPluggableAllocator in a torch.cuda.MemPool
    all    CUDAPluggableAllocator as torch's only allocator
    torch  a block of kvshim_malloc wrapped by __cuda_array_interface__ in torch
    cupy   the same in CuPy
"""
import ctypes
import json
import os
import sys

MIB = 1 << 20
path, what = os.path.abspath(sys.argv[1]), sys.argv[2]
result = {"checks": {}, "preloaded": "libkvshim" in os.environ.get("LD_PRELOAD", "")}

MANAGED_ATTRIBUTE = 8  # CU_POINTER_ATTRIBUTE_IS_MANAGED


def check(name, holds):
    result["checks"][name] = bool(holds)


def is_managed(pointer):
    answer = ctypes.c_uint(0)
    code = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute(
        ctypes.byref(answer), MANAGED_ATTRIBUTE, ctypes.c_uint64(pointer))
    return code == 0 and answer.value != 0


def is_vmm(pointer):
    """Only VMM memory has a handle behind its address."""
    driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(0)
    if driver.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(pointer)) != 0:
        return False
    return driver.cuMemRelease(handle) == 0


def library():
    lib = ctypes.CDLL(path)
    lib.kvshim_malloc.restype = ctypes.c_void_p
    lib.kvshim_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    lib.kvshim_free.restype = None
    lib.kvshim_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    return lib


class Block:
    """Floats from kvshim_malloc, as any library with __cuda_array_interface__ takes them."""
    freed = 0

    def __init__(self, lib, count, device=0):
        self.lib, self.bytes, self.device = lib, 4 * count, device
        self.ptr = lib.kvshim_malloc(self.bytes, device, None)
        if not self.ptr:
            raise MemoryError("kvshim_malloc; the reason is in its log")
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "<f4", "data": (self.ptr, False), "version": 3}

    def __del__(self):
        if getattr(self, "ptr", None):
            self.lib.kvshim_free(self.ptr, self.bytes, self.device, None)
            Block.freed += 1


def torch_allocator(torch):
    return torch.cuda.memory.CUDAPluggableAllocator(path, "kvshim_malloc", "kvshim_free")


def work(torch, where):
    """A matrix product of whole numbers and a large tensor, with results that are known."""
    a = (torch.arange(1024 * 1024, device="cuda") % 7).float().reshape(1024, 1024)
    want = (a.cpu().double() @ a.cpu().double().T)
    check(f"{where}: matmul", torch.equal((a @ a.T).cpu().double(), want))
    large = torch.zeros(512 * MIB, device="cuda", dtype=torch.uint8)
    check(f"{where}: a large tensor is zero", large.sum(dtype=torch.int64).item() == 0)
    large[MIB:2 * MIB] = 3
    check(f"{where}: a write lands", large.sum(dtype=torch.int64).item() == 3 * MIB)
    return a, large


def run_pool():
    import torch

    # What torch, cuBLAS and the graph machinery take for good comes first.
    before = torch.ones(1024, device="cuda")
    warm, square = torch.cuda.CUDAGraph(), torch.ones(1024, 1024, device="cuda")
    square = square @ square
    with torch.cuda.graph(warm):
        square + 1
    del warm, square
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free_before = torch.cuda.mem_get_info()[0]
    pool = torch.cuda.MemPool(torch_allocator(torch).allocator())
    with torch.cuda.use_mem_pool(pool):
        a, large = work(torch, "pool")
        check("pool: a large tensor is managed", is_managed(large.data_ptr()))
        check("pool: a small one is vmm", is_vmm(a.data_ptr()))
    outside = torch.ones(64 * MIB, device="cuda", dtype=torch.uint8)
    if not result["preloaded"]:
        check("pool: outside of it memory is native", not is_vmm(outside.data_ptr()))
    graph, x = torch.cuda.CUDAGraph(), torch.ones(MIB, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 2 + a.reshape(-1)
    graph.replay()
    torch.cuda.synchronize()
    check("pool: a graph reads its memory", torch.equal(y, 2 + a.reshape(-1)))
    refused = False
    try:
        with torch.cuda.use_mem_pool(pool):
            torch.empty(1 << 50, device="cuda", dtype=torch.uint8)
    except torch.cuda.OutOfMemoryError:
        refused = True
    check("pool: too much is torch's own out of memory", refused)
    del a, large, outside, y, x, graph, pool
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    missing = free_before - torch.cuda.mem_get_info()[0]
    print(f"pool: {missing // MIB} MiB less free than before", file=sys.stderr)
    check("pool: the memory comes back", missing < 64 * MIB)
    check("pool: other tensors are untouched", before.sum().item() == 1024)


def run_all():
    import torch

    torch.cuda.memory.change_current_allocator(torch_allocator(torch))
    a, large = work(torch, "all")
    check("all: a large tensor is managed", is_managed(large.data_ptr()))
    check("all: a small one is vmm", is_vmm(a.data_ptr()))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        total = torch.zeros((), device="cuda", dtype=torch.float64)
        for step in range(200):
            total += torch.full((300_000 + step,), 1.0, device="cuda").sum()
    stream.synchronize()
    check("all: blocks that come and go in a stream", total.item() == 200 * 300_000 + 199 * 100)
    empty = torch.empty(0, device="cuda")
    check("all: an empty tensor", empty.numel() == 0)


def run_torch():
    import torch

    lib = library()
    for count, kind in ((MIB, is_vmm), (128 * MIB, is_managed)):
        x = torch.as_tensor(Block(lib, count), device="cuda")
        check(f"torch: {count} floats, the kind", kind(x.data_ptr()))
        x.fill_(1.5)
        x[7] = 2.5
        check(f"torch: {count} floats, results", x.sum(dtype=torch.float64).item() == 1.5 * count + 1)
        y = x.cpu()
        check(f"torch: {count} floats, a copy", y[7].item() == 2.5 and y[-1].item() == 1.5)
        del x
    check("torch: blocks are freed with their tensors", Block.freed == 2)


def run_cupy():
    import cupy

    lib = library()
    for count, kind in ((MIB, is_vmm), (128 * MIB, is_managed)):
        x = cupy.asarray(Block(lib, count))
        check(f"cupy: {count} floats, the kind", kind(x.data.ptr))
        x.fill(1.5)
        x[7] = 2.5
        check(f"cupy: {count} floats, results", float(x.sum(dtype=cupy.float64)) == 1.5 * count + 1)
        check(f"cupy: {count} floats, a copy", float(cupy.asnumpy(x[6:9]).sum()) == 5.5)
        del x
    check("cupy: blocks are freed with their arrays", Block.freed == 2)


def main():
    try:
        {"pool": run_pool, "all": run_all, "torch": run_torch, "cupy": run_cupy}[what]()
    except ImportError as error:
        print(f"not here: {error}", file=sys.stderr)
        sys.exit(77)
    print(json.dumps(result))
    failed = [name for name, holds in result["checks"].items() if not holds]
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    sys.stdout.flush()
    sys.exit(1 if failed or not result["checks"] else 0)


if __name__ == "__main__":
    main()
