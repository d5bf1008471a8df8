"""What PyTorch is told of the GPU's memory, and that it can plan by it.

    python meminfo_check.py                                        bare
    KVSHIM_MEMINFO=virtual KVSHIM_NVML=1 KVSHIM_THRESHOLD=256MiB KVSHIM_SPILL_LIMIT=4GiB \\
        LD_PRELOAD=.../libkvshim.so python meminfo_check.py        preloaded

Prints one line of JSON: figures in MiB, and checks that must all be true. Uses about 3 GiB of the GPU,
and of the host at most what KVSHIM_SPILL_LIMIT allows; nothing that could fill a shared GPU. Other
programs on the GPU disturb the figures. Exit 1: a check failed. Exit 77: no PyTorch or GPU here.
"""
import ctypes
import json
import os
import subprocess
import sys

try:
    import torch
except ImportError as error:
    print(f"no PyTorch here: {error}", file=sys.stderr)
    sys.exit(77)
if not torch.cuda.is_available():
    print("no GPU here", file=sys.stderr)
    sys.exit(77)

MIB = 1 << 20
NOISE = 64 * MIB  # the driver's own pools move the numbers too
figures, checks = {}, {}
preloaded = "kvshim" in os.environ.get("LD_PRELOAD", "")
virtual = preloaded and os.environ.get("KVSHIM_MEMINFO") == "virtual"


def mem(name=None):
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    if name:
        figures[name] = {"free": free // MIB, "total": total // MIB}
    checks["free <= total"] = checks.get("free <= total", True) and 0 <= free <= total
    checks["total never changes"] = checks.get("total never changes", True) and total == first_total
    return free


def close(fall, wanted):
    return abs(fall - wanted) <= NOISE


def nvml():
    """free, total by ctypes, as pynvml asks; None where there is none."""
    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                    ("used", ctypes.c_ulonglong)]

    class Memory2(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint), ("total", ctypes.c_ulonglong),
                    ("reserved", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                    ("used", ctypes.c_ulonglong)]
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device = ctypes.c_void_p()
    if library.nvmlInit_v2() != 0 or library.nvmlDeviceGetHandleByPciBusId_v2(
            bus_id, ctypes.byref(device)) != 0:
        return None
    first, second = Memory(), Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
    if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(first)) != 0:
        return None
    if library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(second)) == 0:
        checks["NVML's versions agree on total"] = first.total == second.total
        checks["NVML's parts make up total"] = (
            second.free + second.used + second.reserved == second.total
            and first.free + first.used == first.total)
    return first.free, first.total


torch.cuda.init()
bus_text = ctypes.create_string_buffer(32)
ctypes.CDLL("libcuda.so.1").cuDeviceGetPCIBusId(bus_text, 32, 0)
bus_id = bus_text.value
torch.empty(1, device="cuda")
torch.cuda.synchronize()
_, first_total = torch.cuda.mem_get_info()
start = mem("start")
properties = torch.cuda.get_device_properties(0)
figures["properties"] = properties.total_memory // MIB
checks["mem_get_info and the properties name one total"] = properties.total_memory == first_total
real_total = None
try:  # nvidia-smi is another process and knows nothing of CUDA: the device's own truth
    answer = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "--id=" + bus_id.decode()],
        capture_output=True, text=True, check=True, timeout=60).stdout
    real_total = int(answer.split()[0]) * MIB
    figures["nvidia-smi"] = real_total // MIB
except (OSError, subprocess.SubprocessError, ValueError, IndexError):
    pass
if virtual and real_total:
    checks["virtual: total is more than the device has"] = first_total > real_total
elif real_total:
    checks["real: total is not more than the device has"] = first_total <= real_total

# Blocks of the device's own kind: 40 MiB each, past torch's cache of small ones.
blocks = [torch.empty(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(25)]
checks["free falls by 25 blocks of 40 MiB"] = close(start - mem("1000 MiB"), 1000 * MIB)
blocks = None
torch.cuda.empty_cache()
checks["and returns"] = close(start - mem(), 0)

# A block over the threshold: 1 GiB. Not touched by the GPU, or its pages would count twice.
before = mem()
large = torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
fall = before - mem("a block of 1 GiB")
figures["fall by 1 GiB"] = fall // MIB
if virtual or not preloaded:
    checks["free falls by a block of 1 GiB"] = close(fall, 1024 * MIB)
answer = nvml()
if answer:
    figures["nvml"] = {"free": answer[0] // MIB, "total": answer[1] // MIB}
    told = virtual and os.environ.get("KVSHIM_NVML") == "1"
    wanted = first_total if told else real_total
    if wanted:
        # NVML counts what the driver keeps; CUDA does not.
        checks["NVML names the total that it should"] = abs(answer[1] - wanted) < 2048 * MIB
large = None
torch.cuda.empty_cache()
checks["and returns after the large block"] = close(before - mem(), 0)

# A fraction of total, as engines plan: torch refuses beyond it and works below it.
fraction = (torch.cuda.memory_reserved() + 300 * MIB) / first_total
torch.cuda.set_per_process_memory_fraction(fraction)
try:
    torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
    checks["a fraction of total binds"] = False
except torch.cuda.OutOfMemoryError:
    checks["a fraction of total binds"] = True
torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
torch.cuda.set_per_process_memory_fraction(1.0)
torch.cuda.empty_cache()

# More than there is of both, by far: an error that a program survives.
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    checks["2^50 bytes are refused"] = False
except torch.cuda.OutOfMemoryError:
    checks["2^50 bytes are refused"] = True
x = torch.randn(1024, 1024, device="cuda")
checks["life goes on"] = bool(torch.isfinite(x @ x).all())
x = None
torch.cuda.empty_cache()
mem("end")

print(json.dumps({"preloaded": preloaded, "virtual": virtual, "figures": figures, "checks": checks}))
sys.exit(0 if all(checks.values()) else 1)
