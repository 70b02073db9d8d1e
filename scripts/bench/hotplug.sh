#!/usr/bin/env bash
# Plugs a device into a guest and out again, many times, and tells how long the guest's CPUs stood
# still meanwhile: a vGPU beside devices that are QEMU's own.
#
#   scripts/bench/hotplug.sh [--cycles 20] [--load N] [--kernel SERIES] [--accel tcg|kvm]
#   [DEVICE...]
#
# DEVICE: vgpu, busy (a vGPU that a program uses while it is plugged out), serial, nvme, none (the
# guest is left alone for 3 s); these by default. For comparison, hung: the device process is
# stopped for 25 s while QEMU plugs it in; paused: QEMU is. --load starts N busy loops on this
# machine beside it. A row: cycles, the median and the longest time that a CPU's timer was late in
# one cycle, how many cycles had more than 0.1 and 1 s, the slowest answer of the device process to
# QEMU if it took 0.1 s, complaints of the guest's kernel; the first of them below.
set -uo pipefail
. "$(dirname "$0")/../lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"

cycles=20 load=0 kernel=6.12 accel=tcg devices=()
while [ $# -gt 0 ]; do
  case $1 in
    --cycles) cycles=$2; shift 2 ;;
    --load) load=$2; shift 2 ;;
    --kernel) kernel=$2; shift 2 ;;
    --accel) accel=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) devices+=("$1"); shift ;;
  esac
done
[ ${#devices[@]} -gt 0 ] || devices=(none serial nvme vgpu busy)
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-hotplug.XXXXXX")
mkdir -p "$BUILD/logs" "$BUILD/life"
console_log=$BUILD/logs/hotplug-console.log device_log=$BUILD/logs/hotplug-device.log
qemu_pid= loops=()
cleanup() {
  [ -z "$qemu_pid" ] || kill -9 "$qemu_pid" 2>/dev/null
  [ ${#loops[@]} = 0 ] || kill "${loops[@]}" 2>/dev/null
  stop_service
  rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

guest_channel "$tmp"
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -o "$BUILD/life/ticks" "$ROOT/scripts/bench/probe/ticks.c" -lpthread &&
  gcc -std=gnu11 -O2 -Wall -Wextra -Werror -I"$ROOT/guest/libcuda" -o "$BUILD/life/life" "$ROOT/guest/tests/life/life.c" "$ROOT/guest/tests/life/gpu.c" -ldl -lpthread &&
  guest_image "$kernel" "$tmp/initrd" "$BUILD/life/ticks" "$BUILD/life/life" || die "no guest image"
truncate -s 1M "$tmp/disk.raw"

boot() {
  local args=(-accel tcg,thread=multi -cpu "$tcg_cpu")
  [ "$accel" != kvm ] || args=(-accel kvm -cpu host)
  : >"$console_log"
  qemu-system-x86_64 "${args[@]}" -smp 2 -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on -machine q35,memory-backend=mem \
    -nodefaults -display none "${channel[@]}" -monitor "unix:$tmp/monitor,server=on,wait=off" -device pcie-root-port,id=slot0,bus=pcie.0,chassis=1 \
    -drive "file=$tmp/disk.raw,format=raw,if=none,id=disk" -kernel "$BUILD/kernels/$kernel/vmlinuz" -initrd "$tmp/initrd" \
    -append "$guest_append" </dev/null >"$BUILD/logs/hotplug-qemu.log" 2>&1 9>&- 3>&- 4>&- &
  qemu_pid=$!
  guest_up
}

# in_guest is the guest's word that the device in the slot is there, out_of_guest that it is not.
pci='set -- /sys/bus/pci/devices/0000:01:*; [ -e "$1" ]'
in_guest() { guest "for i in \$(seq 300); do $pci && break; usleep 50000; done; $pci"; }
out_of_guest() { guest "for i in \$(seq 300); do $pci || break; usleep 50000; done; ! { $pci; }"; }
# unplugged waits until QEMU has let go of it too.
unplugged() { ! monitor 'info pci' | grep -q 'id "x"'; }

plug() { # DEVICE
  case $1 in hung) kill -STOP "$service_pid"; { nap 25; kill -CONT "$service_pid"; } & ;; esac
  case $1 in
    none | paused) ;;
    serial) monitor 'device_add virtio-serial-pci,bus=slot0,id=x' && in_guest ;;
    nvme) monitor 'device_add nvme,drive=disk,serial=x,bus=slot0,id=x' && in_guest ;;
    hung | vgpu | busy) monitor "chardev-add socket,id=gpu,path=$tmp/vm.sock" && monitor 'device_add vhost-user-fs-pci,chardev=gpu,tag=gpu0,queue-size=1024,bus=slot0,id=x' &&
      guest 'for i in $(seq 300); do mount -t virtiofs gpu0 /run/causeway 2>/dev/null && break; usleep 50000; done; ./life once' ;;
  esac
}
unplug() {
  case $1 in
    none) nap 3; return ;;
    paused) kill -STOP $qemu_pid; nap 25; kill -CONT $qemu_pid; return ;;
    vgpu | hung) guest umount /run/causeway ;;
    busy) send '&./life loop'; await '@ready *' ;;
  esac
  local pid=${line#@ready }
  monitor 'device_del x' && out_of_guest && until_true 20 unplugged || return
  case $1 in
    busy) guest "while [ -d /proc/$pid ]; do usleep 50000; done; umount -l /run/causeway" ;;
  esac
  case $1 in vgpu | busy | hung) monitor 'chardev-remove gpu' ;; esac
}

