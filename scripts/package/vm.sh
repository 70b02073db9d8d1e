#!/usr/bin/env bash
# Installs the Debian package in a VM that systemd boots: units, scopes, a restart and an upgrade
# that vGPUs do not notice, AppArmor, removal. What it checks is in vm-inside.sh.
#
#   scripts/package/vm.sh [--built]      --built: take the package that is in build/package
#
# The CPU is emulated, unless ACCEL=kvm (environment): some two minutes. The console's log is
# build/package-vm/console.log.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"
. "$ROOT/scripts/lib/pins.sh"
. "$ROOT/scripts/lib/apt.sh"
. "$ROOT/images/lib.sh"

[ "$(id -u)" = 0 ] || die "this test needs root: it makes a file system"
vm=$BUILD/package-vm
tree=$vm/tree
mkdir -p "$vm"
here=$ROOT/scripts/package
limit=600

# libvirt_rules SUITE PACKAGE leaves the AppArmor files of libvirt in that suite, without installing
# libvirt.
libvirt_rules() {
  local dir=$vm/rules/$1
  [ -f "$dir/etc/apparmor.d/abstractions/libvirt-qemu" ] && return
  apt_ready
  mkdir -p "$dir"
  rm -f "$dir"/*.deb
  (cd "$dir" && retry 3 apt-get "${APT_OPTS[@]}" download "$2/$1" >/dev/null) || die "fetching $2 of $1 failed"
  dpkg-deb --fsys-tarfile "$dir"/*.deb | tar x -C "$dir" ./etc/apparmor.d
  rm -f "$dir"/*.deb
}

# A Debian 12 with systemd, kept as a tar: the package under test goes into a fresh copy.
base_system() {
  local want; want="$PIN_GUEST_KERNEL $(sed -n "/^base_system/,/^}/p" "$0" | cksum)"
  stamped "$vm/.stamp" "$want" && return
  image_tools
  say "making a Debian 12 with systemd (60 MB of packages)"
  image_tree bookworm "$tree" systemd-sysv,udev,dbus,kmod,passwd,util-linux,mount,procps,apparmor,man-db \
    --dpkgopt='path-include=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/man/*'
  image_kernel 'linux-image-6\.12\.[0-9.]+\+deb13-cloud-amd64' "$PIN_GUEST_KERNEL" "$tree" "$vm/vmlinuz"
  local unit
  for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service dpkg-db-backup.timer fstrim.timer man-db.timer \
    systemd-firstboot.service getty@tty1.service; do
    ln -sf /dev/null "$tree/etc/systemd/system/$unit"
  done
  : >"$tree/etc/fstab"
  echo host >"$tree/etc/hostname"
  cat >"$tree/etc/systemd/system/package-test.service" <<'U'
[Unit]
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=/root/vm-inside.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
[Install]
WantedBy=default.target
U
  ln -sf ../package-test.service "$tree/etc/systemd/system/multi-user.target.wants/package-test.service"
  ln -sf /dev/null "$tree/etc/systemd/system/serial-getty@ttyS0.service"
  tar -cf "$vm/base.tar" -C "$tree" .
  rm -rf "$tree"
  echo "$want" >"$vm/.stamp"
}

"$ROOT/scripts/setup.sh" qemu 2>/dev/null
if [ "${1:-}" != --built ]; then "$here/build.sh" deb >"$vm/build.log" 2>&1 || { tail -20 "$vm/build.log" >&2; die "building the package failed"; }; fi
deb=$(echo "$BUILD"/package/*.deb)
[ -f "$deb" ] || die "no package under build/package: run make deb"
# The same, a version later, to upgrade to.
PACKAGE_OUT=$vm/next PACKAGE_VERSION=$(dpkg-deb -f "$deb" Version | sed 's/-1$//').next "$here/build.sh" deb >"$vm/build.log" 2>&1 ||
  { tail -20 "$vm/build.log" >&2; die "building the next package failed"; }
libvirt_rules bookworm libvirt-daemon-system
libvirt_rules trixie libvirt-daemon-driver-qemu
base_system

rm -rf "$tree"
mkdir "$tree"
trap 'rm -rf "$tree"' EXIT
tar -xf "$vm/base.tar" -C "$tree"
cp "$deb" "$tree/root/causeway.deb"
cp "$vm"/next/*.deb "$tree/root/next.deb"
cp -r "$vm/rules" "$tree/root/rules"
install -m 755 "$here/vm-inside.sh" "$tree/root/"
image_ext4 "$tree" "$vm/root.ext4" 2G

# Emulated unless asked: /dev/kvm can be there and fail at the first instruction.
accel=(-accel tcg,thread=multi -cpu "$tcg_cpu")
[ "${ACCEL:-tcg}" != kvm ] || accel=(-accel kvm -cpu host)
say "booting it"
rc=0
timeout -k 5 $limit qemu-system-x86_64 "${accel[@]}" -smp 2 -m 1G -machine q35 -nodefaults -display none -no-reboot -serial stdio \
  -kernel "$vm/vmlinuz" -append "$guest_append root=/dev/nvme0n1 rw systemd.show_status=0" \
  -drive "file=$vm/root.ext4,format=raw,if=none,id=root,cache=unsafe" -device nvme,drive=root,serial=root </dev/null 2>&1 |
  tee "$vm/console.log" | sed -un 's/\r$//; s/^.*@causeway /   /p' || rc=$?
rm -f "$vm/root.ext4"
[ $rc = 0 ] || die "QEMU ended with $rc, or after $limit s: see $vm/console.log"
grep -q '@causeway exit 0' "$vm/console.log" || { tail -30 "$vm/console.log" >&2; die "the test in the VM failed: see $vm/console.log"; }
echo "$(grep -c '@causeway ok' "$vm/console.log") passed, 0 failed"
