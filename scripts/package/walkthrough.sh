#!/usr/bin/env bash
# Runs the commands of docs/WALKTHROUGH.md in a fresh Debian 13: the blocks marked host in a chroot
# of its own namespaces, those marked guest on the console of the VM that it makes. What this
# machine lacks (systemd, KVM, a GPU) is left out and said.
#
#   scripts/package/walkthrough.sh [--built]      --built: take the package that is in build/package
#
# Some five minutes where the VM's CPU is emulated, and 400 MB of Debian packages. The log is
# build/package/walkthrough.log.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"
. "$ROOT/scripts/lib/apt.sh"
. "$ROOT/images/lib.sh"
. "$ROOT/scripts/package/chroot.sh"

[ "$(id -u)" = 0 ] || die "this needs root: it makes a chroot"
mkdir -p "$BUILD/package"
log=$BUILD/package/walkthrough.log
[ "${1:-}" = --built ] || "$ROOT/scripts/package/build.sh" deb >"$log" 2>&1 || { tail -20 "$log" >&2; die "building the package failed"; }
deb=$(echo "$BUILD"/package/*.deb)
[ -f "$deb" ] || die "no package under build/package: run make deb"
dir=$(mktemp -d "${TMPDIR:-/tmp}/causeway-walk.XXXXXX")
walk=
cleanup() {
  [ -z "$walk" ] || kill "$(pgrep -P "$walk" unshare)" 2>/dev/null || true # it takes all that it started with it
  wait
  rm -rf --one-file-system "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
debian_root "$dir" trixie
cp "$deb" "$ROOT/docs/WALKTHROUGH.md" "$dir/root/"
install -m 755 "$ROOT/scripts/package/walk.sh" "$dir/root/walk.sh"
rc=0
: >"$log"
in_root "$dir" /root/walk.sh /root/WALKTHROUGH.md >"$log" 2>&1 & walk=$!
tail -f --pid=$walk "$log" | sed -un 's/^@walk /   /p' &
wait $walk || rc=$?
walk=
wait
[ $rc = 0 ] || { tail -30 "$log" >&2; die "a command of docs/WALKTHROUGH.md failed: see build/package/walkthrough.log"; }
grep '^@walk .*passed' "$log" | sed 's/^@walk //'
