"""Judges what scripts/gpu-check.sh has run: one function for each step, bare beside preloaded.

    compare.py STEP FOLDER REPORT

FOLDER has NAME.out, NAME.err and NAME.rc of every run; a Markdown table is appended to REPORT, and
lines that begin with PASS, FAIL or SKIP go to standard output. Standard library only.
"""
import json
import re
import sys
from pathlib import Path
from statistics import median

FOLDER = Path(sys.argv[2])
REPORT = Path(sys.argv[3])
STEP = sys.argv[1]
WITHIN = 0.01  # of native speed

# GB/s at which a CPU with 16 cores placed 4 GiB of managed memory beside an H200, by threads.
PLACED = {1: 2.85, 4: 6.3, 16: 14.5}


class Run:
    def __init__(self, name):
        self.name = name
        self.there = (FOLDER / f"{name}.rc").exists()
        self.rc = int((FOLDER / f"{name}.rc").read_text()) if self.there else None
        self.out = self.read("out")
        self.err = self.read("err")
        lines = [line for line in self.out.splitlines() if line.startswith("{")]
        try:
            self.json = json.loads(lines[-1]) if lines and self.rc == 0 else None
        except ValueError:
            self.json = None

    def read(self, ending):
        path = FOLDER / f"{self.name}.{ending}"
        return path.read_text(errors="replace") if path.exists() else ""

    def why(self):
        if self.rc == 124 or self.rc == 137:
            return "it ran past its time"
        last = [line for line in self.err.splitlines() + self.out.splitlines() if line.strip()]
        return f"exit code {self.rc}: {last[-1][:160] if last else 'it said nothing'}"

    def kinds(self):
        """{kind: (blocks, live, ...)} of kvshim's account at exit."""
        rows = re.findall(r"^  (managed|host|vmm|native) +(\d+) +(\d+) +(.+)$", self.err, re.M)
        return {kind: (int(blocks), int(live), " ".join(rest.split()))
                for kind, blocks, live, rest in rows}


def say(word, text):
    print(f"{word} {STEP}: {text}")


def verdict(holds, text):
    say("PASS" if holds else "FAIL", text)
    return holds


def table(head, rows):
    def line(cells):
        return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |\n"

    with REPORT.open("a") as report:
        report.write("\n" + line(head) + "|" + "---|" * len(head) + "\n")
        report.writelines(line(row) for row in rows)


def note(text):
    with REPORT.open("a") as report:
        report.write(f"\n{text}\n")


def usable(*names):
    """The runs, or None after it was said why they cannot be compared."""
    runs = [Run(name) for name in names]
    for run in runs:
        if not run.there or run.rc == 77:
            say("SKIP", f"{run.name}: {run.why() if run.there else 'not run'}")
            return None
    failed = [run for run in runs if run.json is None]
    for run in failed:
        say("FAIL", f"{run.name}: {run.why()}")
    return None if failed else runs


def numbered(label):
    """All runs LABEL.1, LABEL.2, ..."""
    paths = FOLDER.glob(f"{label}.[0-9]*.rc")
    return [path.name[: -len(".rc")] for path in sorted(paths)]


def contract():
    rows = []
    for path in sorted(FOLDER.glob(f"{STEP}.*.rc")):
        run = Run(path.name[: -len(".rc")])
        label = run.name[len(STEP) + 1 :]
        found = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", run.out, re.M)
        failed = re.findall(r"^FAIL +(.+)$", run.out, re.M)
        counts = ", ".join(f"{n} {w}" for n, w in zip(found[-1], ("passed", "failed", "skipped"))
                           ) if found else run.why()
        if run.rc == 77:
            say("SKIP", f"{label}: {run.why()}")
        else:
            verdict(run.rc == 0 and found and found[-1][1] == "0", f"{label}: {counts}" + (
                f" ({'; '.join(failed[:6])}{' ...' if len(failed) > 6 else ''})" if failed else ""))
        rows.append([label, counts, "; ".join(failed)])
    table(["run", "result", "failed checks"], rows)


