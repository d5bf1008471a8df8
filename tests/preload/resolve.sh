#!/bin/sh
# cuGetProcAddress answers with the same functions bare, preloaded and disabled.
# usage: resolve.sh libkvshim.so program
set -eu
library=$(realpath "$1")
program=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$program" >"$work/bare" || exit $?
LD_PRELOAD=$library "$program" >"$work/preloaded"
KVSHIM_DISABLE=1 LD_PRELOAD=$library "$program" >"$work/disabled"
for mode in preloaded disabled; do
  diff "$work/bare" "$work/$mode" || {
    echo "kvshim ($mode) answers other functions than the driver (< driver, > kvshim)."
    echo "What to do: the driver is asked first; only its exact answer may be exchanged (getproc.cpp)."
    exit 1
  }
done
echo "ok, $(wc -l <"$work/bare") answers"
