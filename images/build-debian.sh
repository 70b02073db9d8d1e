#!/usr/bin/env bash
# Builds a small bootable Debian guest that has a vGPU set up: systemd, the mount unit, the library
# cache.
#
#   images/build-debian.sh [OUT-DIR]      default: build/images/debian
#
# OUT-DIR gets root.ext4 (a raw disk, no partition table), vmlinuz (the cloud kernel that goes with
# it) and packages. Nothing is done if they are there and nothing that they are made of changed. The
# serial console logs root in; no network is needed. If there is a file system with the label
# causeway-run, its program `run` takes the console instead of a shell. Boot it with
#
#   qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine
#   q35,memory-backend=mem -nographic \
#     -kernel OUT-DIR/vmlinuz -append 'console=ttyS0 root=/dev/nvme0n1 rw' \
#     -drive file=OUT-DIR/root.ext4,format=raw,if=none,id=root -device nvme,drive=root,serial=root \
#     -chardev socket,id=gpu0,path=SOCKET -device
#     vhost-user-fs-pci,chardev=gpu0,tag=gpu0,queue-size=1024
set -euo pipefail
. "$(dirname "$0")/../scripts/lib/common.sh"
. "$ROOT/scripts/lib/pins.sh"
. "$ROOT/scripts/lib/apt.sh"
. "$ROOT/scripts/lib/cache.sh"
. "$ROOT/images/lib.sh"

case ${1:-} in -h | --help) header; exit ;; esac
out=${1:-$BUILD/images/debian}
suite=trixie
kernel='linux-image-6\.12\.[0-9.]+\+deb13-cloud-amd64'
packages=systemd-sysv,udev,dbus,kmod,login,passwd,util-linux,mount,procps,podman,crun,ca-certificates
want="$suite $PIN_GUEST_KERNEL $packages $(cat "$0" "$ROOT/images/lib.sh" "$ROOT/host/device/setup.sh" | cksum)"
stamped "$out/.stamp" "$want" && exit

make_guest() {
  image_tools
  mkdir -p "$out"
  tree=$out/tree
  trap 'as_root rm -rf "$tree"' EXIT
  say "making a Debian $suite guest (packages: 90 MB; into ${out#"$ROOT"/})"
  image_tree "$suite" "$tree" "$packages"
  image_kernel "$kernel" "$PIN_GUEST_KERNEL" "$tree" "$out/vmlinuz"

  # What a person or cloud-init would do in the guest.
  as_root "$ROOT/host/device/setup.sh" --root "$tree" --tag gpu0 --cdi
  as_root sh -eu -c '
  cd "$1"
  echo guest >etc/hostname
  : >etc/fstab
  chroot . useradd -m -u 1000 -s /bin/bash user
  chroot . passwd -d root >/dev/null
  mkdir -p etc/systemd/system/serial-getty@ttyS0.service.d
  printf "%s\n" "[Service]" "ExecStart=" "ExecStart=-/sbin/agetty --autologin root --keep-baud 115200 %I dumb" \
    >etc/systemd/system/serial-getty@ttyS0.service.d/autologin.conf
  cat >>root/.profile <<"PROFILE"
if [ "$(tty)" = /dev/ttyS0 ] && mount -L causeway-run /mnt 2>/dev/null; then exec /mnt/run; fi
PROFILE
  for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service dpkg-db-backup.timer fstrim.timer \
    systemd-firstboot.service podman-auto-update.timer podman-auto-update.service podman-restart.service podman-clean-transient.service; do
    ln -sf /dev/null "etc/systemd/system/$unit"
  done
  # Neither a first boot nor an update: what those do takes longer than the rest of the boot. Each
  # guest makes its own machine id.
  : >etc/machine-id
  touch etc/.updated var/.updated
  rm -f etc/motd; touch etc/default/locale root/.hushlogin
  rm -rf var/lib/apt/lists/* var/cache/apt/* var/log/*.log
  chroot . dpkg-query -W >"$2"
' - "$tree" "$out/packages"
  image_ext4 "$tree" "$out/root.ext4" 1G
  as_root rm -rf "$tree"
  echo "$want" >"$out/.stamp"
}

# Somebody's own folder is nothing to replace. A disk image is written to, by whoever boots it
# without a snapshot.
if [ "$out" = "$BUILD/images/debian" ]; then COPIED=1 cached debian "$out" "$want" .stamp make_guest; else make_guest; fi
say "guest image ready: ${out#"$ROOT"/}/root.ext4, $(du -h "$out/root.ext4" | cut -f1) of 1 GiB"
