#!/usr/bin/env bash
# Builds kvshim and runs every test that this machine can run. Closes with one line,
# "N passed, N failed, N skipped"; a test that cannot run here exits 77 and counts as skipped.
#
#   scripts/test.sh [--werror] [arguments of "meson test", such as --suite unit or a test's name]
#
# BUILD_DIR: where to build (default: build in the checkout).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${BUILD_DIR:-$root/build}

werror=false
if [[ ${1:-} == --werror ]]; then
  werror=true
  shift
fi

# The caller's own settings must not decide what the tests see.
unset LD_PRELOAD "${!KVSHIM_@}" "${!KVSIM_@}"

# shellcheck source=scripts/setup.sh
source "$root/scripts/setup.sh" tests

if [[ -f $build/build.ninja ]]; then
  meson configure "$build" -Dwerror=$werror
else
  meson setup "$build" "$root" -Dwerror=$werror
fi
ninja -C "$build"

status=0
meson test -C "$build" --no-rebuild --print-errorlogs "$@" || status=$?

# On a machine with a real driver and a GPU, the contract suite on it, bare and preloaded. (The build
# has these runs as tests of its own where their names say "on the installed driver".)
contract=$build/tests/contract/contract
on_gpu=()
if [[ $# -eq 0 && -x $contract && -e /dev/nvidiactl ]]; then
  listed=$(meson test -C "$build" --no-rebuild --list 2> /dev/null)
  for how in bare preloaded; do
    [[ $listed == *"contract, $how, on the installed driver"* ]] && continue
    log=$build/meson-logs/contract-$how-gpu.txt
    preload=
    if [[ $how == preloaded ]]; then preload=$build/libkvshim.so; fi
    echo "contract, $how, on the installed driver"
    result=0
    LD_PRELOAD=$preload timeout 600 "$contract" > "$log" 2>&1 || result=$?
    if [[ $result != 0 && $result != 77 ]]; then tail -n 100 "$log"; fi
    on_gpu+=("$how=$result=$log")
  done
fi

# Each program's own count, then the closing line.
python3 - "$build/meson-logs/testlog.json" "$status" ${on_gpu[@]+"${on_gpu[@]}"} << 'PYTHON'
import json, re, sys

tests = []
with open(sys.argv[1], encoding="utf-8") as log:
    for line in log:
        test = json.loads(line)
        verdict = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}
        tests.append((test["name"], verdict.get(test["result"], "failed"), test.get("stdout") or ""))
for run in sys.argv[3:]:
    how, result, path = run.split("=", 2)
    with open(path, encoding="utf-8", errors="replace") as log:
        tests.append((f"contract, {how}, on the installed driver",
                      {"0": "passed", "77": "skipped"}.get(result, "failed"), log.read()))

own_count = re.compile(r"^(All tests passed .*|test cases: .*|.*\b\d+ passed, \d+ failed.*)$")
counts = {"passed": 0, "failed": 0, "skipped": 0}
print()
for name, verdict, output in tests:
    counts[verdict] += 1
    said = output.strip().splitlines()
    note = next((l.strip() for l in reversed(said) if own_count.match(l.strip())), "")
    if verdict == "skipped" and said:
        note = said[0].strip()
    print(f"{verdict:8} {name}{': ' + note if note else ''}")
print()
if sys.argv[2] != "0" and counts["failed"] == 0:
    print("meson test ended with status", sys.argv[2])
print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
sys.exit(1 if counts["failed"] or sys.argv[2] != "0" or not counts["passed"] else 0)
PYTHON