def split():
    runs = usable("split.shared.bare", "split.static.bare", "split.shared.preloaded",
                  "split.static.preloaded")
    if runs is None:
        return
    shared, static = runs[2].kinds(), runs[3].kinds()
    table(["kind", "shared runtime: blocks, live, bytes", "static runtime: blocks, live, bytes"],
          [[kind] + [", ".join(map(str, side.get(kind, "-"))) for side in (shared, static)]
           for kind in sorted(shared.keys() | static.keys())])
    verdict(shared == static and shared, "shared and static runtime give the same account")
    wanted = {"managed": 2, "vmm": 6}
    verdict({kind: row[0] for kind, row in shared.items()} == wanted,
            "two blocks at or over the threshold are managed, six under it vmm")


def rates_table(title, labels, rates, operations):
    native = labels[0]
    rows = []
    for operation in operations:
        row = [operation]
        for label in labels:
            numbers = rates.get(label, {}).get(operation)
            if not numbers:
                row.append("-")
                continue
            mid = median(numbers)
            ratio = mid / median(rates[native][operation])
            row.append(f"{mid:.0f}" if label == native else f"{mid:.0f} ({ratio:.4f})")
            if label != native:
                verdict(ratio >= 1 - WITHIN, f"{title}, {operation}, {label}: {mid:.0f} GB/s, "
                        f"{ratio:.4f} of native")
        rows.append(row)
    note(f"{title}: GB/s, median of {len(rates[native][operations[0]])} rounds, (ratio to native).")
    table(["4 GiB"] + labels, rows)


def bandwidth():
    operations = ["read", "write", "copy", "memset"]
    rates = {}
    for label in ("native", "vmm", "managed"):
        names = numbered(f"bandwidth.{label}")
        runs = usable(*names) if names else None
        if runs is None:
            say("SKIP", f"processes side by side: no figures of {label}")
            break
        rates[label] = {operation: [rate for run in runs
                                    for rate in run.json["rates"][label].get(operation, [])]
                        for operation in operations}
        if label != "native":
            verdict(all(set(run.kinds()) >= {label} for run in runs),
                    f"the blocks of the {label} processes are {label}")
    else:
        rates_table("Processes by turns", ["native", "vmm", "managed"], rates, operations)
    runs = usable("bandwidth.together")
    if runs is not None:
        kinds = runs[0].kinds()
        verdict(kinds.get("managed", (0,))[0] == 2 and kinds.get("vmm", (0,))[0] >= 2,
                "in one process: two managed blocks, the others vmm")
        labels = ["native (cudaMallocAsync)", "vmm", "managed"]
        found = runs[0].json["rates"]
        rates_table("In one process", labels, {labels[0]: found["async"], "vmm": found["vmm"],
                                               "managed": found["managed"]}, operations)


