#!/bin/sh
# Runs a program under kvshim with the simulated driver's log in a file of its own.
# usage: with_log.sh libkvshim.so program [arguments...]
set -eu
library=$(realpath "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
result=0
KVSIM_LOG=$work/log LD_PRELOAD=$library "$@" || result=$?
if [ "$result" != 0 ] && [ "$result" != 77 ] && [ -f "$work/log" ]; then
  echo "the driver's last calls:"
  tail -n 20 "$work/log"
fi
exit "$result"
