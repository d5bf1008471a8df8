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
exit $failed