def cost():
    sides = {}
    for side in ("bare", "preloaded"):
        names = numbered(f"cost.{side}")
        runs = usable(*names) if names else None
        if runs is None:
            return
        sides[side] = [run.json for run in runs]

    def mid(side, *path):
        values = []
        for data in sides[side]:
            for key in path:
                data = data[key]
            values.append(data)
        return median(values)

    first = sides["bare"][0]
    rows = []
    for size in first["cost"]:
        for index, call in enumerate(("cudaMalloc", "cudaFree")):
            bare, pre = (mid(side, "cost", size, index) for side in ("bare", "preloaded"))
            rows.append([f"{call}, {size}", f"{bare:.2f}", f"{pre:.2f}", f"{pre / bare:.2f}"])
    for live in first["live"]:
        for what in ("allocate", "free"):
            bare, pre = (mid(side, "live", live, what) for side in ("bare", "preloaded"))
            rows.append([f"{live} live, {what}, each", f"{bare:.2f}", f"{pre:.2f}",
                         f"{pre / bare:.2f}"])
    note("Microseconds, medians.")
    table(["call", "bare", "preloaded", "ratio"], rows)
    if Run("cost.rules").json:
        note("The same with a rule `lib=`, which looks at the frames of the caller.")
        costs = Run("cost.rules").json["cost"]
        table(["call", "us", "more than without"],
              [[f"cudaMalloc, {size}", f"{cost[0]:.2f}",
                f"{cost[0] - mid('preloaded', 'cost', size, 0):.2f}"] for size, cost in costs.items()])
    rows = [[name] + [f"{mid(side, 'pairs', name):,.0f}" for side in ("bare", "preloaded")]
            + [f"{mid('preloaded', 'pairs', name) / mid('bare', 'pairs', name):.2f}"]
            for name in first["pairs"]]
    note("Pairs of cudaMalloc and cudaFree per second, all threads together.")
    table(["pairs", "bare", "preloaded", "ratio"], rows)

    rows = []
    page = 2 << 20  # the first block may find room in a page that is there already, on either side
    for live in first["live"]:
        bare, pre = (mid(side, "live", live, "bytes") for side in ("bare", "preloaded"))
        kept = mid("preloaded", "live", live, "kept")
        rows.append([live, f"{bare / 2**20:.0f}", f"{pre / 2**20:.0f}",
                     f"{pre / bare:.3f}" if bare else "-", f"{kept / 2**20:.0f}"])
        verdict(pre <= 1.1 * bare + page, f"{live} live: {pre / 2**20:.0f} MiB of device memory, "
                f"native {bare / 2**20:.0f} MiB (at most 1.1 times and one page of 2 MiB)")
    note("Device memory in MiB, as another process sees it.")
    table(["live blocks", "bare", "preloaded", "ratio", "kept after all were freed"], rows)


def digests(bare_name, other_names):
    """Checks, digests and errors of one program, bare and otherwise; a row for each run."""
    rows = []
    runs = usable(bare_name)
    if runs is None:
        return None
    bare = runs[0].json
    good = verdict(all(bare["checks"].values()) and not bare["errors"],
                   f"{bare_name}: {trouble(bare) or 'all checks hold'}")
    rows.append([bare_name, len(bare["digests"]), len(bare["checks"]), trouble(bare) or "-", ""])
    for name in other_names:
        runs = usable(name)
        if runs is None:
            continue
        other = runs[0].json
        unlike = [key for key in bare["digests"].keys() | other["digests"].keys()
                  if bare["digests"].get(key) != other["digests"].get(key)]
        kinds = ", ".join(f"{row[0]} {kind}" for kind, row in runs[0].kinds().items())
        bad = trouble(other)
        verdict(not unlike and not bad, f"{name}: " + (
            f"digests differ: {', '.join(sorted(unlike))}" if unlike else
            bad or f"{len(other['digests'])} digests equal, {len(other['checks'])} checks hold"))
        if not kinds:
            say("FAIL", f"{name}: kvshim gave no account, so it was not there")
        rows.append([name, len(other["digests"]), len(other["checks"]),
                     ", ".join(unlike) or bad or "-", kinds])
    table(["run", "digests", "checks", "unlike bare, or failed", "blocks"], rows)
    return bare if good else None


def trouble(data):
    failed = [name for name, holds in data["checks"].items() if not holds]
    return "; ".join([f"failed: {', '.join(failed)}"] if failed else []) + "".join(
        f" {part}: {text}" for part, text in data["errors"].items())


def torch():
    names = ["torch.bare", "torch.managed", "torch.vmm"]
    digests(names[0], names[1:])
    times = {name: Run(name).json["times"] for name in names if Run(name).json}
    if "torch.bare" in times:
        table(["time"] + list(times), [[what] + [times[name].get(what, "-") for name in times]
                                       for what in times["torch.bare"]])
    digests("torch_oom.bare", ["torch_oom.preloaded"])
    runs = [Run("torch_oom.bare").json, Run("torch_oom.preloaded").json]
    if all(runs) and runs[0]["counts"] and runs[1]["counts"]:
        bare, pre = (list(run["counts"].values())[0] for run in runs)
        verdict(abs(bare - pre) <= 1, f"blocks of 1 GiB until out of memory: {bare} bare, "
                f"{pre} preloaded")


