#!/usr/bin/env bash
# Qualifies a built kvshim on the NVIDIA GPU of this machine: correctness and speed, bare beside
# preloaded, in one run of less than eight minutes. Nothing is built here but the CUDA programs of
# tests/gpu. Every step runs, whatever failed before; a missing tool is a SKIP, said aloud.
#
#   scripts/gpu-check.sh [--quick] [--only STEP] [--out DIR]
#
# --quick   fewer rounds
# --only    one of: contract split tensor_map bandwidth cost torch llama frameworks import quiet zero
#           multi contract_more residency capacity pluggable
# --out     where qualification.md and details.log go (default: build/gpu-check)
#
# Needs build/libkvshim.so and build/tests/contract/contract (BUILD_DIR: another build folder),
# python3, and what the steps name: nvcc, torch, transformers, cupy, jax, numba-cuda,
# compute-sanitizer. Managed memory stays at 16 GiB and under: never ask for more than the GPU has free.
# The whole run has no time for residency on most machines: then it is a SKIP, and --only residency.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${BUILD_DIR:-$root/build}
library=$build/libkvshim.so
contract=$build/tests/contract/contract
programs=$root/tests/gpu
budget=470 # seconds for everything

quick=no
only=
out=$build/gpu-check
while (($# > 0)); do
  case $1 in
    --quick) quick=yes ;;
    --only | --out)
      if (($# < 2)); then
        echo "gpu-check: $1 needs a value" >&2
        exit 2
      fi
      if [[ $1 == --only ]]; then only=$2; else out=$2; fi
      shift
      ;;
    *)
      echo "usage: scripts/gpu-check.sh [--quick] [--only STEP] [--out DIR]" >&2
      exit 2
      ;;
  esac
  shift
done
steps=(contract split tensor_map bandwidth cost torch llama frameworks import quiet zero multi contract_more residency
  capacity pluggable)
if [[ -n $only && " ${steps[*]} " != *" $only "* ]]; then
  echo "gpu-check: --only takes one of: ${steps[*]}" >&2
  exit 2
fi

# The caller's own settings must not decide what is measured.
unset LD_PRELOAD PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF XLA_FLAGS CUDA_LAUNCH_BLOCKING \
  "${!KVSHIM_@}" "${!XLA_PYTHON_@}"
export PYTHONDONTWRITEBYTECODE=1

if ! command -v python3 > /dev/null; then
  echo "gpu-check: python3 is missing; install it" >&2
  exit 1
fi
for file in "$library" "$contract"; do
  if [[ ! -e $file ]]; then
    echo "gpu-check: $file is missing; build first (scripts/test.sh), or name BUILD_DIR" >&2
    exit 1
  fi
done
if ! nvidia-smi -L 2> /dev/null | grep -q '^GPU 0'; then
  echo "gpu-check: no NVIDIA GPU here (nvidia-smi -L names none)"
  exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" || exit 1
report=$out/qualification.md
details=$out/details.log
results=$work/results
: > "$details"
: > "$results"

say() { printf '%s\n' "$*" | tee -a "$results"; }

# run NAME SECONDS bare|preloaded [VARIABLE=value ...] -- COMMAND ...
# Keeps NAME.out, NAME.err and NAME.rc in $work; what failed is shown in details.log.
run() {
  local name=$1 limit=$2 how=$3 status=0 left=$((budget - SECONDS))
  local -a settings=()
  shift 3
  while [[ $1 != -- ]]; do
    settings+=("$1")
    shift
  done
  shift
  [[ $how == preloaded ]] && settings+=("LD_PRELOAD=$library")
  ((left < 1)) && left=1
  timeout -k 5 $((limit < left ? limit : left)) env "${settings[@]}" "$@" \
    > "$work/$name.out" 2> "$work/$name.err" < /dev/null || status=$?
  if ((status == 124 && left < limit)); then
    echo "no time left of the $budget seconds for the whole run" >> "$work/$name.err"
    status=77
  fi
  echo "$status" > "$work/$name.rc"
  if ((status != 0)); then
    {
      echo "==== $name: exit code $status: ${settings[*]} $*"
      tail -n 120 "$work/$name.out"
      echo "---- standard error"
      tail -n 120 "$work/$name.err"
    } >> "$details"
  fi
  return "$status"
}

judge() {
  python3 "$programs/compare.py" "$1" "$work" "$report" 2>> "$details" | tee -a "$results"
  ((PIPESTATUS[0] == 0)) || say "FAIL $1: the comparison itself failed; see details.log"
}

# CUDA programs, all at once: static runtime is nvcc's default.
build_programs() {
  local home name
  if ! command -v nvcc > /dev/null; then
    [[ -x /usr/local/cuda/bin/nvcc ]] || return 1
    PATH=$PATH:/usr/local/cuda/bin
  fi
  home=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  local -a flags=(-std=c++20 -O2 -arch=native)
  for name in alloc_split bandwidth alloc_cost allreduce_ipc residency tensor_map; do
    run "build.$name" 90 bare -- nvcc "${flags[@]}" -o "$work/$name" "$programs/$name.cu" -lcuda &
  done
  run build.alloc_split_shared 90 bare -- nvcc "${flags[@]}" -cudart shared \
    -Xlinker "-rpath,$home/lib64:$home/lib" -o "$work/alloc_split_shared" "$programs/alloc_split.cu" &
  wait
}

# A step that needs a program of tests/gpu.
has_program() {
  [[ -x $work/$2 ]] && return 0
  if [[ -e $work/build.$2.rc ]]; then
    say "FAIL $1: $2 does not compile; see details.log"
  else
    say "SKIP $1: nvcc is missing, so $2 cannot be built"
  fi
  return 1
}

step_contract() {
  run contract.bare 120 bare -- "$contract"
  run contract.preloaded 120 preloaded KVSHIM_THRESHOLD=32MiB -- "$contract"
  judge contract
}

# The other ways through the suite; last, so that a slow machine loses these and not the rest.
step_contract_more() {
  if [[ $quick == yes ]]; then
    say "SKIP contract_more: --quick"
    return
  fi
  local threshold=KVSHIM_THRESHOLD=32MiB
  run contract_more.all_vmm 120 preloaded $threshold KVSHIM_LARGE=vmm -- "$contract"
  run contract_more.preloaded_dlsym 120 preloaded $threshold -- "$contract" --via=dlsym
  run contract_more.bare_dlsym 120 bare -- "$contract" --via=dlsym
  judge contract_more
}

step_split() {
  has_program split alloc_split && has_program split alloc_split_shared || return
  local -a options=(KVSHIM_THRESHOLD=64MiB KVSHIM_SUMMARY=1)
  if ! ldd "$work/alloc_split_shared" | grep -q 'libcudart.*=> /' ||
    ldd "$work/alloc_split" | grep -q libcudart; then
    say "FAIL split: the programs do not have the runtimes they should have (ldd)"
  fi
  run split.static.bare 30 bare -- "$work/alloc_split"
  run split.shared.bare 30 bare -- "$work/alloc_split_shared"
  run split.static.preloaded 30 preloaded "${options[@]}" -- "$work/alloc_split"
  run split.shared.preloaded 30 preloaded "${options[@]}" -- "$work/alloc_split_shared"
  judge split
}

# Tensor maps, as attention kernels of Hopper and newer use them on a KV cache, over each kind.
step_tensor_map() {
  has_program tensor_map tensor_map || return
  local kind
  run tensor_map.bare 30 bare -- "$work/tensor_map" 64
  if [[ $(< "$work/tensor_map.bare.rc") == 77 ]]; then
    say "SKIP tensor_map: $(tail -n 1 "$work/tensor_map.bare.err")"
    return
  fi
  for kind in vmm managed host; do
    run "tensor_map.$kind" 30 preloaded KVSHIM_THRESHOLD=32MiB KVSHIM_LARGE=$kind KVSHIM_SUMMARY=1 -- \
      "$work/tensor_map" 64
  done
  run tensor_map.managed_host 30 preloaded KVSHIM_THRESHOLD=32MiB KVSHIM_ADVICE=host KVSHIM_SUMMARY=1 -- \
    "$work/tensor_map" 64
  judge tensor_map
}

step_bandwidth() {
  has_program bandwidth bandwidth || return
  local rounds=5 round
  [[ $quick == yes ]] && rounds=2
  for ((round = 1; round <= rounds; ++round)); do
    run "bandwidth.native.$round" 20 bare -- "$work/bandwidth" 3 native:malloc:4096:rwcm
    run "bandwidth.vmm.$round" 20 preloaded KVSHIM_THRESHOLD=never KVSHIM_SUMMARY=1 -- \
      "$work/bandwidth" 3 vmm:malloc:4096:rwcm
    # The CPU carries out a memset of managed memory: not a figure of the device.
    run "bandwidth.managed.$round" 30 preloaded KVSHIM_THRESHOLD=1GiB KVSHIM_SUMMARY=1 -- \
      "$work/bandwidth" 3 managed:malloc:4096:rwc
  done
  # Stream-ordered memory stays the driver's own: native beside the others in one process.
  run bandwidth.together 40 preloaded KVSHIM_THRESHOLD=4098MiB KVSHIM_SUMMARY=1 -- \
    "$work/bandwidth" $((rounds * 2 + 1)) \
    async:async:4096:rwcm vmm:malloc:4096:rwcm managed:malloc:4098:rwc
  judge bandwidth
}

step_cost() {
  has_program cost alloc_cost || return
  local rounds=3 round
  [[ $quick == yes ]] && rounds=1
  for ((round = 1; round <= rounds; ++round)); do
    run "cost.bare.$round" 30 bare -- "$work/alloc_cost"
    run "cost.preloaded.$round" 30 preloaded -- "$work/alloc_cost"
  done
  # A rule that asks which library allocates, and never says yes.
  run cost.rules 30 preloaded "KVSHIM_RULES=lib=libnccl*:vmm" -- "$work/alloc_cost"
  judge cost
}

step_torch() {
  local workspace=CUBLAS_WORKSPACE_CONFIG=:4096:8 never=KVSHIM_THRESHOLD=never
  local -a check=(python3 "$programs/torch_check.py")
  run torch.bare 40 bare $workspace -- "${check[@]}" main
  if [[ $(< "$work/torch.bare.rc") == 77 ]]; then
    say "SKIP torch: $(tail -n 1 "$work/torch.bare.err")"
    return
  fi
  run torch.managed 50 preloaded $workspace KVSHIM_THRESHOLD=1GiB KVSHIM_SUMMARY=1 -- "${check[@]}" main
  run torch.vmm 40 preloaded $workspace $never KVSHIM_SUMMARY=1 -- "${check[@]}" main
  # All memory of the GPU: never as managed memory.
  run torch_oom.bare 40 bare $workspace -- "${check[@]}" oom
  run torch_oom.preloaded 40 preloaded $workspace $never KVSHIM_SUMMARY=1 -- "${check[@]}" oom
  judge torch
}

step_llama() {
  local rounds=2 round
  local -a check=(python3 "$programs/llama_check.py")
  for ((round = 1; round <= rounds; ++round)); do
    run "llama.native.$round" 45 bare -- "${check[@]}"
    if [[ $(< "$work/llama.native.$round.rc") == 77 ]]; then
      say "SKIP llama: $(tail -n 1 "$work/llama.native.$round.err")"
      return
    fi
    [[ $quick == yes ]] && ((round > 1)) && break
    run "llama.vmm.$round" 45 preloaded KVSHIM_THRESHOLD=never KVSHIM_SUMMARY=1 -- "${check[@]}"
    run "llama.managed.$round" 45 preloaded KVSHIM_THRESHOLD=20MiB KVSHIM_SUMMARY=1 -- "${check[@]}"
  done
  judge llama
}

step_frameworks() {
  local name how
  # Together: nothing is timed. One JAX at a time, for the sum of managed memory.
  for how in bare preloaded; do
    for name in cupy numba; do
      run "$name.$how" 60 $how KVSHIM_THRESHOLD=1GiB KVSHIM_SUMMARY=1 -- \
        python3 "$programs/frameworks_check.py" $name &
    done
    run "jax_prealloc.$how" 60 $how KVSHIM_SUMMARY=1 XLA_PYTHON_CLIENT_PREALLOCATE=true \
      XLA_PYTHON_CLIENT_MEM_FRACTION=0.06 -- python3 "$programs/frameworks_check.py" jax &
    wait
    run "jax_grow.$how" 60 $how KVSHIM_THRESHOLD=1GiB KVSHIM_SUMMARY=1 \
      XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_PYTHON_CLIENT_MEM_FRACTION=0.06 -- \
      python3 "$programs/frameworks_check.py" jax
  done
  judge frameworks
}

step_import() {
  local rounds=9 round how
  local program='import json, time
wall, cpu = time.perf_counter(), time.process_time()
import torch
print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}))'
  [[ $quick == yes ]] && rounds=5
  if ! run import.warm 60 bare -- python3 -c "$program"; then
    say "SKIP import: torch cannot be imported here: $(tail -n 1 "$work/import.warm.err")"
    return
  fi
  for ((round = 1; round <= rounds; ++round)); do
    # By turns, and by turns who is first.
    for how in $( ((round % 2)) && echo bare preloaded || echo preloaded bare); do
      run "import.$how.$round" 20 "$how" -- python3 -c "$program"
    done
  done
  judge import
}

