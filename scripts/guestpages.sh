#!/usr/bin/env bash
# What a worker could be given of a VM's memory instead of the descriptor of all of it, on this
# kernel and with this machine's GPU if it has one: does a mapping made by another process of the
# same address space hold, does a dma-buf (udmabuf), does cuMemHostRegister take them.
#
#   scripts/guestpages.sh [--kernels "6.1 6.12 7.2"]
#
# Takes seconds. With --kernels the same (but for the GPU) in emulated VMs with the kernels that
# scripts/setup.sh kernels brings, whose times mean nothing. docs/SECURITY.md and docs/RATIONALE.md
# have the answers.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

kernels=
while [ $# -gt 0 ]; do
  case $1 in
    --kernels) kernels=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1" ;;
  esac
done
src=$ROOT/scripts/guestpages/guestpages.c out=$BUILD/obj/guestpages
mkdir -p "$out"
flags=(-std=gnu11 -O1 -Wall -Wextra -Werror)
program=$BUILD/bin/guestpages # of a pack, for machines without a compiler
if have gcc; then
  program=$out/guestpages
  gcc "${flags[@]}" -o "$program" "$src" -ldl
fi
"$program"

[ -n "$kernels" ] || exit 0
gcc "${flags[@]}" -DNO_CUDA -static -o "$out/init" "$src"
"$ROOT/images/build-initramfs.sh" --layer "$out/initrd" "$out/init:/init"
for k in $kernels; do
  [ -f "$BUILD/kernels/$k/vmlinuz" ] || die "no kernel $k under build/kernels: run scripts/setup.sh kernels"
  echo
  timeout 300 qemu-system-x86_64 -accel tcg -cpu "$tcg_cpu" -m 512 -smp 2 -kernel "$BUILD/kernels/$k/vmlinuz" -initrd "$out/initrd" \
    -append "console=ttyS0 quiet panic=-1" -display none -no-reboot -nodefaults -serial stdio </dev/null | tr -d '\r' | sed -n 's/^.*\(kernel   *[0-9]\)/\1/; /^kernel /,$p' | grep -v '^$'
done
