#!/usr/bin/env bash
# Whether QEMU's emulator by itself loses a write of the guest's when a VM moves: nothing of Causeway takes part, and the VM has no device but a serial port.
#
#   scripts/emulator.sh [--moves N] [--load L] [--kernel SERIES]
#
# A guest whose processes write their memory round after round, and look whether it is what they left there, goes N times (100) to and fro between two QEMUs, while L
# processes (24) compute beside it: a thread of the emulator has to be interrupted at the wrong moment. Says each move, and each page that was torn; the status is 1 if one was.
# About 20 s a move on 2 processors. Tests of moves that fail by one page of a program's own memory (@unlike of guest/tests/rounds) are to be held against it.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

moves=100 load=24 kernel=6.12
while [ $# -gt 0 ]; do
  case $1 in
    --moves) moves=$2; shift 2 ;;
    --load) load=$2; shift 2 ;;
    --kernel) kernel=$2; shift 2 ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
"$ROOT/scripts/setup.sh" qemu
"$ROOT/scripts/setup.sh" kernels "$kernel"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-emulator.XXXXXX")
on_exit 'rm -rf "$tmp"'
gcc -O2 -std=gnu11 -static "$ROOT/scripts/emulator/writer.c" -o "$tmp/init"
"$ROOT/images/build-initramfs.sh" --layer "$tmp/initrd" "$tmp/init:/init"
python3 -u "$ROOT/scripts/emulator/moves.py" "$tmp" "$moves" "$load" "$tcg_cpu" "$BUILD/kernels/$kernel/vmlinuz" "$guest_append"