# Nothing at all in a process without CUDA; nothing to complain about for compute-sanitizer.
step_quiet() {
  local said status=0
  said=$(timeout 10 env -i LD_PRELOAD="$library" KVSHIM_LOG=debug KVSHIM_SUMMARY=1 /bin/true 2>&1) || status=$?
  if ((status == 0)) && [[ -z $said ]]; then
    say "PASS quiet: /bin/true says nothing and exits with 0"
  else
    say "FAIL quiet: /bin/true: exit code $status, it said: ${said:0:200}"
  fi
  if ! command -v compute-sanitizer > /dev/null; then
    say "SKIP quiet: compute-sanitizer is missing"
    return
  fi
  has_program quiet alloc_split || return
  if ! run sanitizer.bare 60 bare -- compute-sanitizer --error-exitcode 9 "$work/alloc_split"; then
    say "SKIP quiet: compute-sanitizer does not run here bare: $(tail -n 1 "$work/sanitizer.bare.out")"
  elif ! run sanitizer.preloaded 90 preloaded KVSHIM_THRESHOLD=64MiB KVSHIM_SUMMARY=1 -- \
    compute-sanitizer --error-exitcode 9 "$work/alloc_split"; then
    say "FAIL quiet: compute-sanitizer complains of a preloaded program; see details.log"
  elif ! cat "$work"/sanitizer.preloaded.{out,err} | grep -q 'kvshim.*summary'; then
    say "FAIL quiet: under compute-sanitizer kvshim was not in the program"
  else
    say "PASS quiet: compute-sanitizer has no complaint of a preloaded program"
  fi
}

