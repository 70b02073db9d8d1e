#!/usr/bin/env bash
# Shows what a guest that keeps its vGPU sees: boots images/build-debian.sh's Debian (systemd,
# nothing installed by hand) without the device, plugs it in, reboots, runs programs and a
# container, unplugs it. Each line is a check.
#
#   scripts/guest.sh [--accel tcg|kvm] [--causeway PROGRAM]
#
# The status is 0 if every check passed.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"

accel=tcg
while [ $# -gt 0 ]; do
  case $1 in
    --accel) accel=$2; shift 2 ;;
    --causeway) CAUSEWAY=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
qemu=${QEMU:-$(command -v qemu-system-x86_64 || true)}
[ -n "$qemu" ] || die "qemu-system-x86_64 is missing: run scripts/setup.sh qemu"
[ -x "$CAUSEWAY" ] || die "$CAUSEWAY is missing: run make build"
image=$BUILD/images/debian
"$ROOT/images/build-debian.sh" || die "no guest image"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-guest.XXXXXX")
mkdir -p "$BUILD/logs"
console_log=$BUILD/logs/guest-console.log first_process= # Debian's says nothing
guest_channel "$tmp"
qemu_pid= second_pid= limit=60
cleanup() {
  [ -z "$qemu_pid" ] || kill -9 "$qemu_pid" 2>/dev/null
  [ -z "$second_pid" ] || kill "$second_pid" 2>/dev/null
  stop_service
  rm -rf "$tmp"
}
on_exit cleanup