def llama():
    names = {label: numbered(f"llama.{label}") for label in ("native", "vmm", "managed")}
    runs = {label: usable(*found) for label, found in names.items() if found}
    if not all(runs.get(label) for label in names):
        return
    native = runs["native"]
    agree = all(run.json[key] == native[0].json[key] for run in native for key in ("tokens", "logits"))
    verdict(agree and len(native) > 1, f"{len(native)} native runs agree with each other "
            f"({native[0].json['distinct']} different tokens, by {native[0].json['tokens by']})")
    rates = {label: [rate for run in runs[label] for rate in run.json["rates"]] for label in runs}
    rows = []
    for label in runs:
        mid = median(rates[label])
        ratio = mid / median(rates["native"])
        blocks = ", ".join(f"{row[0]} {kind}" for kind, row in runs[label][0].kinds().items())
        rows.append([label, ", ".join(sorted({run.json["tokens"] for run in runs[label]})),
                     ", ".join(sorted({run.json["logits"] for run in runs[label]})),
                     f"{mid:.1f}", f"{ratio:.4f}", blocks])
        if label == "native":
            continue
        verdict(label in blocks, f"{label}: the blocks are {blocks or 'not counted'}")
        for key in ("tokens", "logits"):
            verdict(all(run.json[key] == native[0].json[key] for run in runs[label]),
                    f"{label}: the same {key} as native, float32")
        verdict(ratio >= 1 - WITHIN, f"{label}: decode {mid:.1f} tokens/s, {ratio:.4f} of native")
    note(f"Decode in bfloat16 by {native[0].json['rates by']}.")
    table(["kind", "tokens, float32", "logits, float32", "tokens/s, bfloat16", "ratio", "blocks"],
          rows)


def frameworks():
    for name in ("cupy", "numba", "jax_prealloc", "jax_grow"):
        digests(f"{name}.bare", [f"{name}.preloaded"])
    run = Run("jax_prealloc.preloaded")
    if run.json:
        # XLA preallocates by cudaMalloc or, newer ones, by cuMemCreate of its own.
        verdict("managed" in run.kinds() or "cuMemCreate calls of the program itself" in run.err,
                "JAX's preallocated block is managed, or named as memory of XLA's own cuMemCreate")


def import_torch():
    sides = {side: usable(*numbered(f"import.{side}") or [f"import.{side}.1"])
             for side in ("bare", "preloaded")}
    if not all(sides.values()):
        return
    rows = []
    for what in ("wall", "cpu"):
        values = {side: [run.json[what] for run in runs] for side, runs in sides.items()}
        bare, pre = median(values["bare"]), median(values["preloaded"])
        rows.append([what, f"{bare:.3f}", f"{pre:.3f}", f"{pre / bare:.4f}",
                     f"{min(values['preloaded']) / min(values['bare']):.4f}"])
        if what == "wall":
            verdict(pre / bare <= 1.02, f"{bare:.3f} s bare, {pre:.3f} s preloaded, median of "
                    f"{len(values['bare'])}: {pre / bare:.4f}")
    table(["import torch, s", "bare", "preloaded", "ratio of medians", "ratio of the fastest"], rows)