step_zero() {
  has_program zero alloc_cost || return
  local rounds=3 round threads
  [[ $quick == yes ]] && rounds=1
  # A virtual machine may get its memory only when it is first touched: not timed.
  run zero.warm 40 preloaded KVSHIM_THRESHOLD=1GiB -- "$work/alloc_cost" --place 4096
  for ((round = 1; round <= rounds; ++round)); do
    for threads in 1 4 16; do
      run "zero.$threads.$round" 20 preloaded KVSHIM_THRESHOLD=1GiB KVSHIM_LOG=info \
        KVSHIM_ZERO_THREADS=$threads -- "$work/alloc_cost" --place 4096
    done
  done
  judge zero
}

# Several processes, and several GPUs where there are.
step_multi() {
  local gpus how round pair cumem rounds=2
  [[ $quick == yes ]] && rounds=1
  local -a check=(python3 "$programs/multi_check.py") pairs=("same 0 0") label
  gpus=$(nvidia-smi -L | grep -c '^GPU')
  if ((gpus > 1)); then
    pairs+=("two 0 1")
  else
    say "SKIP multi: one GPU here: the same device in both processes, and no NCCL"
  fi
  for pair in "${pairs[@]}"; do
    read -r -a label <<< "$pair"
    for how in bare preloaded; do
      run "multi.share_${label[0]}.$how" 60 $how KVSHIM_SUMMARY=1 -- "${check[@]}" share "${label[@]:1}"
      has_program multi allreduce_ipc || continue
      # Two processes on one GPU take turns by the millisecond: few rounds.
      run "multi.allreduce_${label[0]}.$how" 60 $how KVSHIM_SUMMARY=1 -- \
        "$work/allreduce_ipc" "${label[@]:1}" $([[ ${label[0]} == same ]] && echo 20 || echo 2000)
    done
  done
  if ((gpus > 1)); then
    for ((round = 1; round <= rounds; ++round)); do
      for cumem in 0 1; do
        for how in bare preloaded; do
          run "multi.nccl_cumem$cumem.$how.$round" 60 $how NCCL_CUMEM_ENABLE=$cumem \
            KVSHIM_THRESHOLD=512MiB KVSHIM_SUMMARY=1 -- "${check[@]}" nccl
        done
      done
    done
  fi
  judge multi
}

