"""Two processes that want host memory from one machine at the same moment.

    budget_check.py LIBRARY [KIND]       KIND: what KVSHIM_LARGE says, managed (default) or host

KVSHIM_HOST_RESERVE leaves 6 GiB of what the machine has; both processes ask for 4 GiB at once. One may
have them, the other gets 2 (out of memory) and lives; once the first has freed its block, the second gets
4 GiB too. Prints one line of JSON with checks that must all be true and the seconds it took. Standard
library only. Exit 1: a check failed; 77: no GPU here, or less than 16 GiB of host or GPU memory free.
"""
import ctypes
import json
import os
import subprocess
import sys
import time

GIB = 1 << 30


def process():
    """Reads orders, one a line, and answers each with one line."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    context, block, device = ctypes.c_void_p(), ctypes.c_uint64(0), ctypes.c_int()
    if (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
            or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            or driver.cuCtxSetCurrent(context)):
        print("none", flush=True)
        return 77
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    print(free.value, flush=True)
    for line in sys.stdin:
        order, _, size = line.partition(" ")
        if order.strip() == "free":
            answer = driver.cuMemFree_v2(block)
            block.value = 0
        else:
            answer = driver.cuMemAlloc_v2(ctypes.byref(block), int(size))
        print(answer, flush=True)
    return 0


class Child:
    def __init__(self, library, settings):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "process"], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "LD_PRELOAD": library, **settings})

    def ask(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def answer(self):
        said = self.process.stdout.readline().strip()
        return int(said) if said.isdigit() else None

    def do(self, order):
        self.ask(order)
        return self.answer()


def available():
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def main():
    library, kind = os.path.abspath(sys.argv[1]), (sys.argv[2:] or ["managed"])[0]
    if available() < 16 * GIB:
        print("less than 16 GiB of host memory", file=sys.stderr)
        return 77
    # Their contexts first, with what those take of the host.
    idle = [Child(library, {"KVSHIM_THRESHOLD": "never"}) for _ in range(2)]
    free = [child.answer() for child in idle]
    if None in free or min(free) < 16 * GIB:
        print(f"no GPU, or not 16 GiB of its memory free: {free}", file=sys.stderr)
        return 77
    reserve = available() - 6 * GIB
    for child in idle:
        child.process.stdin.close()
        child.process.wait()
    children = [Child(library, {"KVSHIM_THRESHOLD": "1GiB", "KVSHIM_LARGE": kind,
                                "KVSHIM_HOST_RESERVE": str(reserve)}) for _ in range(2)]
    for child in children:
        child.answer()
    checks = {}
    begun = time.monotonic()
    for child in children:
        child.ask(f"alloc {4 * GIB}")
    codes = [child.answer() for child in children]
    seconds = round(time.monotonic() - begun, 2)
    checks["one of two gets 4 GiB where there are 6"] = sorted(map(str, codes)) == ["0", "2"]
    if checks["one of two gets 4 GiB where there are 6"]:
        winner, loser = sorted(children, key=lambda child: codes[children.index(child)])
        checks["the other one is refused still"] = loser.do(f"alloc {4 * GIB}") == 2
        checks["a block under the threshold it gets"] = loser.do(f"alloc {64 << 20}") == 0
        loser.do("free")
        checks["2^50 bytes are refused"] = loser.do(f"alloc {1 << 50}") == 2
        checks["the first one frees"] = winner.do("free") == 0
        checks["then the other one gets 4 GiB"] = loser.do(f"alloc {4 * GIB}") == 0
        checks["and frees them"] = loser.do("free") == 0
    for child in children:
        child.process.stdin.close()
        checks["both live to their end"] = child.process.wait() == 0 and checks.get("both live to their end", True)
    print(json.dumps({"kind": kind, "codes": codes, "seconds": seconds, "checks": checks}))
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(process() if sys.argv[1:] == ["process"] else main())
