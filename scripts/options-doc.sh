#!/usr/bin/env bash
# Writes the option table into docs/options.md, from the library's own table.
#
#   scripts/options-doc.sh            writes it (builds build/tests/unit/options_doc first)
#   scripts/options-doc.sh --check    changes nothing; exit 1 if the file is stale
#   a last argument names a program that is built already
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
page=$root/docs/options.md

check=no
if [[ ${1:-} == --check ]]; then
  check=yes
  shift
fi
program=${1:-}
if [[ -z $program ]]; then
  [[ -f $root/build/build.ninja ]] || meson setup "$root/build" "$root"
  ninja -C "$root/build" tests/unit/options_doc
  program=$root/build/tests/unit/options_doc
fi

fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
table=$("$program") awk '
  /^<!-- options: begin -->$/ { print; print ENVIRON["table"]; inside = 1; next }
  /^<!-- options: end -->$/ { inside = 0 }
  !inside { print }
' "$page" > "$fresh"

if cmp -s "$fresh" "$page"; then
  exit 0
fi
if [[ $check == yes ]]; then
  diff -u "$page" "$fresh" || true
  echo "docs/options.md does not agree with src/base/options.def. Run scripts/options-doc.sh" >&2
  exit 1
fi
cat "$fresh" > "$page"
echo "docs/options.md written"
