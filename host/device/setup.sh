#!/bin/sh
# Makes Causeway's libraries permanent in this guest: mounts the device at every boot and lets every program find them.
# Run it as root from the mount, for example /run/causeway/bin/setup. Running it again changes nothing. --remove undoes it.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd -P)
conf=/etc/ld.so.conf.d/00-causeway.conf
fstab=/etc/fstab
mark='# causeway'

say() { echo "causeway setup: $*"; }
die() { echo "causeway setup: $*" >&2; exit 1; }

# Replaces a file by stdin if it differs, and says so.
put() {
	tmp=$1.causeway.$$
	cat >"$tmp"
	if [ -f "$1" ] && cmp -s "$tmp" "$1"; then
		rm -f "$tmp"
		return
	fi
	chmod 644 "$tmp"
	mv "$tmp" "$1"
	say "wrote $1"
}

refresh() {
	if command -v ldconfig >/dev/null 2>&1; then ldconfig; else say "no ldconfig here: set LD_LIBRARY_PATH=$here/lib"; fi
}

without_mark() { [ -f "$fstab" ] && grep -v "$mark\$" "$fstab" || true; }

case ${1-} in
--help | -h)
	sed -n '2,3s/^# //p' "$0"
	exit 0
	;;
--remove | '') ;;
*) die "unknown argument $1: use no argument, or --remove" ;;
esac
[ "$(id -u)" = 0 ] || die "must run as root: sudo $0 ${1-}"

if [ "${1-}" = --remove ]; then
	if [ -f "$conf" ]; then
		rm -f "$conf"
		say "removed $conf"
	fi
	if [ -f "$fstab" ] && grep -q "$mark\$" "$fstab"; then without_mark | put "$fstab"; fi
	refresh
	exit 0
fi

tag=$(awk -v m="$here" '$2 == m && $3 == "virtiofs" { print $1 }' /proc/mounts | tail -n 1)
[ -n "$tag" ] || die "$here is not a virtiofs mount: run: mount -t virtiofs TAG /run/causeway && /run/causeway/bin/setup"

mkdir -p "$(dirname "$conf")"
echo "$here/lib" | put "$conf"
# systemd makes mount units of fstab lines; nofail lets the guest boot without the device.
{ without_mark; echo "$tag $here virtiofs defaults,nofail,x-mount.mkdir 0 0 $mark"; } | put "$fstab"
refresh
say "done: programs find $here/lib/libcuda.so.1, also after a reboot"
