#!/usr/bin/env bash
# Builds kvshim and shows its main job: an unmodified CUDA program loads weights, allocates a KV
# cache and serves, under LD_PRELOAD; kvshim's own account of what went where comes last. On the
# real GPU where there is one, else on the simulated driver.
#
#   scripts/demo.sh
#
# KVSHIM_* settings of the caller are passed on. BUILD_DIR: where to build (default: build).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${BUILD_DIR:-$root/build}

# shellcheck source=scripts/setup.sh
source "$root/scripts/setup.sh" build
[[ -f $build/build.ninja ]] || meson setup "$build" "$root"
ninja -C "$build" libkvshim.so tests/sim/libcuda.so.1 examples/serve

serve=$build/examples/serve
if "$serve" --probe; then
  echo "demo: on the GPU of this machine"
  sizes=(--weights 2048 --kv 4096)
else
  echo "demo: no usable GPU here, so on the simulated driver, in small"
  export LD_LIBRARY_PATH=$build/tests/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export KVSHIM_THRESHOLD=${KVSHIM_THRESHOLD:-128MiB}
  sizes=(--weights 320 --kv 256)
fi

echo "demo: LD_PRELOAD=libkvshim.so serve ${sizes[*]}"
echo
KVSHIM_SUMMARY=${KVSHIM_SUMMARY:-1} LD_PRELOAD="$build/libkvshim.so${LD_PRELOAD:+:$LD_PRELOAD}" \
  "$serve" "${sizes[@]}"