def zero():
    rows = []
    reference = {}
    for threads, wanted in PLACED.items():
        speeds = []
        for name in numbered(f"zero.{threads}"):
            found = re.search(r"placed .+ of managed memory at \S+ in (\d+) ms with (\d+) threads",
                              Run(name).err)
            if found and int(found[2]) == threads:
                speeds.append(4 * 2**30 / int(found[1]) / 1e6)
        if not speeds:
            say("FAIL", f"{threads} threads: no line that says what was placed "
                f"({Run(f'zero.{threads}.1').why()})")
            continue
        reference[threads] = median(speeds)
        rows.append([threads, f"{median(speeds):.2f}", f"{wanted}"])
        verdict(median(speeds) >= 0.75 * wanted, f"4 GiB with {threads} threads: "
                f"{median(speeds):.2f} GB/s (measured before: {wanted})")
    if rows:
        note("First touch of 4 GiB of managed memory by the CPU.")
        table(["threads", "GB/s", "measured before, H200 with 16 cores"], rows)


def multi():
    for pair in ("same", "two"):
        if Run(f"multi.share_{pair}.bare").there:
            digests(f"multi.share_{pair}.bare", [f"multi.share_{pair}.preloaded"])
    rows = []
    for pair in ("same", "two"):
        if not Run(f"multi.allreduce_{pair}.bare").there:
            continue
        runs = usable(f"multi.allreduce_{pair}.bare", f"multi.allreduce_{pair}.preloaded")
        if runs is None:
            continue
        bare, pre = (run.json for run in runs)
        verdict(bare["wrong"] == pre["wrong"] == 0, f"all-reduce over IPC handles, {pair}: "
                f"{bare['us']} us bare, {pre['us']} us preloaded, every sum right")
        verdict("vmm" in runs[1].kinds(), f"all-reduce over IPC handles, {pair}: its blocks are vmm")
        rows.append([pair, bare["opened"], bare["us"], pre["us"], f"{bare['us'] / pre['us']:.4f}"])
    if rows:
        note("An all-reduce of our own over IPC handles of base and offset, replayed from a graph: "
             "8.25 MiB in three buffers, microseconds for all three.")
        table(["devices", "handles opened", "bare", "preloaded", "speed ratio"], rows)
    rows = []
    for cumem in (0, 1):
        label = f"multi.nccl_cumem{cumem}"
        names = {how: numbered(f"{label}.{how}") for how in ("bare", "preloaded")}
        if not names["bare"]:
            continue
        digests(f"{label}.bare.1", [f"{label}.preloaded.1"])
        runs = {how: usable(*found) for how, found in names.items()}
        if not all(runs.values()):
            continue
        for what in runs["bare"][0].json["rates"]:
            bare, pre = (max(run.json["rates"][what] for run in runs[how])
                         for how in ("bare", "preloaded"))
            below = "1 GiB" not in what
            rows.append([what, cumem, "vmm" if below else "managed", f"{bare:.1f}", f"{pre:.1f}",
                         f"{pre / bare:.4f}"])
            if below:
                verdict(pre / bare >= 0.98, f"NCCL_CUMEM_ENABLE={cumem}, {what}: {pre:.1f} GB/s, "
                        f"{pre / bare:.4f} of native")
        kinds = runs["preloaded"][0].kinds()
        verdict("managed" in kinds and "vmm" in kinds,
                f"NCCL_CUMEM_ENABLE={cumem}: buffers below and above the threshold")
    if rows:
        note("NCCL between two GPUs: GB/s of one rank's data, median of 30, the better of two runs a side.")
        table(["operation", "NCCL_CUMEM_ENABLE", "kind", "bare", "preloaded", "ratio"], rows)


# Policy: the kind of the block, and the GB/s of its first read and of those after it that one H200
# over PCIe showed (docs/residency.md). None: not a figure of ours.
POLICIES = {"vmm": ("vmm", None, 4000), "managed_none": ("managed", 8, 4000),
            "managed_device": ("managed", 8, 4000), "managed_host": ("managed", 40, 40),
            "managed_prefetched": ("managed", 2000, 4000), "host": ("host", 40, 40)}


def tensor_map():
    for label in ("bare", "vmm", "managed", "managed_host", "host"):
        runs = usable(f"tensor_map.{label}")
        if runs is None:
            continue
        kind = label.split("_")[0]
        verdict(runs[0].json["wrong"] == 0 and (kind == "bare" or kind in runs[0].kinds()),
                f"{label}: {runs[0].json['mib']} MiB by tiles, from the base and from inside, every byte right")