# Where the pages of a large block are, and what that costs the GPU: one block of 16 GiB, and the KV
# cache of a Llama. The threshold separates the blocks of its cache (128 MiB) from its weights.
step_residency() {
  has_program residency residency || return
  local mib=16384 name
  [[ $quick == yes ]] && mib=4096
  local -A policy=(
    [vmm]=KVSHIM_LARGE=vmm [host]=KVSHIM_LARGE=host [managed_none]=KVSHIM_ADVICE=none
    [managed_device]=KVSHIM_ADVICE=device [managed_host]=KVSHIM_ADVICE=host
    [managed_prefetched]=KVSHIM_PREFETCH=32GiB)
  # Host memory of a virtual machine may come only when it is first touched: not timed.
  run residency.warm 60 preloaded KVSHIM_ADVICE=host -- "$work/residency" "$mib" 1
  for name in vmm managed_none managed_device managed_host managed_prefetched host; do
    run "residency.$name" 60 preloaded "${policy[$name]}" KVSHIM_THRESHOLD=1GiB KVSHIM_LOG=info -- \
      "$work/residency" "$mib" 5
  done
  for name in vmm managed_none managed_device managed_host host; do
    run "residency_llama.$name" 90 preloaded "${policy[$name]}" KVSHIM_THRESHOLD=127MiB \
      KVSHIM_SUMMARY=1 -- python3 "$programs/llama_check.py" speed
  done
  judge residency
}

