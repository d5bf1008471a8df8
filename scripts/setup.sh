#!/usr/bin/env bash
# Installs what building and testing kvshim needs and this machine lacks (Debian, Ubuntu), and finds
# the CUDA headers. Run it, or source it from a script: then CUDA_HOME is set for the build.
#
#   scripts/setup.sh [tests]   everything the build and the tests need
#   scripts/setup.sh build     what the build alone needs
#
# As root or with sudo. What is there already is left alone, and nothing is removed.
set -euo pipefail

# Oldest CUDA headers that the sources compile with; meson.build says the same.
kvshim_cuda_least=12000

kvshim_say() { printf 'setup: %s\n' "$*"; }
kvshim_fail() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

kvshim_has_command() { command -v "$1" > /dev/null 2>&1; }
kvshim_has_module() { kvshim_has_command pkg-config && pkg-config --exists "$1"; }

kvshim_missing_packages() {
  kvshim_has_command g++ || echo g++
  kvshim_has_command meson || echo meson
  kvshim_has_command ninja || echo ninja-build
  kvshim_has_command pkg-config || echo pkg-config
  kvshim_has_command python3 || echo python3
  kvshim_has_command readelf || echo binutils
  kvshim_has_module fmt || echo libfmt-dev
  kvshim_has_module catch2 || kvshim_has_module catch2-with-main || echo catch2
}

# Tests that lack these are skipped: namespaces, and the aarch64 code on an x86-64 machine.
kvshim_optional_packages() {
  kvshim_has_command unshare || echo util-linux
  kvshim_has_command ps || echo procps
  if [[ $(uname -m) == x86_64 ]]; then
    kvshim_has_command aarch64-linux-gnu-g++ || echo g++-aarch64-linux-gnu
    kvshim_has_command qemu-aarch64 || echo qemu-user
  fi
}

kvshim_apt_updated=no
kvshim_apt() {
  local -a as_root=()
  kvshim_has_command apt-get ||
    kvshim_fail "this is not Debian or Ubuntu; install by hand what these packages hold: $*"
  if [[ $(id -u) != 0 ]]; then
    kvshim_has_command sudo ||
      kvshim_fail "missing: $*" "run as root, or: apt-get install $*"
    as_root=(sudo)
  fi
  if [[ $kvshim_apt_updated == no ]]; then
    "${as_root[@]}" apt-get update -qq
    kvshim_apt_updated=yes
  fi
  kvshim_say "installing $*"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends "$@" > /dev/null
}

# The version in a cuda.h, as 12030; 0 if there is none.
kvshim_cuda_version() {
  local header=$1/include/cuda.h version=
  version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$header" 2> /dev/null | head -n 1)
  echo "${version:-0}"
}

# Sets CUDA_HOME to the first place with headers that are new enough. In /usr/include the compiler
# finds them by itself (and naming that folder again would break the C++ headers).
kvshim_find_cuda() {
  for kvshim_cuda in "${CUDA_HOME:-}" /usr/local/cuda /usr; do
    [[ -n $kvshim_cuda && $(kvshim_cuda_version "$kvshim_cuda") -ge $kvshim_cuda_least ]] || continue
    if [[ $kvshim_cuda == /usr ]]; then
      unset CUDA_HOME
    else
      export CUDA_HOME=$kvshim_cuda
    fi
    return 0
  done
  return 1
}

kvshim_setup() {
  local -a missing=()
  mapfile -t missing < <(kvshim_missing_packages)
  if ((${#missing[@]} > 0)); then
    kvshim_apt "${missing[@]}"
  fi
  if [[ $1 == tests ]]; then
    mapfile -t missing < <(kvshim_optional_packages)
    if ((${#missing[@]} > 0)) && ! (kvshim_apt "${missing[@]}"); then
      kvshim_say "going on without ${missing[*]}: the tests that need them are skipped"
    fi
  fi

  if ! kvshim_find_cuda; then
    kvshim_say "no CUDA headers in \$CUDA_HOME, /usr/local/cuda or /usr/include"
    if kvshim_has_command apt-get && [[ $(apt-cache policy nvidia-cuda-dev) == *Candidate:\ [0-9]* ]]
    then
      kvshim_apt nvidia-cuda-dev
    fi
    kvshim_find_cuda || kvshim_fail \
      "CUDA headers (cuda.h, 12.0 or newer) are needed to build; no CUDA library and no GPU." \
      "Install a CUDA toolkit, or its package cuda-cudart-dev alone, from NVIDIA's repository for" \
      "this system, or nvidia-cuda-dev (Debian: component non-free; Ubuntu: multiverse)." \
      "If they are at another place: CUDA_HOME=/that/place (with include/cuda.h in it)."
  fi
  kvshim_say "CUDA headers: $kvshim_cuda/include ($(kvshim_cuda_version "$kvshim_cuda"))"
}

kvshim_setup "${1:-tests}"
