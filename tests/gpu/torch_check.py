"""What PyTorch computes, as digests: the same bare and under LD_PRELOAD, or something is wrong.

    torch_check.py main   matmul, attention over a large KV tensor, large blocks, graphs, copies, ...
    torch_check.py oom    out of memory and what torch does about it; takes all memory of the GPU,
                          so only with KVSHIM_THRESHOLD=never when preloaded

Prints one line of JSON. "digests" must agree between runs, "checks" must all be true, "counts" may
differ a little, "times" are for the reader. Exit 77: no PyTorch here.
"""
import hashlib
import json
import sys
import threading
import time

try:
    import torch
except ImportError as error:
    print(f"no PyTorch here: {error}", file=sys.stderr)
    sys.exit(77)

MIB = 1 << 20
GIB = 1 << 30
result = {"digests": {}, "checks": {}, "counts": {}, "times": {}, "errors": {}}


def digest(name, tensor):
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
    result["digests"][name] = hashlib.sha256(data).hexdigest()[:16]


def check(name, holds):
    result["checks"][name] = bool(holds)


def timed(name, body, repeats=20):
    """The median of milliseconds, by events, after half a second that warms the clocks."""
    begun = time.monotonic()
    while time.monotonic() - begun < 0.5:
        body()
        torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begun = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True)
        begun.record()
        body()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended))
    result["times"][name] = round(sorted(times)[len(times) // 2], 4)


def matmul():
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        torch.manual_seed(1)
        a = torch.randn(4096, 4096, device="cuda", dtype=dtype)
        b = torch.randn(4096, 4096, device="cuda", dtype=dtype)
        digest(f"matmul {name}", a @ b)
        timed(f"matmul {name} 4096, ms", lambda: a @ b)


def attention():
    """One KV tensor of 2 GiB: over a threshold of 1 GiB."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(2)
    kv = torch.randn(2, 8, 16, 32768, 128, device="cuda", dtype=torch.bfloat16)
    query = torch.randn(8, 16, 128, 128, device="cuda", dtype=torch.bfloat16)
    attend = torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        digest("flash attention", attend(query, kv[0], kv[1]))
        timed("flash attention over 2 GiB, ms", lambda: attend(query, kv[0], kv[1]))


def large_blocks():
    count = 3 * GIB
    x = torch.zeros(count, device="cuda", dtype=torch.uint8)

    def total():
        return x.sum(dtype=torch.int64).item()

    check("zeros(3 GiB) is zero", total() == 0)
    x[123_456_789:123_999_999] = 7
    check("a partial write lands", total() == 7 * (123_999_999 - 123_456_789))
    x.fill_(5)
    check("fill_", total() == 5 * count)
    # A kernel before and one behind: the memset must keep its place in the stream.
    x.fill_(9)
    x.zero_()
    x.add_(1)
    check("zero_ between two kernels", total() == count)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)
        x[:GIB].zero_()
        x[:GIB].add_(4)
    torch.cuda.current_stream().wait_stream(side)
    check("zero_ of a part on a second stream", total() == 4 * GIB + 2 * (count - GIB))
    digest("large block, a slice", x[GIB - 1000 : GIB + 1000])
    del x
    y = torch.empty(3 * GIB // 4 + 5, device="cuda", dtype=torch.float32)
    y.fill_(0.25)
    y[1::1_000_003] = 3.0
    digest("large block, float32", y[:: 65_537])


def graphs():
    torch.manual_seed(3)
    weight = torch.randn(1024, 1024, device="cuda")
    x = torch.randn(1024, 1024, device="cuda")
    large = torch.zeros(5 * GIB // 4, device="cuda", dtype=torch.uint8)

    def step():
        pool = torch.zeros(5 * GIB // 4, device="cuda", dtype=torch.uint8)  # from the graph's pool
        pool.add_(3)
        large.add_(1)
        return torch.relu(x @ weight) + 1, pool.sum(dtype=torch.int64)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    large.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, total = step()
    for seed in (4, 5):
        torch.manual_seed(seed)
        x.copy_(torch.randn(1024, 1024, device="cuda"))
        graph.replay()
        digest(f"graph replay {seed}", out)
        check(f"memory of the graph's pool, replay {seed}", total.item() == 3 * (5 * GIB // 4))
    check("large block over two replays", bool((large[:: MIB + 1] == 2).all().item()))


def copies():
    same = True
    for size in (1, 3, 511, 513, 4097, 65_535, 1_000_003, 2 * MIB + 1, 20 * MIB + 7, 33 * MIB):
        host = (torch.arange(size, dtype=torch.int64) % 251).to(torch.uint8)
        same &= torch.equal(host.to("cuda").cpu(), host)
        pinned = host.pin_memory()
        there = pinned.to("cuda", non_blocking=True)
        back = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        back.copy_(there, non_blocking=True)
        torch.cuda.synchronize()
        same &= torch.equal(back, host)
    check("copies of odd sizes, pageable and pinned", same)


def streams():
    torch.manual_seed(6)
    a = torch.randn(2048, 2048, device="cuda")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    current = torch.cuda.current_stream()
    first.wait_stream(current)
    with torch.cuda.stream(first):
        b = a @ a
        done = torch.cuda.Event()
        done.record()
    with torch.cuda.stream(second):
        second.wait_event(done)
        c = b.add(1).tanh()
        b.record_stream(second)
    current.wait_stream(second)
    digest("two streams and an event", c)


def threads():
    totals = [None] * 8

    def work(index):
        total = 0
        for turn in range(100):
            size = (index + 1) * 4099 * (turn % 13 + 1)
            tensor = torch.full((size,), index + turn, device="cuda", dtype=torch.int32)
            total += tensor.sum(dtype=torch.int64).item() // size
            if turn % 10 == 0:
                torch.cuda.empty_cache()
        totals[index] = total

    workers = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wanted = [sum(index + turn for turn in range(100)) for index in range(8)]
    check("eight threads that allocate, compute and free", totals == wanted)


def release():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    block = torch.zeros(5 * GIB // 4, device="cuda", dtype=torch.uint8)
    grown = torch.cuda.memory_reserved() - before
    del block
    torch.cuda.empty_cache()
    check("del and empty_cache give a large block back",
          grown >= 5 * GIB // 4 and torch.cuda.memory_reserved() == before)


def memory_info():
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    before, _ = torch.cuda.mem_get_info()
    block = torch.empty(512 * MIB, device="cuda", dtype=torch.uint8)
    during, _ = torch.cuda.mem_get_info()
    del block
    torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info()
    check("mem_get_info sees 512 MiB taken", abs(before - during - 512 * MIB) <= 4 * MIB)
    check("mem_get_info sees them come back", abs(before - after) <= 4 * MIB)


def retry():
    """Torch holds half of the memory in its cache and asks for more than is left: the driver's
    code 2 makes it free the cache and ask again."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    blocks = [torch.empty(GIB, device="cuda", dtype=torch.uint8) for _ in range(free // GIB - 3)]
    cached = len(blocks) // 2
    del blocks[-cached:]
    before = torch.cuda.memory_stats()["num_alloc_retries"]
    large = torch.empty((cached - 2) * GIB, device="cuda", dtype=torch.uint8)
    check("out of memory, cache freed, second try succeeds",
          torch.cuda.memory_stats()["num_alloc_retries"] > before)
    large.fill_(3)
    check("the block of the second try works", bool((large[:: 16 * MIB + 1] == 3).all().item()))


def exhaustion():
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    blocks = []
    raised = False
    try:
        while len(blocks) < 4096:
            blocks.append(torch.empty(GIB, device="cuda", dtype=torch.uint8))
    except torch.OutOfMemoryError:
        raised = True
    check("OutOfMemoryError is raised", raised)
    result["counts"]["blocks of 1 GiB until out of memory"] = len(blocks)
    del blocks
    torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info()
    check("everything comes back", abs(free - after) <= 64 * MIB)
    torch.manual_seed(7)
    a = torch.randn(2048, 2048, device="cuda")
    digest("matmul after out of memory", a @ a)


PARTS = {
    "main": [matmul, attention, large_blocks, graphs, copies, streams, threads, release],
    "oom": [memory_info, retry, exhaustion],
}


def main():
    for part in PARTS[sys.argv[1]]:
        begun = time.perf_counter()
        try:
            part()
            torch.cuda.synchronize()
        except Exception as error:  # the next part may still have something to say
            result["errors"][part.__name__] = f"{type(error).__name__}: {str(error)[:200]}"
        torch.cuda.empty_cache()
        result["times"][f"{part.__name__}, s"] = round(time.perf_counter() - begun, 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
