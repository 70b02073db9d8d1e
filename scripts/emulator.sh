#!/usr/bin/env bash
# Whether QEMU's emulator by itself loses a write of the guest's when a VM moves: nothing of
# Causeway takes part, and the VM has no device but a serial port.
#
#   scripts/emulator.sh [--moves N] [--load L] [--wide] [--kernel SERIES]
#
# A guest whose processes write memory of theirs, rest, and write again is sent N times (100), live,
# and goes on where it is; L processes (24) compute beside it: a thread of the emulator has to be
# interrupted at the wrong moment. Once it stands all of its memory is held against what was sent.
# Says each move, and each page that differs; the status is 1 if one does. --wide has QEMU trace
# memory_notdirty_set_dirty, to nowhere: that takes a microsecond or two in the very place where the
# emulator has looked and not yet acted (docs/RATIONALE.md, "What an emulated guest may lose"), and
# makes it likelier. About 2 s a move on 2 processors.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

moves=100 load=24 kernel=6.12 wide=
while [ $# -gt 0 ]; do
  case $1 in
    --moves) moves=$2; shift 2 ;;
    --load) load=$2; shift 2 ;;
    --wide) wide=--wide; shift ;;
    --kernel) kernel=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
"$ROOT/scripts/setup.sh" qemu
"$ROOT/scripts/setup.sh" kernels "$kernel"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-emulator.XXXXXX")
on_exit 'rm -rf "$tmp"'
gcc -O2 -std=gnu11 -static "$ROOT/scripts/emulator/writer.c" -o "$tmp/init"
"$ROOT/images/build-initramfs.sh" --layer "$tmp/initrd" "$tmp/init:/init"
python3 -u "$ROOT/scripts/emulator/moves.py" $wide "$tmp" "$moves" "$load" "$tcg_cpu" "$BUILD/kernels/$kernel/vmlinuz" "$guest_append"
