#!/bin/sh
# The same program with libkvshim.so at places that other interposers stumbled over.
# usage: odd_paths.sh libkvshim.so program
set -eu
library=$(realpath "$1")
program=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# LD_PRELOAD splits at spaces, so a path with one is reached through a link without.
mkdir "$work/with space"
cp "$library" "$work/with space/libkvshim.so"
ln -s "$work/with space" "$work/linked"
echo "in a folder with a space:"
LD_PRELOAD=$work/linked/libkvshim.so "$program"

mkdir "$work/alias"
ln -s "$library" "$work/alias/libkvshim.so"
echo "through a symbolic link:"
LD_PRELOAD=$work/alias/libkvshim.so "$program"

mkdir "$work/gone"
cp "$library" "$work/gone/libkvshim.so"
echo "deleted after it was loaded:"
PREFIX_UNLINK=$work/gone/libkvshim.so LD_PRELOAD=$work/gone/libkvshim.so "$program"
