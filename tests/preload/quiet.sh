#!/bin/sh
# Processes that have nothing to do with CUDA: they start, say nothing, leave nothing and end as
# without kvshim, on a machine without any CUDA library.
# usage: quiet.sh libkvshim.so
set -eu
library=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# name, expected exit code, command...
check() {
  name=$1 want=$2
  shift 2
  got=0
  (cd "$work" && "$@") >"$work/out" 2>"$work/err" || got=$?
  if [ "$got" != "$want" ]; then
    echo "$name: exit code $got instead of $want"
    cat "$work/err"
    failed=1
  elif [ -s "$work/err" ]; then
    echo "$name: wrote to standard error:"
    cat "$work/err"
    failed=1
  fi
  rm -f "$work/out" "$work/err"
  if [ -n "$(ls -A "$work")" ]; then
    echo "$name: left files behind:"
    ls -A "$work"
    failed=1
  fi
}

check "nothing in the environment" 0 env -i LD_PRELOAD="$library" /bin/true
check "exit codes pass" 1 env -i LD_PRELOAD="$library" /bin/false
check "every symbol bound at once" 0 env -i LD_BIND_NOW=1 LD_PRELOAD="$library" /bin/true
check "a shell and its children" 7 env -i PATH="$PATH" LD_PRELOAD="$library" \
  /bin/sh -c 'for i in 1 2 3; do /bin/true; done; exit 7'
check "log level info" 0 env -i KVSHIM_LOG=info LD_PRELOAD="$library" /bin/true
check "debug of the loader finds no error" 0 env -i LD_WARN=1 LD_PRELOAD="$library" /bin/true
python=$(command -v python3 || true)
if [ -n "$python" ]; then
  check "python with ctypes" 0 env -i LD_PRELOAD="$library" "$python" -c \
    'import ctypes; assert not hasattr(ctypes.CDLL(None), "cuMemAlloc_v2")'
fi
[ "$failed" = 0 ] || {
  echo "What to do: the library must do nothing before the first CUDA call, and need libc only."
  exit 1
}
echo ok