# measure DEVICE prints its row.
measure() {
  local rc=0
  start_device "$tmp/vm.sock" "$device_log" --gpu soft --memory 1GiB -v
  boot && cycle "$1" || { rc=1; cp "$device_log" "$BUILD/logs/hotplug-failed.log"; }
  end $qemu_pid; qemu_pid=
  stop_service
  return $rc
}
cycle() {
  local i ticks_pid worst all=()
  send '&./ticks'; await '@ready *' || return
  ticks_pid=${line#@ready }
  for i in $(seq "$cycles"); do
    send "kill -USR1 $ticks_pid"; await '@ticks *' || return
    plug "$1" && unplug "$1" || { echo "$1: cycle $i failed"; return 1; }
    send "kill -USR1 $ticks_pid"; await '@ticks *' || return
    worst=$(tr ' ' '\n' <<<"${line#@ticks }" | sort -n | tail -1)
    all+=("$worst")
  done
  printf '%s\n' "${all[@]}" | sort -n | awk -v d="$1" -v s="$(slowest)" -v c="$(grep -acE "$complaint" "$console_log")" '
    {v[NR] = $1; if ($1 > 100) a++; if ($1 > 1000) b++}
    END {printf "%-8s %6d %10d %10d %8d %8d %12s %10d\n", d, NR, v[int((NR + 1) / 2)], v[NR], a, b, s, c}'
  grep -aE -m3 "$complaint" "$console_log" | sed 's/^/        | /'
}
# slowest prints the slowest answer to QEMU: in ms, and to which message.
slowest() { python3 "$tmp/slowest.py" "$device_log"; }
cat >"$tmp/slowest.py" <<'PY'
import re, sys
unit = {"ns": 1e-6, "µs": 1e-3, "us": 1e-3, "ms": 1, "s": 1e3}
found = [(float(v) * unit[u], m) for m, v, u in re.findall(r"message=(\w+) .*took=([\d.]+)(ns|µs|us|ms|s)", open(sys.argv[1], encoding="utf8", errors="replace").read())]
print("%.1f %s" % max(found) if found else "")
PY

printf '%-8s %6s %10s %10s %8s %8s %12s %10s\n' device cycles 'median ms' 'longest' '>0.1 s' '>1 s' 'slowest ms' complaints
for ((i = 0; i < load; i++)); do (while :; do :; done) & loops+=($!); done
bad=0
for d in "${devices[@]}"; do measure "$d" || bad=1; done
exit $bad
