#!/usr/bin/env bash
# Builds the test guest's initramfs, or a layer to append to it.
#
#   images/build-initramfs.sh SERIES OUT            base image for kernel 6.1, 6.12 or 7.2 (busybox,
#       glibc, modules, init)
#   images/build-initramfs.sh --layer OUT FILE[:DEST]...
#                                                   files alone; DEST is absolute in the guest, by
#                                                   default /app/NAME
#
# The kernel accepts concatenated archives: cat BASE LAYER > IMAGE. They are not compressed: an
# emulated CPU takes a second for 20 MB.
set -euo pipefail
. "$(dirname "$0")/../scripts/lib/common.sh"

tmp=
trap '[ -z "$tmp" ] || rm -rf "$tmp"' EXIT
tmp=$(mktemp -d "${TMPDIR:-/tmp}/initramfs.XXXXXX")

pack() {
  local out=$1
  mkdir -p "$(dirname "$out")"
  (cd "$tmp" && find . -mindepth 1 | sort | "$BUILD/tools/cpio" --quiet -o -H newc -R 0:0) >"$out.$$" # two may make the same
  mv "$out.$$" "$out"
}

# library NAME prints the machine's own copy of a shared library of glibc or gcc.
library() {
  local f
  f=$(ldconfig -p 2>/dev/null | awk -v n="$1" '$1 == n && /x86-64/ {print $NF; exit}')
  [ -n "$f" ] || f=$(gcc -print-file-name="$1")
  [ -f "$f" ] || die "library $1 is missing on this machine: install libc6 and libstdc++6"
  echo "$f"
}

base() {
  local k=$BUILD/kernels/$1 out=$2 l
  [ -f "$k/vmlinuz" ] || die "no kernel $1 under build/kernels: run scripts/setup.sh kernels"
  mkdir -p "$tmp"/{bin,lib/modules,lib64,lib/x86_64-linux-gnu,app,etc}
  cp "$BUILD/tools/busybox" "$tmp/bin/busybox"
  cp "$ROOT/images/init" "$tmp/init"; chmod 755 "$tmp/init"
  cp "$k"/modules/* "$tmp/lib/modules/"
  cp -L "$(library ld-linux-x86-64.so.2)" "$tmp/lib64/ld-linux-x86-64.so.2"
  for l in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libgcc_s.so.1 libstdc++.so.6; do
    cp -L "$(library $l)" "$tmp/lib/x86_64-linux-gnu/$l"
  done
  ln -s busybox "$tmp/bin/sh"
  echo 'root:x:0:0:root:/root:/bin/sh' >"$tmp/etc/passwd"
  pack "$out"
}

layer() {
  local out=$1 a src dest; shift
  for a in "$@"; do
    src=${a%%:*}; dest=/app/$(basename "$src")
    case $a in *:*) dest=${a#*:} ;; esac
    [ -e "$src" ] || die "$src is missing"
    case $dest in /*) ;; *) die "$dest must be absolute" ;; esac
    mkdir -p "$tmp$(dirname "$dest")"
    cp -rL "$src" "$tmp$dest"
  done
  pack "$out"
}

[ -x "$BUILD/tools/cpio" ] || die "build/tools/cpio is missing: run scripts/setup.sh qemu"
case ${1:-} in
  --layer) [ $# -ge 3 ] || die "usage: $0 --layer OUT FILE[:DEST]..."; shift; layer "$@" ;;
  '' | -*) die "usage: $0 SERIES OUT, or $0 --layer OUT FILE[:DEST]..." ;;
  *) [ $# = 2 ] || die "usage: $0 SERIES OUT"; base "$@" ;;
esac
