#!/usr/bin/env bash
# Builds the packages and installs the Debian one in a clean chroot: files, daemon, a vGPU, removal,
# purge. Then looks at the rpm.
#
#   scripts/package/test.sh [--built | --prepare]
#
# --built takes the packages that are in build/package; --prepare only makes the Debian that they
# are installed in.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"
. "$ROOT/scripts/lib/apt.sh"
. "$ROOT/images/lib.sh"
. "$ROOT/scripts/package/chroot.sh"

[ "$(id -u)" = 0 ] || die "this test needs root: it makes a chroot"
[ "${1:-}" != --prepare ] || { debian_tar; exit; }
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-package.XXXXXX")
trap 'rm -rf --one-file-system "$tmp"' EXIT

passed=0
ok() { say "ok: $*"; passed=$((passed + 1)); }

[ "${1:-}" = --built ] || "$ROOT/scripts/package/build.sh" >"$tmp/build.log" 2>&1 || { tail -20 "$tmp/build.log" >&2; die "building the packages failed"; }
deb=$(echo "$BUILD"/package/*.deb)
[ -f "$deb" ] || die "no package under build/package: run make deb"
ok "built $(basename "$deb")"

dir=$tmp/root
debian_root "$dir"
cp "$deb" "$dir/root/causeway.deb"
install -m 755 "$ROOT/scripts/package/inside.sh" "$dir/root/inside.sh"
find "$dir" -xdev \( -path "$dir/proc" -o -path "$dir/sys" -o -path "$dir/dev" -o -path "$dir/run" \) -prune -o -print | sort >"$tmp/before"
in_root "$dir" /root/inside.sh || die "the package's test in a chroot failed (above)"
find "$dir" -xdev \( -path "$dir/proc" -o -path "$dir/sys" -o -path "$dir/dev" -o -path "$dir/run" \) -prune -o -print | sort >"$tmp/after"
left=$(comm -13 "$tmp/before" "$tmp/after" | grep -vE '/var/(lib/(dpkg|apt)|cache|log)/|/tmp/|/etc/(group|gshadow|resolv)[^/]*$' || true)
[ -z "$left" ] || die "purge leaves: $left"
! grep -q causeway "$dir/etc/group" || die "purge leaves the group"
ok "install, daemon, vGPU, remove, purge: nothing is left"

if have rpm; then
  rpm -qpl "$BUILD"/package/*.rpm >"$tmp/files"
  for f in /usr/bin/causeway /usr/lib/causeway/libcuda.so.1 /usr/lib/systemd/system/causewayd.service /etc/causeway/causewayd.toml /etc/libvirt/hooks/qemu.d/causeway; do
    grep -qxF $f "$tmp/files" || die "the rpm lacks $f"
  done
  mkdir -p "$tmp/rpm"
  rpm --root "$tmp/rpm" --nodeps --noscripts -i "$BUILD"/package/*.rpm 2>"$tmp/rpm.log" || { cat "$tmp/rpm.log" >&2; die "rpm cannot install it"; }
  rpm --root "$tmp/rpm" -V --nodeps causeway || die "rpm finds files changed"
  "$tmp/rpm/usr/bin/causeway" version >/dev/null
  ok "rpm: $(wc -l <"$tmp/files") files, installed and verified"
else
  say "no rpm here: only built"
fi
echo "$passed passed, 0 failed"
