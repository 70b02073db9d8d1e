#!/usr/bin/env bash
# A VM moves between two QEMUs while its program's bytes go to a GPU server by RDMA, there and back,
# without hardware: all of it in one VM with soft RoCE (scripts/rdma.sh), in which the VM that moves
# is another, with a causewayd for each of its hosts and one for the server.
#
#   scripts/rdma-move.sh [MODE]    MODE: of guest/tests/rounds, what runs in it (default: streams)
#   scripts/rdma-move.sh --pack    what that takes, into build/rdma-move.tar.xz: for a machine with
#                                  more processors, which needs no network and no QEMU then
#
# The inner VM's processor is emulated twice, so it has booted before: it is saved here and goes on
# there, and is given its vGPU while it runs. One line for each check, with the seconds that it took
# by the clock of the outer VM; the status is 0 if every check passed. scripts/remote.sh moverdma
# shows the same with a processor that is emulated once, by a libibverbs of the tests. It needs the
# rdma part of scripts/setup.sh.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/rdma.sh"

kernel=6.12 mode=streams make_pack=
case ${1:-} in
  -h | --help) header; exit ;;
  --pack) make_pack=1; shift ;;
esac
[ $# = 0 ] || mode=$1
made=$BUILD/rdma-move pack=$BUILD/rdma-move.tar.xz image=$BUILD/rdma-move/image

# make_image MODE: what the outer VM boots, with all that runs in it.
make_image() {
  local dir=$made/vm causeway=$BUILD/bin/causeway rounds=$BUILD/tests/13.0-static/rounds
  [ -x "$causeway" ] || die "build/bin/causeway is missing: run make build"
  [ -x "$rounds" ] || die "no test program rounds: run scripts/build-tests.sh"
  [ -f "$BUILD/kernels/$kernel/vmlinuz" ] || die "no kernel $kernel under build/kernels: run scripts/setup.sh kernels"
  [ -x "$BUILD/qb/qemu" ] || "$ROOT/scripts/qemu-bundle.sh"
  rm -rf "$made"; mkdir -p "$dir"
  "$ROOT/images/build-initramfs.sh" "$kernel" "$dir/base"
  "$ROOT/images/build-initramfs.sh" --layer "$dir/layer" "$rounds" "$ROOT/images/rdma-move-guest:/app/run"
  cat "$dir/base" "$dir/layer" >"$dir/initrd"; rm "$dir/base" "$dir/layer"
  cp "$BUILD/kernels/$kernel/vmlinuz" "$dir/"
  ln -s "$BUILD/qb" "$dir/qb"
  # shellcheck disable=SC2154 # tcg_cpu and guest_append are of common.sh
  (cd "$dir" && sh "$ROOT/images/rdma-move" save "$dir/state" "$tcg_cpu" "$guest_append") || die "the VM that moves is not saved"
  strip --strip-debug -o "$dir/causeway" "$causeway"
  # What has booted needs no more of these than that QEMU knows what they are.
  truncate -s 1M "$dir/vmlinuz" && truncate -s 4K "$dir/initrd"
  "$ROOT/scripts/rdma.sh" --kernel "$kernel" --make-image "$image" --file "$dir/causeway:/app/bin/causeway" --file "$BUILD/lib:/app/lib" --file "$BUILD/qb:/app/qb" \
    --file "$dir/vmlinuz" --file "$dir/initrd" --file "$dir/state" -- "$ROOT/images/rdma-move" move "$mode" "$tcg_cpu" "$guest_append"
  cp "$BUILD/kernels/$kernel-full/vmlinuz" "$made/"
  rm -r "$dir"
}

if [ -n "$make_pack" ]; then
  make_image
  say "packing $(du -shc --apparent-size "$made" "$BUILD/qb" | tail -1 | cut -f1)"
  # QEMU is in the image as well, near enough to be found again.
  tar c --sort=name -C "$BUILD" qb rdma-move | xz --lzma2="preset=${PRESET:-3},dict=192MiB" >"$pack.new"
  mv "$pack.new" "$pack"
  say "$pack: $(stat -c %s "$pack" | numfmt --to=iec)"
  exit
fi
if [ -f "$pack" ] && [ ! -f "$image" ]; then
  say "unpacking $pack"
  tar xJf "$pack" -C "$BUILD"
elif [ ! -f "$pack" ]; then
  make_image
fi
cpus=$(nproc); [ "$cpus" -le 8 ] || cpus=8
export QEMU=${QEMU:-$BUILD/qb/qemu}
"$ROOT/scripts/vm.sh" --image "$image" --vmlinuz "$made/vmlinuz" --mem 2560M --smp "$cpus" --stall 900
