#!/usr/bin/env bash
# Writes the table of docs/compatibility.md from the contract suite, which knows every check that may
# differ when preloaded, and why. The text above the marker line is written by hand and kept.
#
#   scripts/compatibility-doc.sh CONTRACT_PROGRAM           rewrites the table
#   scripts/compatibility-doc.sh --check CONTRACT_PROGRAM   fails when it is stale
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
document=$root/docs/compatibility.md
marker='<!-- below: made by scripts/compatibility-doc.sh -->'

check=no
if [[ ${1:-} == --check ]]; then
  check=yes
  shift
fi
if (($# != 1)); then
  echo "usage: scripts/compatibility-doc.sh [--check] CONTRACT_PROGRAM" >&2
  exit 2
fi

# Checks that run once for each block size are one row.
rows() {
  "$1" --list | awk -F '\t' '
    $3 ~ /^(differs|open): / {
      sub(/ \((small|medium|large) block\)$/, "", $2)
      key = $1 FS $2
      if (key in seen) next
      seen[key] = 1
      word = $3; sub(/:.*/, "", word)
      why = $3; sub(/^[a-z]+: /, "", why)
      printf "| %s | %s | %s | %s |\n", word, $1, $2, why
    }'
}

text=$(awk -v marker="$marker" '{ print } $0 == marker { exit }' "$document")
if [[ $text != *"$marker" ]]; then
  echo "docs/compatibility.md has lost its marker line: $marker" >&2
  exit 1
fi
made=$(printf '%s\n\n| | group | check | why |\n|---|---|---|---|\n%s' "$text" "$(rows "$1")")
if [[ $check == no ]]; then
  printf '%s\n' "$made" > "$document"
elif ! diff -u "$document" <(printf '%s\n' "$made"); then
  echo "docs/compatibility.md is stale. Run: scripts/compatibility-doc.sh build/tests/contract/contract"
  exit 1
fi
