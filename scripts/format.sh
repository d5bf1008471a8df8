#!/usr/bin/env bash
# Formats the C and C++ sources with clang-format (.clang-format; written for version 14).
#
#   scripts/format.sh            rewrites what is off
#   scripts/format.sh --check    changes nothing; exit 1 and the places if something is off
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

tool=
for name in clang-format-14 clang-format; do
  if command -v "$name" > /dev/null; then
    tool=$name
    break
  fi
done
if [[ -z $tool ]]; then
  echo "format: clang-format is missing; install clang-format-14 (or clang-format)" >&2
  exit 1
fi

mapfile -d '' files < <(
  find include src tests examples \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) -print0 | sort -z
)
case ${1:-} in
  --check)
    if ! "$tool" --dry-run --Werror "${files[@]}"; then
      echo "format: run scripts/format.sh" >&2
      exit 1
    fi
    ;;
  '') "$tool" -i "${files[@]}" ;;
  *)
    echo "usage: scripts/format.sh [--check]" >&2
    exit 2
    ;;
esac
