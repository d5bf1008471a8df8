#!/bin/sh
# Guards of what libkvshim.so promises to every process that preloads it. Each check prints what it
# found and, when it fails, what to do. fails.sh shows that each of them can fail.
# usage: guard.sh CHECK library [project root]
set -eu

# The oldest glibc that the library promises to load on. It stands here only.
glibc_max=${GUARD_GLIBC_MAX:-2.34}
# Bytes of thread-local storage. More than the loader's small reserve for libraries that are loaded
# late makes dlopen of the library fail.
tls_max=64

check=$1
library=$2
root=${3:-.}

for tool in readelf nm; do
  command -v "$tool" >/dev/null || {
    echo "SKIP: $tool (binutils) is not installed"
    exit 77
  }
done
[ -r "$library" ] || {
  echo "$library: no such library"
  exit 2
}

fail() { # what was found, what to do
  echo "FAIL: $1"
  echo "What to do: $2"
  exit 1
}
undefined() { nm -D --undefined-only "$library" | awk '{print $NF}'; }
versions() { readelf -VW "$library" | sed -n '/Version needs/,$p' | grep -o "$1" | sort -uV; }

case $check in
needed)
  # A preload that needs anything else ends every child process with code 127 where it is missing.
  needed=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  echo "needs: $(echo "$needed" | tr '\n' ' ')"
  extra=$(echo "$needed" | grep -v -e '^libc\.so\.6$' -e '^ld-linux' -e '^$' || true)
  [ -z "$extra" ] || fail "also needs: $extra" \
    "find what uses it (nm -D --undefined-only $library) and take the code out, or give it a hidden stand-in in src/base/freestanding.cpp."
  readelf -dW "$library" | grep -qE 'RPATH|RUNPATH' && fail "has a search path (RPATH or RUNPATH)" \
    "remove the link argument; libc needs none."
  ;;
exports)
  # A named version node would interpose nothing.
  readelf -VW "$library" | grep -q 'Version definition' && fail "its exports have versions" \
    "keep the version script anonymous: { global: ...; local: *; };"
  exported=$(nm -D --defined-only "$library" | awk '{print $3}' | sort)
  table=$({
    sed -n 's/^KVSHIM_HOOK(\([A-Za-z0-9_]*\),.*/\1/p' "$root/src/hooks/hooks.def" "$root/src/hooks/nvml.def"
    echo dlsym
    echo dlvsym
    sed 's@/\*.*\*/@@; s@^ \*.*@@; s@//.*@@' "$root/include/kvshim/kvshim.h" |
      grep -o '\bkvshim_[a-z0-9_]* *(' | tr -d ' ('
  } | sort -u)
  echo "$(echo "$exported" | wc -l) exports"
  for name in $exported; do
    echo "$table" | grep -qx "$name" || fail "exports $name, which no table lists" \
      "make it hidden, or list it: a hook in src/hooks/hooks.def, a public function in include/kvshim/kvshim.h. Every unlisted export replaces a function of that name in the program."
  done
  for name in $table; do
    echo "$exported" | grep -qx "$name" || fail "does not export $name" \
      "define it with KVSHIM_HOOK_DEF or default visibility (is it a macro in cuda.h? then #undef it in src/hooks/hook.h); a public function also needs its line in src/hooks/exports.map.in."
  done
  other=$(nm -D --defined-only "$library" | awk '$2 != "T" {print $3}')
  [ -z "$other" ] || fail "exports data or weak symbols: $other" "export functions only."
  ;;
layers)
  # src/README.md: a folder includes only what stands above it.
  layers="kvshim base driver telemetry memory sharing hooks"
  for folder in base driver telemetry memory sharing hooks; do
    [ -d "$root/src/$folder" ] || continue
    allowed=$(echo "$layers" | sed "s/\\(.*$folder\\).*/\\1/; s/ /|/g")
    wrong=$(grep -rnE '^#include "' "$root/src/$folder" | grep -vE "#include \"($allowed)/" || true)
    [ -z "$wrong" ] || fail "src/$folder includes what stands below it: $wrong" \
      "move the code, or hand the value down as an argument; the order is in src/README.md."
  done
  echo "every folder includes only what stands above it"
  ;;