# The disk whose program the guest's console runs: guest.sh's agent. A CUDA program and a container
# lie beside it.
prepare() {
  mkdir "$tmp/run"
  agent_script >"$tmp/run/run"
  # A container's root: glibc, a shell, a library cache; it knows nothing of GPUs.
  cat >"$tmp/run/container" <<'RUN'
#!/bin/bash -e
c=/var/tmp/container
mkdir -p $c/{lib64,usr/lib/x86_64-linux-gnu,bin,etc,tmp}
cp -L /lib64/ld-linux-x86-64.so.2 $c/lib64/
for l in libc.so.6 libdl.so.2 libpthread.so.0 librt.so.1; do cp -L /lib/x86_64-linux-gnu/$l $c/usr/lib/x86_64-linux-gnu/; done
cp /bin/dash $c/bin/sh
ldconfig -r $c
! ldconfig -r $c -p | grep libcuda
podman run --rm --network=none --log-driver=none --device nvidia.com/gpu=all "$@" --rootfs $c /run/causeway/bin/causeway-check
podman run --rm --network=none --log-driver=none --device nvidia.com/gpu=all "$@" --rootfs $c nvidia-smi -L | grep '^GPU 0: '
ldconfig -r $c -p | grep -q 'libcuda.so.1 .*/usr/lib/x86_64-linux-gnu/libcuda.so.1'
RUN
  chmod 755 "$tmp/run"/*
  [ ! -x "$BUILD/tests/13.0-static/vectoradd" ] || cp "$BUILD/tests/13.0-static/vectoradd" "$tmp/run/"
  truncate -s 32M "$tmp/run.ext4"
  mkfs.ext4 -q -F -L causeway-run -O ^has_journal -d "$tmp/run" "$tmp/run.ext4" || die "mkfs.ext4 failed"
  # The root is a partition, named by the table's number: which of two disks is nvme0n1 is whose
  # probe ends first, and on a busy machine the kernel took the one without an init.
  truncate -s $(($(stat -c %s "$image/root.ext4") + (1 << 20))) "$tmp/root.disk"
  python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("<440xI2x4xB3xII48xH", int(sys.argv[1], 16), 0x83, 2048, int(sys.argv[2]) >> 9, 0xAA55))' $table "$(stat -c %s "$image/root.ext4")" | dd of="$tmp/root.disk" conv=notrunc status=none && dd if="$image/root.ext4" of="$tmp/root.disk" bs=1M seek=1 conv=notrunc,sparse status=none || die "no disk of $image/root.ext4"
}
table=ca05e4a7

boot() {
  local args=(-accel tcg,thread=multi -cpu "$tcg_cpu")
  [ "$accel" != kvm ] || args=(-accel kvm -cpu host)
  "$qemu" "${args[@]}" -smp 2 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \
    -nodefaults -display none "${channel[@]}" -monitor "unix:$tmp/monitor,server=on,wait=off" -kernel "$image/vmlinuz" \
    -append "$guest_append root=PARTUUID=$table-01 rootwait rw" \
    -drive "file=$tmp/root.disk,format=raw,if=none,id=root,cache=unsafe" -device nvme,drive=root,serial=root \
    -drive "file=$tmp/run.ext4,format=raw,if=none,id=run" -device nvme,drive=run,serial=run \
    -device pcie-root-port,id=slot0,bus=pcie.0,chassis=1 -device pcie-root-port,id=slot1,bus=pcie.0,chassis=2 \
    </dev/null >"$BUILD/logs/guest-qemu.log" 2>&1 9>&- 3>&- 4>&- &
  qemu_pid=$!
}

ready() { limit=90 guest 'r=$(systemctl is-system-running --wait); echo $r; [ $r = running ] || { systemctl --failed --no-legend; false; }'; }

prepare
start_device "$tmp/vm.sock" "$BUILD/logs/guest-device.log" --gpu soft --memory 1GiB -v
"$CAUSEWAY" device --socket "$tmp/vm1.sock" --gpu soft --memory 2GiB >"$BUILD/logs/guest-device1.log" 2>&1 & second_pid=$!
began=$SECONDS
boot
guest_up; row "Debian boots without the device" "$((SECONDS - began)) s to a shell"
ready; row "and nothing failed" ""
guest '! mountpoint -q /run/causeway && ! ldconfig -p | grep libcuda'; row "no mount, no libcuda" ""

monitor "chardev-add socket,id=gpu0,path=$tmp/vm.sock" && monitor 'device_add vhost-user-fs-pci,chardev=gpu0,tag=gpu0,queue-size=1024,bus=slot0,id=gpu0'
row "the device is plugged in" ""
guest 'for i in $(seq 300); do ldconfig -p | grep -q /run/causeway/lib/libcuda.so.1 && break; sleep 0.1; done; mountpoint -q /run/causeway'
row "it is mounted and its libraries are found" ""

began=$SECONDS
send reboot
guest_up; row "reboot" "$((SECONDS - began)) s to a shell"
guest 'mountpoint -q /run/causeway && ldconfig -p | grep -q /run/causeway/lib/libnvidia-ml.so.1'; row "mounted at boot, libraries found" ""
guest 'su user -c /run/causeway/bin/check'; row "bin/check, as an ordinary user" ""
guest 'su user -c "nvidia-smi -L" | grep "^GPU 0: " && su user -c nvidia-smi | grep -q "NVIDIA-SMI .*(Causeway)"'; row "nvidia-smi, by PATH" ""
if [ -f "$tmp/run/vectoradd" ]; then
  guest 'su user -c "env -u LD_LIBRARY_PATH ./vectoradd"'; row "a CUDA program, as an ordinary user, without LD_LIBRARY_PATH" ""
fi
ready; row "nothing failed" ""
guest '/run/causeway/bin/setup --cdi | grep -v done:; ! /run/causeway/bin/setup --cdi | grep wrote'; row "bin/setup changes nothing" ""
guest './container'; row "podman run --device nvidia.com/gpu=all" ""
guest '/run/causeway/bin/setup --remove >/tmp/removed; cat /tmp/removed; ! grep -rl causeway /etc'; row "bin/setup --remove leaves nothing" ""
guest '/run/causeway/bin/setup --cdi && systemctl is-active run-causeway.mount && ldconfig -p | grep -q causeway'; row "and bin/setup sets it up again" ""

monitor "chardev-add socket,id=gpu1,path=$tmp/vm1.sock" && monitor 'device_add vhost-user-fs-pci,chardev=gpu1,tag=gpu1,queue-size=1024,bus=slot1,id=gpu1'
row "a second vGPU is plugged in" ""
guest 'm=/run/causeway-gpu1; mkdir -p $m; for i in $(seq 300); do mount -t virtiofs gpu1 $m 2>/dev/null && break; sleep 0.1; done; $m/bin/setup | grep "programs use" && LD_LIBRARY_PATH=$m/lib $m/bin/causeway-check | grep " 2.0 GiB" && $m/bin/causeway-check | grep " 1.0 GiB"'
row "each program uses the one whose library it loads" ""

monitor 'device_del gpu0'; row "the device is unplugged" ""
guest 'for i in $(seq 300); do mountpoint -q /run/causeway || break; sleep 0.1; done; echo $(systemctl is-system-running); ! mountpoint -q /run/causeway'
row "its mount is gone, the guest lives" ""
send poweroff
until_true 60 ended "$qemu_pid"; row "power-off" "" || stuck "$qemu_pid"
end "$qemu_pid"
qemu_pid=
calm_kernels
echo "guest: $passed passed, $failed failed in $SECONDS s"
[ $failed = 0 ]