def residency():
    rows = []
    for label, (kind, first, then) in POLICIES.items():
        runs = usable(f"residency.{label}")
        if runs is None:
            continue
        data = runs[0].json
        steady = median(data["then"])
        blocks = runs[0].kinds()
        rows.append([label, data["mib"], f"{data['allocate_ms']:.0f}", f"{data['free_ms']:.0f}",
                     data["first"], f"{steady:.0f}", data["type"]])
        verdict(kind in blocks, f"{label}: the block is {kind} (there are: {', '.join(blocks)})")
        verdict(data["right"], f"{label}: what the GPU writes arrives")
        verdict(steady >= then and (first is None or data["first"] >= first),
                f"{label}: read at {data['first']:.0f} GB/s, then {steady:.0f} "
                f"(at least {first or '-'}, then {then})")
    if rows:
        note("One block: time to allocate and to free it, GPU read in GB/s, type as the runtime says.")
        table(["policy", "MiB", "allocate, ms", "free, ms", "first read", "then", "type"], rows)
    rows = []
    for label in ("vmm", "managed_none", "managed_device", "managed_host", "host"):
        runs = usable(f"residency_llama.{label}")
        if runs is None:
            continue
        blocks = runs[0].kinds()
        rows.append([label, f"{median(runs[0].json['rates']):.1f}",
                     ", ".join(f"{row[0]} {kind}" for kind, row in blocks.items())])
        wanted = POLICIES[label][0]
        verdict(wanted in blocks and (wanted == "vmm" or blocks[wanted][0] >= 32),
                f"Llama, {label}: the KV cache is {wanted} ({rows[-1][2]})")
    if rows:
        note("Llama in bfloat16, batch 16: decode with a KV cache of 4 GiB, weights in vmm blocks.")
        table(["KV cache", "tokens/s", "blocks"], rows)


def checks_of(run, label):
    failed = [name for name, holds in run.json["checks"].items() if not holds]
    verdict(not failed and run.json["checks"],
            f"{label}: {len(run.json['checks'])} checks" + (f", failed: {'; '.join(failed)}" if failed else ""))


def capacity():
    rows = []
    for label in ("bare", "virtual"):
        runs = usable(f"capacity.{label}")
        if runs is None:
            continue
        checks_of(runs[0], label)
        for name, value in runs[0].json["figures"].items():
            shown = f"{value['free']} of {value['total']}" if isinstance(value, dict) else value
            rows.append([label, name, shown])
        if label == "virtual":
            kinds = runs[0].kinds()
            verdict("managed" in kinds and "vmm" in kinds, "virtual: blocks of both kinds")
    if rows:
        note("Figures in MiB; pairs are free of total.")
        table(["run", "figure", "MiB"], rows)
    for kind in ("managed", "host"):
        runs = usable(f"capacity.two_{kind}")
        if runs is not None:
            checks_of(runs[0], f"two processes, {kind}: answers {runs[0].json['codes']} in "
                      f"{runs[0].json['seconds']} s")


def pluggable():
    rows = []
    for mode in ("pool", "all", "torch", "cupy"):
        for how in ("bare", "preloaded"):
            runs = usable(f"pluggable_{mode}.{how}")
            if runs is None:
                continue
            checks_of(runs[0], f"{mode}, {how}")
            rows.append([mode, how, len(runs[0].json["checks"])])
    if rows:
        table(["way", "library", "checks"], rows)


STEPS = {"contract": contract, "contract_more": contract, "split": split, "tensor_map": tensor_map, "bandwidth": bandwidth, "cost": cost,
         "torch": torch, "llama": llama, "frameworks": frameworks, "import": import_torch,
         "zero": zero, "multi": multi, "residency": residency,
         "capacity": capacity, "pluggable": pluggable}
STEPS[STEP]()
