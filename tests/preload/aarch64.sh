#!/bin/sh
# The lookup of the other architecture: builds it with the cross compiler, without and with
# optimisation, and runs the lookup tests under qemu-aarch64. Skipped aloud where these are missing.
# usage: aarch64.sh source-root
set -eu
root=$1
cxx=aarch64-linux-gnu-g++
sysroot=/usr/aarch64-linux-gnu
for tool in "$cxx" qemu-aarch64; do
  command -v "$tool" >/dev/null || {
    echo "SKIP: $tool is not installed; the aarch64 lookup was not tested"
    exit 77
  }
done
here=$root/tests/preload
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

build() { # output, flags..., sources...
  output=$1
  shift
  "$cxx" -std=c++20 -Wall -Wextra -fno-exceptions -I "$root/src" \
    "-DSTUB_CUDA=\"$work/libcuda.so.1\"" "-DOTHER_LIBRARY=\"$work/libother.so\"" \
    "-DUNWIND_LIBRARY=\"$work/libunwind_library.so\"" -o "$output" "$@"
}
run() { # library, program, arguments...
  library=$1
  program=$2
  shift 2
  echo "$program $* with $library:"
  timeout 60 qemu-aarch64 -L "$sysroot" -E LD_PRELOAD="$work/$library" -E LD_LIBRARY_PATH="$work" \
    "./$program" "$@"
}

build libcuda.so.1 -shared -fPIC -Wl,-soname,libcuda.so.1 "$here/stub/driver.cpp"
build libother.so -shared -fPIC -DSTUB_ANSWER=77 "$here/stub/driver.cpp"
# The stub's unwinding library has the same driver function, behind a resolver.
build libunwind_library.so -shared -fPIC -O1 "$here/unwind_library.cpp"
for level in O0 O2; do
  # -mno-outline-atomics as in the library itself: libgcc's helpers bring a constructor.
  build libkvshim-$level.so -shared -fPIC -$level -fvisibility=hidden -fno-rtti \
    -mno-outline-atomics -Wl,-Bsymbolic-functions "$here/mini.cpp" "$root/src/hooks/lookup.cpp" \
    "$root/src/driver/libcuda.cpp" "$root/src/hooks/dlsym_aarch64.S"
done
for flags in "-O0" "-O2 -flto"; do
  # shellcheck disable=SC2086  # the flags are words
  {
    build libchain_a.so -shared -fPIC $flags "$here/chain_a.cpp"
    build libchain_b.so -shared -fPIC $flags "$here/chain_b.cpp"
    build chain $flags "$here/chain.cpp" -L. -lchain_a -lchain_b
  }
  echo "libraries built with $flags"
  run libkvshim-O0.so chain
  run libkvshim-O2.so chain
done
for name in lookup dlerror versions; do
  build "$name" -O1 "$here/$name.cpp"
  run libkvshim-O0.so "$name"
  run libkvshim-O2.so "$name"
done
build unwind -O1 -rdynamic "$here/unwind.cpp"
run libkvshim-O0.so unwind
run libkvshim-O2.so unwind

# A second interposer that gets the next dlsym by version, before and behind kvshim.
build libinterposer.so -shared -fPIC -O1 -fno-optimize-sibling-calls "$here/interposer.cpp"
build interposed -O1 "$here/interposed.cpp" -L. -linterposer
for level in O0 O2; do
  for place in before after; do
    both=libinterposer.so:$work/libkvshim-$level.so
    [ "$place" = before ] || both=libkvshim-$level.so:$work/libinterposer.so
    run "$both" interposed "$place"
  done
done
