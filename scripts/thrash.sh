#!/usr/bin/env bash
# What would thrash: a decode loop over weights and a KV cache, on a simulated device of the size you
# name, once under each policy of residency. Prints what every pass moves to the device, drives out of
# it and reads in host memory, and what that would cost with the figures of an H200 over PCIe
# (docs/residency.md). In proportion: 1 MiB here may stand for 1 GiB there.
#
#   scripts/thrash.sh [MEMORY_MiB [WEIGHTS_MiB [CACHE_MiB]]]      default: 128 32 160
#
# BUILD_DIR: another build folder than build.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${BUILD_DIR:-$root/build}
memory=${1:-128} weights=${2:-32} cache=${3:-160}
layers=5

for number in "$memory" "$weights" "$cache"; do
  if [[ ! $number =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: scripts/thrash.sh [MEMORY_MiB [WEIGHTS_MiB [CACHE_MiB]]]" >&2
    exit 2
  fi
done
for file in libkvshim.so tests/sim/libcuda.so.1 examples/oversubscribe; do
  if [[ ! -e $build/$file ]]; then
    echo "thrash: $build/$file is missing: ninja -C $build libkvshim.so tests/sim/libcuda.so.1 examples/oversubscribe" >&2
    exit 1
  fi
done

# Blocks of the cache are at the threshold, those of the weights below it.
threshold=$((cache / layers))
if ((weights / layers >= threshold)); then
  echo "thrash: a block of the cache must be larger than one of the weights" >&2
  exit 2
fi

# policy NAME VARIABLE=value ...
policy() {
  printf -- '-- %s\n' "$1"
  shift
  env "${@}" LD_LIBRARY_PATH="$build/tests/sim" LD_PRELOAD="$build/libkvshim.so" \
    KVSHIM_LOG=error KVSHIM_THRESHOLD="${threshold}MiB" KVSIM_DEVICES=1 KVSIM_MEMORY="${memory}M" \
    "$build/examples/oversubscribe" --weights "$weights" --cache "$cache" --layers $layers
}

unset "${!KVSHIM_@}"
policy 'managed, KVSHIM_ADVICE=none' KVSHIM_ADVICE=none
policy 'managed, KVSHIM_ADVICE=device' KVSHIM_ADVICE=device
policy 'managed, KVSHIM_ADVICE=host' KVSHIM_ADVICE=host
policy 'KVSHIM_LARGE=host' KVSHIM_LARGE=host
policy 'KVSHIM_LARGE=vmm' KVSHIM_LARGE=vmm
