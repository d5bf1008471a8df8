"""What several processes and GPUs do with PyTorch: the same bare and under LD_PRELOAD.

    multi_check.py share A B     tensors shared by torch.multiprocessing in both directions, the parent
                                 on device A, the child on device B; copies between the two
    multi_check.py nccl          two processes, one GPU each: all-reduce, all-gather, send and receive,
                                 of buffers of 4 KiB to 1 GiB, and how fast

Prints one line of JSON as torch_check.py does. Exit 77: no PyTorch or too few GPUs here.
"""
import json
import os
import sys
import time

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError as error:
    print(f"no PyTorch here: {error}", file=sys.stderr)
    sys.exit(77)

MIB = 1 << 20
result = {"digests": {}, "checks": {}, "errors": {}, "rates": {}}


def digest(tensor):
    """A weighted sum modulo 2**64 of its 32-bit words, by pieces on the GPU: a GiB takes no second."""
    words = tensor.detach().contiguous().reshape(-1).view(torch.int32)
    total = 0
    for begin in range(0, words.numel(), 16 * MIB):
        part = words[begin : begin + 16 * MIB].to(torch.int64)
        weights = torch.arange(begin + 1, begin + 1 + part.numel(), device=part.device) % 1000003
        total += int((part * weights).sum())
    return f"{total % 2**64:016x}"


def numbers(count, seed, device):
    """Whole numbers: sums are exact, whoever adds them in whatever order."""
    return (torch.arange(count, device=device, dtype=torch.float32) * (seed + 3) + seed) % 4099


# A small tensor, one in a block that others share, one with a block of its own, a view in a block.
SHAPES = {"400 B": 100, "1 MiB": MIB // 4, "4 MiB": MIB, "128 MiB": 32 * MIB}


def child(device, inbox, outbox):
    torch.cuda.set_device(device)
    for count in SHAPES.values():
        shared = inbox.get()
        shared.add_(1)  # the parent must see it
        torch.cuda.synchronize()
        outbox.put(digest(shared))
        del shared
    view = inbox.get()
    outbox.put(digest(view))
    del view
    mine = [numbers(count, 5, f"cuda:{device}") for count in SHAPES.values()]
    torch.cuda.synchronize()
    for tensor in mine:
        outbox.put(tensor)
    inbox.get()  # the parent is done
    outbox.put([digest(tensor) for tensor in mine])
    inbox.get()


def share(here, there):
    mp.set_start_method("spawn")
    to, back = mp.Queue(), mp.Queue()
    process = mp.Process(target=child, args=(there, to, back))
    process.start()
    torch.cuda.set_device(here)
    for name, count in SHAPES.items():
        tensor = numbers(count, 1, f"cuda:{here}")
        before = digest(tensor + 1)
        torch.cuda.synchronize()
        to.put(tensor)
        seen = back.get(timeout=60)
        result["digests"][f"{name} to the child"] = seen
        result["checks"][f"{name}: the child saw it and its change came back"] = (
            seen == before == digest(tensor))
    whole = numbers(8 * MIB, 2, f"cuda:{here}")
    view = whole[MIB + 3 : 2 * MIB]
    torch.cuda.synchronize()
    to.put(view)
    result["checks"]["a view inside a block"] = back.get(timeout=60) == digest(view)
    theirs = [back.get(timeout=60) for _ in SHAPES]
    for tensor in theirs:
        tensor.mul_(2)
    torch.cuda.synchronize()
    wanted = [digest(tensor) for tensor in theirs]
    del tensor, theirs
    to.put("done")
    result["checks"]["tensors of the child"] = back.get(timeout=60) == wanted
    to.put("end")
    process.join(60)
    result["checks"]["the child ended well"] = process.exitcode == 0
    if torch.cuda.device_count() > 1:
        for name, count in SHAPES.items():
            tensor = numbers(count, 7, "cuda:0")
            away = tensor.to("cuda:1")
            away.add_(1)
            result["checks"][f"{name}: x.to and back"] = bool(
                (away.to("cuda:0") == tensor + 1).all())
            result["digests"][f"{name} on the other device"] = digest(away)
            # Copies between views, and of a strided one.
            away[: count // 2].copy_(tensor[count // 2 : count // 2 * 2])
            away[::2].copy_(tensor[::2])
            result["digests"][f"{name}, views"] = digest(away)


def rank(index, port, rates, digests):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(index), WORLD_SIZE="2")
    torch.cuda.set_device(index)
    device = torch.device("cuda", index)
    dist.init_process_group("nccl", rank=index, world_size=2, device_id=device)
    found = {}
    speeds = {}
    for name, count in (("4 KiB", 1024), ("4 MiB", MIB), ("256 MiB", 64 * MIB), ("1 GiB", 256 * MIB)):
        # As cudaMalloc of its own, not from the space that PyTorch has left over.
        torch.cuda.empty_cache()
        data = numbers(count, index, device)
        dist.all_reduce(data)
        found[f"all_reduce {name}"] = digest(data)
        data = numbers(count, index, device)
        gathered = torch.empty(2 * count, device=device)
        dist.all_gather_into_tensor(gathered, data)
        found[f"all_gather {name}"] = digest(gathered)
        got = torch.empty(count, device=device)
        if index == 0:
            dist.send(data, 1)
            dist.recv(got, 1)
        else:
            dist.recv(got, 0)
            dist.send(data, 0)
        found[f"send and recv {name}"] = digest(got)
        del got
        if count < 64 * MIB:
            continue
        for what, body, moved in (
                ("all_reduce", lambda: dist.all_reduce(data), 4 * count),
                ("all_gather", lambda: dist.all_gather_into_tensor(gathered, data), 4 * count)):
            for _ in range(10):
                data.fill_(1)
                body()
            times = []
            for _ in range(30):
                begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begun.record()
                body()
                ended.record()
                ended.synchronize()
                times.append(begun.elapsed_time(ended))
            speeds[f"{what} {name}"] = moved / sorted(times)[len(times) // 2] / 1e6
        del data, gathered
    digests[index] = found
    rates[index] = speeds
    dist.destroy_process_group()


def nccl():
    if torch.cuda.device_count() < 2:
        print("NCCL between two processes needs two GPUs", file=sys.stderr)
        sys.exit(77)
    mp.set_start_method("spawn")
    with mp.Manager() as manager:
        rates, digests = manager.dict(), manager.dict()
        mp.spawn(rank, (20000 + os.getpid() % 20000, rates, digests), nprocs=2)
        for index in range(2):
            for what, value in digests[index].items():
                result["digests"][f"{what}, rank {index}"] = value
        result["checks"]["both ranks reduced to the same"] = all(
            digests[0][what] == digests[1][what] for what in digests[0] if "reduce" in what)
        result["rates"] = {what: round(rates[0][what], 2) for what in rates[0]}


if __name__ == "__main__":
    begun = time.time()
    try:
        if sys.argv[1] == "share":
            share(int(sys.argv[2]), int(sys.argv[3]))
        else:
            nccl()
    except Exception as error:  # said in the result, beside what went well
        result["errors"][sys.argv[1]] = f"{type(error).__name__}: {error}"[:300]
    result["seconds"] = round(time.time() - begun, 1)
    print(json.dumps(result))
