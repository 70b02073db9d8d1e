#!/usr/bin/env bash
# Makes a QEMU that runs on any x86-64 Linux: binary, loader, libraries and firmware, in build/qb
# and build/qb.tar.xz.
#
#   scripts/qemu-bundle.sh
#
# Use it as build/qb/qemu in place of qemu-system-x86_64; TCG is inside, KVM works where the machine
# has it.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/pins.sh"

qemu=$(command -v qemu-system-x86_64 || true)
[ -n "$qemu" ] || die "qemu-system-x86_64 is missing: run scripts/setup.sh qemu"
want="$("$qemu" --version | head -1) 1"
if stamped "$BUILD/qb/.stamp" "$want" && [ -f "$BUILD/qb.tar.xz" ]; then say "build/qb is current"; exit; fi

say "copying $("$qemu" --version | head -1) with its libraries to build/qb"
b=$BUILD/qb
rm -rf "$b"; mkdir -p "$b"/{bin,lib,fw}
cp -L "$qemu" "$b/bin/qemu-system-x86_64"
cp -L /lib64/ld-linux-x86-64.so.2 "$b/lib/"
ldd "$qemu" | awk '/=> \//{print $3}' | while read -r l; do cp -L "$l" "$b/lib/"; done
for f in bios-256k.bin kvmvapic.bin linuxboot_dma.bin linuxboot.bin; do
  found=
  for d in /usr/share/qemu /usr/share/seabios /usr/local/share/qemu; do
    [ -f "$d/$f" ] && { cp -L "$d/$f" "$b/fw/"; found=1; break; }
  done
  [ -n "$found" ] || die "firmware $f is missing: install seabios and qemu-system-data"
done
cat >"$b/qemu" <<'Q'
#!/bin/sh
d=$(dirname "$(readlink -f "$0")")
exec "$d/lib/ld-linux-x86-64.so.2" --library-path "$d/lib" "$d/bin/qemu-system-x86_64" -L "$d/fw" "$@"
Q
chmod +x "$b/qemu"
env -i "$b/qemu" --version >/dev/null || die "the bundle does not start"
echo "$want" >"$b/.stamp"
say "compressing to build/qb.tar.xz (under a minute)"
tar c -C "$BUILD" qb | xz -6 -T2 >"$BUILD/qb.tar.xz.new"
mv "$BUILD/qb.tar.xz.new" "$BUILD/qb.tar.xz"
say "build/qb.tar.xz: $(stat -c %s "$BUILD/qb.tar.xz" | numfmt --to=iec)"
