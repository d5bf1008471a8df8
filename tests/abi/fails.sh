#!/bin/sh
# Shows that each guard can fail: builds one bad library per promise and expects the guard's FAIL with
# its advice. A guard that cannot fail guards nothing.
# usage: fails.sh
set -eu
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cxx=${CXX:-c++}
command -v "${cxx%% *}" >/dev/null || {
  echo "SKIP: no C++ compiler ($cxx)"
  exit 77
}
# The source check needs a source tree: one file with a bare lookup.
mkdir -p "$work/src/hooks" "$work/include/kvshim"
echo 'KVSHIM_HOOK(cuMemAlloc_v2, (int out), (out))' >"$work/src/hooks/hooks.def"
: >"$work/src/hooks/nvml.def"
echo 'const char* kvshim_version(void);' >"$work/include/kvshim/kvshim.h"
failed=0

expect_fail() { # check, macro, what the guard must say, flags...
  check=$1 macro=$2 says=$3
  shift 3
  library=$work/lib$macro.so
  # shellcheck disable=SC2086  # the compiler may have arguments
  $cxx -std=c++20 -shared -fPIC -O1 "-D$macro" -o "$library" "$here/bad.cpp" "$@"
  result=0
  "$here/guard.sh" "$check" "$library" "$work" >"$work/said" 2>&1 || result=$?
  if [ "$result" != 1 ] || ! grep -q "FAIL: .*$says" "$work/said" || ! grep -q 'What to do: ' "$work/said"; then
    echo "guard '$check' did not refuse $macro (exit code $result):"
    cat "$work/said"
    failed=1
  fi
}

expect_fail needed BAD_NEEDED 'libstdc++'
expect_fail exports BAD_EXPORTS 'log_line'
expect_fail exports BAD_MISSING 'does not export cuMemAlloc_v2'
echo 'NODE { global: cuMemAlloc_v2; dlsym; dlvsym; kvshim_version; local: *; };' >"$work/map"
expect_fail exports BAD_VERSIONED 'exports have versions' "-Wl,--version-script=$work/map"
expect_fail constructors BAD_CONSTRUCTORS 'init_array'
expect_fail binding BAD_BINDING 'log_line'
expect_fail lookups BAD_LOOKUPS 'dlsym'
expect_fail private BAD_PRIVATE 'internals'
GUARD_GLIBC_MAX=2.1 expect_fail glibc BAD_GLIBC 'needs GLIBC_'
expect_fail tls BAD_TLS 'thread-local storage' -ftls-model=initial-exec
expect_fail tls BAD_TLS_MODEL 'not initial-exec' -ftls-model=global-dynamic
expect_fail runtime BAD_RUNTIME 'C++ runtime'
expect_fail text BAD_TEXT 'text relocations' -Wl,-z,notext
expect_fail text BAD_STACK 'executable stack' -Wl,-z,execstack
# The source half of "lookups", with a library that is fine.
echo 'void* f() { return dlsym(0, "x"); }' >"$work/src/hooks/some.cpp"
expect_fail lookups BAD_SOURCE 'outside src/driver'

# The guards that read sources only.
mkdir -p "$work/src/base"
echo '#include "hooks/hook.h"' >"$work/src/base/some.h"
expect_fail layers BAD_LAYERS 'src/base includes'
rm "$work/src/base/some.h"
: >"$work/src/hooks/getproc.cpp"
expect_fail hooks BAD_SINCE 'no line in kSince'
echo '{"cuMemAlloc_v2", 3020},' >"$work/src/hooks/getproc.cpp"
echo 'KVSHIM_HOOK_DEF CUresult cuMemFree_v2(int ptr) {' >"$work/src/hooks/some.cpp"
expect_fail hooks BAD_WRAPPER 'has no line in hooks.def'
rm "$work/src/hooks/some.cpp"

# And not everything is refused: the same file without a macro, and only listed names.
for check in needed constructors binding private tls runtime text; do
  "$here/guard.sh" "$check" "$work/libBAD_EXPORTS.so" "$work" >"$work/said" 2>&1 || {
    echo "guard '$check' refuses a library that keeps its promise:"
    cat "$work/said"
    failed=1
  }
done
[ "$failed" = 0 ] || {
  echo "What to do: repair the guard in guard.sh; see its check."
  exit 1
}
echo ok