# What PyTorch is told of the device's memory, bare and with host memory added; two processes that
# want the same host memory.
step_capacity() {
  local kind
  local -a check=(python3 "$programs/meminfo_check.py")
  run capacity.bare 60 bare -- "${check[@]}"
  run capacity.virtual 60 preloaded KVSHIM_MEMINFO=virtual KVSHIM_NVML=1 KVSHIM_THRESHOLD=256MiB \
    KVSHIM_SPILL_LIMIT=4GiB KVSHIM_SUMMARY=1 -- "${check[@]}"
  for kind in managed host; do
    run "capacity.two_$kind" 60 bare -- python3 "$programs/budget_check.py" "$library" "$kind"
  done
  judge capacity
}

# kvshim as an allocator by name, opened by the program or preloaded.
step_pluggable() {
  local how name
  for name in pool all torch cupy; do
    for how in bare preloaded; do
      run "pluggable_$name.$how" 30 $how KVSHIM_THRESHOLD=256MiB -- \
        python3 "$programs/pluggable_check.py" "$library" $name
    done
  done
  judge pluggable
}

write_head() {
  local version revision gpu
  version=$(python3 -c 'import ctypes, sys
say = ctypes.CDLL(sys.argv[1]).kvshim_version
say.restype = ctypes.c_char_p
print(say().decode())' "$library" 2> /dev/null)
  revision=$(git -C "$root" describe --always --dirty 2> /dev/null || echo "not a git checkout")
  gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1)
  cat << HEAD
# Qualification of kvshim on a GPU

Written by scripts/gpu-check.sh$([[ $quick == yes ]] && echo ' --quick')$([[ -n $only ]] && echo " --only $only"). Figures stand side by side in one run.

| what | value |
|---|---|
| date | $(date -u '+%Y-%m-%d %H:%M UTC') |
| kvshim | ${version:-unknown}, revision $revision |
| GPU, driver, memory | $gpu |
| GPUs in the machine | $(nvidia-smi -L | grep -c '^GPU') |
| CUDA compiler | $(nvcc --version 2> /dev/null | sed -n 's/.*release \([^,]*\),.*/\1/p' | grep . || echo none) |
| kernel | $(uname -sr) |
| C library | $(getconf GNU_LIBC_VERSION 2> /dev/null || echo unknown) |
| processor | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs |
HEAD
}

declare -A titles=(
  [contract]='Contract suite' [split]='Shared and static runtime' [tensor_map]='Tensor maps (TMA)' [bandwidth]='Device bandwidth'
  [cost]='Cost of allocation' [torch]='PyTorch' [llama]='Llama of transformers, random weights'
  [frameworks]='CuPy, numba-cuda, JAX' [import]='import torch' [quiet]='Nothing to notice'
  [zero]='Placing managed memory' [multi]='Several processes and GPUs' [contract_more]='Contract suite, other ways'
  [residency]='Where blocks live' [capacity]='What a program is told of memory'
  [pluggable]='An allocator by name')

case $only in
  '' | split | tensor_map | bandwidth | cost | quiet | zero | multi | residency) build_programs ;;
esac
write_head > "$report"
for step in "${steps[@]}"; do
  [[ -z $only || $only == "$step" ]] || continue
  begun=$SECONDS
  before=$(wc -l < "$results")
  printf '\n## %s\n' "${titles[$step]}" >> "$report"
  if ((SECONDS > budget - 5)); then
    say "SKIP $step: the $budget seconds for the whole run are over"
  else
    "step_$step"
  fi
  { echo; tail -n "+$((before + 1))" "$results" | sed 's/^/- /'; } >> "$report"
  printf '\n%d seconds.\n' $((SECONDS - begun)) >> "$report"
  echo "---- $step took $((SECONDS - begun)) s"
done

passed=$(grep -c '^PASS' "$results")
failed=$(grep -c '^FAIL' "$results")
skipped=$(grep -c '^SKIP' "$results")
printf '\n%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped" | tee -a "$report"
((failed == 0))