hooks)
  # A wrapper and its line in hooks.def, and the version its name means where addresses do not tell.
  table=$(sed -n 's/^KVSHIM_HOOK(\([A-Za-z0-9_]*\),.*/\1/p' "$root/src/hooks/hooks.def")
  wrappers=$(sed -n 's/^KVSHIM_HOOK_DEF CUresult \([A-Za-z0-9_]*\)(.*/\1/p' "$root"/src/hooks/*.cpp)
  for name in $wrappers; do
    echo "$table" | grep -qx "$name" || fail "wrapper $name has no line in hooks.def" \
      "add the line: without it nothing leads to the wrapper."
  done
  for name in $table; do
    grep -q "{\"$name\", [0-9]*}" "$root/src/hooks/getproc.cpp" || fail "$name has no line in kSince" \
      "add the CUDA version that introduced this entry point to kSince in src/hooks/getproc.cpp (the number in its PFN_ name in cudaTypedefs.h)."
  done
  echo "$(echo "$table" | wc -l) hooks, each with its version"
  ;;
constructors)
  # Code that runs in every process, CUDA or not, before allocators and sanitizers are ready.
  for section in init_array fini_array; do
    bytes=$(readelf -SW "$library" | sed -n "s/.* \.$section  *[A-Z_]*  *[0-9a-f]* [0-9a-f]* \([0-9a-f]*\) .*/\1/p")
    count=$((0x${bytes:-0} / 8))
    echo ".$section: $count"
    # One each comes from the compiler's start files (frame_dummy, __do_global_dtors_aux).
    [ "$count" -le 1 ] || fail ".$section holds $count entries instead of the compiler's one" \
      "make the static object constinit and trivially destructible, or build it on first use. On aarch64 compile with -mno-outline-atomics."
  done
  own=$(nm "$library" 2>/dev/null | grep -E '_GLOBAL__sub_I|_GLOBAL__I_|init_have_lse_atomics' || true)
  [ -z "$own" ] || fail "has start-up code: $own" \
    "make the static object constinit, or build it on first use."
  readelf -SW "$library" | grep -qE '\.(ctors|preinit_array)' && fail "has a .ctors or .preinit_array" \
    "remove it."
  # (__cxa_atexit itself may be there: it is what atexit(3) becomes, for the summary.)
  undefined | grep -qE '^__cxa_thread_atexit' && fail "registers destructors of thread-local objects" \
    "make the object trivially destructible: threads of the program may end after our code is gone."
  ;;
binding)
  # A pointer to one of our own exports must be ours: through the loader it could become another
  # preloaded library's, which calls "the real one", which is that pointer again.
  exported=$(nm -D --defined-only "$library" | awk '{print $3}')
  foreign=$(readelf -rW "$library" | awk 'NF >= 5 && $3 ~ /^R_/ {print $5}' | sort -u |
    grep -Fx "$exported" || true)
  [ -z "$foreign" ] || fail "leaves its own exports to the loader: $(echo "$foreign" | tr '\n' ' ')" \
    "link with -Wl,-Bsymbolic-functions."
  ;;
lookups)
  # dlsym from anywhere else would meet kvshim's own thunk with kvshim as the caller.
  undefined | grep -E '^dlv?sym(@|$)' && fail "refers to dlsym of the C library" \
    "call kvshim::driver::real_dlsym or driver::symbol (src/driver/libcuda.h)."
  found=$(find "$root/src" -name '*.cpp' -o -name '*.h' | grep -v '/src/driver/' | sort |
    while read -r file; do
      sed 's@//.*@@' "$file" | grep -nE '(^|[^A-Za-z0-9_])dlv?sym *\(' | sed "s@^@$file:@"
    done)
  [ -z "$found" ] || fail "bare dlsym outside src/driver:
$found" "call kvshim::driver::real_dlsym or driver::symbol (src/driver/libcuda.h)."
  ;;
private)
  private=$(readelf -sW --dyn-syms "$library" | grep GLIBC_PRIVATE || true)
  [ -z "$private" ] || fail "uses internals of glibc: $private" \
    "find a public function; GLIBC_PRIVATE names change with every release."
  ;;
glibc)
  highest=$(versions 'GLIBC_[0-9.]*' | tail -n 1)
  echo "highest glibc version needed: ${highest:-none} (promised: GLIBC_$glibc_max)"
  last=$(printf '%s\nGLIBC_%s\n' "${highest:-GLIBC_2.0}" "$glibc_max" | sort -V | tail -n 1)
  [ "$last" = "GLIBC_$glibc_max" ] || fail \
    "needs $highest: $(readelf --dyn-syms -W "$library" | grep -o "[a-z_0-9A-Z]*@$highest" | tr '\n' ' ')" \
    "use an older function, or bind to its older version with .symver; raising glibc_max in $0 drops systems."
  ;;
tls)
  bytes=$(readelf -lW "$library" | awk '$1 == "TLS" {print $6}')
  echo "thread-local bytes: $((${bytes:-0}))"
  [ "$((${bytes:-0}))" -lt "$tls_max" ] || fail "uses $((bytes)) bytes of thread-local storage" \
    "keep it under $tls_max: the reserve for libraries loaded late is small and shared."
  readelf -rW "$library" | grep -E 'DTPMOD|DTPOFF|TLSDESC' && fail "thread-local storage is not initial-exec" \
    "compile with -ftls-model=initial-exec; the general model allocates on first use in each thread."
  ;;
runtime)
  cxx=$(versions '\(GLIBCXX\|CXXABI\|GCC\)_[0-9.]*')
  [ -z "$cxx" ] || fail "needs a C++ runtime: $(echo "$cxx" | tr '\n' ' ')" \
    "see which function wants it with nm -D -C --undefined-only $library; the library is C++ without a runtime (src/base/freestanding.cpp)."
  symbols=$(undefined | grep -E '^(_Z|__cxa_(throw|allocate_exception|begin_catch|guard)|__gxx_|_Unwind)' || true)
  [ -z "$symbols" ] || fail "refers to: $symbols" \
    "remove the exception, allocation or function-local static that wants it."
  ;;
text)
  readelf -dW "$library" | grep -q TEXTREL && fail "has text relocations" \
    "compile everything with -fPIC; in assembly reach data through the GOT or hidden symbols."
  readelf -lW "$library" | awk '$1 == "GNU_STACK" {found = 1; exit $7 ~ /E/ ? 1 : 0} END {if (!found) exit 1}' ||
    fail "asks for an executable stack" \
      "end each assembly file with a .note.GNU-stack section."
  ;;
*)
  echo "guard.sh: no check called '$check'"
  exit 2
  ;;
esac
echo "ok: $check"
