#!/bin/sh
# The entrypoint of a container image with kvshim in it: puts libkvshim.so into LD_PRELOAD and
# becomes the command (exec: the command is PID 1 with its own signals and exit status).
#
#   kvshim-entrypoint.sh COMMAND [ARGUMENT...]
#
# KVSHIM_LIB       the library to take; otherwise it is looked for beside this script and in the
#                  usual places, for this machine's architecture
# KVSHIM_REQUIRE   1: without a usable library the command is not started, exit status 78;
#                  otherwise one line says so and the command runs without kvshim
#
# All other KVSHIM_* variables are the library's and are passed on (docs/options.md). The names of
# this script's own variables begin with kvshim_, so that none of the command's is changed.
set -eu

kvshim_say() { printf 'kvshim-entrypoint: %s\n' "$*" >&2; }

if [ $# -eq 0 ]; then
  echo 'usage: kvshim-entrypoint.sh COMMAND [ARGUMENT...]' >&2
  exit 64
fi

kvshim_required=no
case ${KVSHIM_REQUIRE:-0} in
  0) ;;
  1) kvshim_required=yes ;;
  *)
    kvshim_say "KVSHIM_REQUIRE=\"$KVSHIM_REQUIRE\" is neither 0 nor 1; taken as 1"
    kvshim_required=yes
    ;;
esac

kvshim_arch=$(uname -m)
if [ "$kvshim_arch" = arm64 ]; then kvshim_arch=aarch64; fi

# kvshim_library: the library, or empty with the reason in kvshim_problem.
kvshim_library=
kvshim_problem=

kvshim_find() {
  # One that is preloaded already is the one: two copies would hook each other.
  kvshim_preloaded=$(printf '%s' "${LD_PRELOAD:-}" | tr ' ' '\n' | tr ':' '\n' |
    grep -E '(^|/)libkvshim\.so$' | head -n 1) || true
  if [ -n "$kvshim_preloaded" ]; then
    kvshim_library=$kvshim_preloaded
    if [ -n "${KVSHIM_LIB:-}" ] && [ "$KVSHIM_LIB" != "$kvshim_preloaded" ]; then
      kvshim_say "KVSHIM_LIB=$KVSHIM_LIB is not used: LD_PRELOAD names $kvshim_preloaded already"
    fi
    return
  fi
  if [ -n "${KVSHIM_LIB:-}" ]; then
    case $KVSHIM_LIB in
      /*) kvshim_library=$KVSHIM_LIB ;;
      *) kvshim_library=$PWD/$KVSHIM_LIB ;; # the command may change the directory
    esac
    return
  fi
  kvshim_here=$(dirname "$(readlink -f "$0" 2> /dev/null || printf '%s' "$0")")
  for kvshim_candidate in \
    "$kvshim_here/libkvshim.so" \
    "$kvshim_here/../lib/kvshim/$kvshim_arch/libkvshim.so" \
    "/usr/local/lib/kvshim/$kvshim_arch/libkvshim.so" \
    /usr/local/lib/kvshim/libkvshim.so \
    /usr/local/lib/libkvshim.so \
    "/usr/local/lib/$kvshim_arch-linux-gnu/libkvshim.so" \
    "/usr/lib/$kvshim_arch-linux-gnu/libkvshim.so" \
    /usr/lib64/libkvshim.so \
    /usr/lib/libkvshim.so; do
    if [ -f "$kvshim_candidate" ]; then
      kvshim_library=$(readlink -f "$kvshim_candidate" 2> /dev/null ||
        printf '%s' "$kvshim_candidate")
      return
    fi
  done
  kvshim_problem="no libkvshim.so for $kvshim_arch beside this script, in /usr/local/lib/kvshim or in the system's library folders; set KVSHIM_LIB to its path"
}

# The machine number in an ELF header, as "62 0"; empty where it cannot be read.
kvshim_machine_of() {
  od -An -tu1 -j18 -N2 "$1" 2> /dev/null | tr -s ' ' | sed 's/^ //' || true
}

# Sets kvshim_problem if ld.so will not take the library. Asking ld.so itself finds everything: the
# wrong architecture, a libc that is too old, a library that it needs and that is not there.
kvshim_check() {
  case $kvshim_library in
    *[[:space:]:]*)
      kvshim_problem="the path \"$kvshim_library\" has a blank or a colon in it, and LD_PRELOAD cannot hold such a path; move the library"
      return
      ;;
  esac
  case $kvshim_library in
    */*)
      if [ ! -e "$kvshim_library" ]; then
        kvshim_problem="$kvshim_library does not exist"
        return
      fi
      if [ ! -f "$kvshim_library" ] || [ ! -r "$kvshim_library" ]; then
        kvshim_problem="$kvshim_library is not a file that this user may read"
        return
      fi
      ;;
  esac
  kvshim_status=0
  kvshim_answer=$(LD_PRELOAD=$kvshim_library /bin/sh -c : 2>&1) || kvshim_status=$?
  case $kvshim_status:$kvshim_answer in
    0:*"cannot be preloaded"*) ;;
    0:*)
      # It loads; is it kvshim? A name that ld.so searches itself cannot be looked into.
      case $kvshim_library in
        */*) grep -q kvshim_version "$kvshim_library" || kvshim_problem="$kvshim_library is not kvshim" ;;
      esac
      return
      ;;
  esac
  case $kvshim_arch:$(kvshim_machine_of "$kvshim_library") in
    x86_64:'183 0' | aarch64:'62 0')
      kvshim_problem="$kvshim_library is for another architecture than this machine's ($kvshim_arch)"
      ;;
    *)
      kvshim_answer=$(printf '%s\n' "$kvshim_answer" | head -n 1)
      kvshim_problem="$kvshim_library cannot be loaded: ${kvshim_answer:-/bin/sh ended with status $kvshim_status}"
      ;;
  esac
}

kvshim_find
if [ -z "$kvshim_problem" ]; then kvshim_check; fi

if [ -n "$kvshim_problem" ]; then
  if [ $kvshim_required = yes ]; then
    kvshim_say "$kvshim_problem (KVSHIM_REQUIRE=1: not starting $1)"
    exit 78
  fi
  kvshim_say "$kvshim_problem (running $1 without kvshim)"
elif [ -z "$kvshim_preloaded" ]; then
  LD_PRELOAD=$kvshim_library${LD_PRELOAD:+:$LD_PRELOAD}
  export LD_PRELOAD
fi

exec "$@"
