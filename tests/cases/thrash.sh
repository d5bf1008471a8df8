#!/usr/bin/env bash
# What scripts/thrash.sh says: a cache that does not fit thrashes without advice, is read in place with
# it and as host memory, and one that fits is fetched once.
set -euo pipefail
root=$1
export BUILD_DIR=$2
failed=0

# expect TEXT SECTION PATTERN: a line of the section matches.
expect() {
  if ! awk -v name="-- $2" '$0 == name {on = 1; next} /^-- / {on = 0} on' <<< "$1" | grep -Eq "$3"; then
    echo "FAIL: \"$2\" has no line like: $3"
    failed=1
  fi
}

too_much=$("$root/scripts/thrash.sh" 128 32 160)
echo "$too_much"
none='managed, KVSHIM_ADVICE=none'
expect "$too_much" "$none" '^pass 3  fetched 160 evicted 160 .*thrashes$'
expect "$too_much" 'managed, KVSHIM_ADVICE=device' '^pass 3  fetched 160 evicted 160 .*thrashes$'
expect "$too_much" 'managed, KVSHIM_ADVICE=host' '^pass 3  fetched 0 evicted 0 in-place 160 .*ms$'
expect "$too_much" 'KVSHIM_LARGE=host' '^pass 3  fetched 0 evicted 0 in-place 160 .*ms$'
expect "$too_much" 'KVSHIM_LARGE=vmm' '^refused .*code 2$'

fits=$("$root/scripts/thrash.sh" 256 32 160)
echo "$fits"
expect "$fits" "$none" '^pass 1  fetched 160 evicted 0 '
expect "$fits" "$none" '^pass 3  fetched 0 evicted 0 in-place 0 .*ms$'
expect "$fits" 'KVSHIM_LARGE=vmm' '^pass 3  fetched 0 evicted 0 in-place 0 .*ms$'

# What kvshim says of it: what managed memory costs, once, and a warning when it is more than the GPU.
said() { # MEMORY_MiB [VARIABLE=value ...]
  local memory=$1
  shift
  # shellcheck disable=SC2069 # standard error is what is wanted
  env "$@" LD_LIBRARY_PATH="$BUILD_DIR/tests/sim" LD_PRELOAD="$BUILD_DIR/libkvshim.so" \
    KVSHIM_THRESHOLD=32MiB KVSIM_DEVICES=1 KVSIM_MEMORY="${memory}M" \
    "$BUILD_DIR/examples/oversubscribe" --passes 1 2>&1 > /dev/null
}
# counts WANTED PATTERN TEXT
counts() {
  local found
  found=$(grep -c -- "$2" <<< "$3" || true)
  if ((found != $1)); then
    echo "FAIL: $found lines with \"$2\" instead of $1 in: $3"
    failed=1
  fi
}
cost='managed memory over PCIe' over='are more than the device memory'
text=$(said 256 KVSHIM_LOG=info)
counts 1 "$cost" "$text"
counts 0 "$over" "$text"
text=$(said 128 KVSHIM_LOG=warn)
counts 0 "$cost" "$text"
counts 1 "$over" "$text"
# 100: CPU and GPU share page tables.
text=$(said 128 KVSHIM_LOG=info KVSIM_ATTR=0:100=1)
counts 0 "$cost" "$text"
counts 0 "$over" "$text"
counts 0 "$cost" "$(said 256 KVSHIM_LOG=info KVSHIM_LARGE=host)"
exit $failed
