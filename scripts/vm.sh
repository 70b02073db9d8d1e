#!/usr/bin/env bash
# Boots a stock kernel under QEMU with the vGPU attached, runs one program in it and returns the
# program's status.
#
#   scripts/vm.sh [options] -- PROGRAM [ARG...]
#
#   --kernel SERIES   6.1, 6.12 (default) or 7.2, from build/kernels; 6.12-full and 7.2-full are
#                     scripts/rdma.sh's
#   --socket PATH     vhost-user socket of `causeway device`; without it the guest has no vGPU
#   --share SOCKET    a second virtio-fs device, tag "host", as causeway-share serves it; the
#                     program mounts it itself
#   --nic ROLE:PATH   a virtio NIC whose wire is the stream socket PATH: one guest is its "server",
#                     the other its "client"
#   --forward HERE:THERE  with --nic: this machine is on that wire, too; its TCP port HERE, on the
#                         loopback, is port THERE of the guest whose address is 10.9.0.1
#   --device ARGS     one more device, as QEMU's -device has it; may repeat
#   --accel MODE      auto (default: KVM if it really works, else TCG), kvm or tcg
#   --mem SIZE        guest memory (default 1G);  --smp N  virtual CPUs (default 2)
#   --file SRC[:DEST] one more file for the guest (default DEST: /app/NAME); may repeat
#   --make-image FILE no VM: what it would boot with goes into FILE
#   --image FILE      boots with that, which has its PROGRAM, and --vmlinuz FILE
#   --timeout SECONDS ends the VM (default 900), status 124
#   --stall SECONDS   likewise, once the guest has said nothing for so long; then there is no
#                     --timeout unless it is given
#   --quiet           prints the program's output only
#
# PROGRAM is a file of this machine, copied to /app in the guest with the libcudart beside it; a
# name without a slash
# is looked up in the guest. The guest mounts the vGPU at /run/causeway and sets
# LD_LIBRARY_PATH=/run/causeway/lib.
# QEMU (environment) names another qemu-system-x86_64.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

# nic ROLE:PATH adds a NIC. The last byte of its address tells its guest which of the two it is.
nic() {
  local server=off last=02
  case $1 in
    server:?*) server=on last=01 ;;
    client:?*) ;;
    *) die "--nic is server:PATH or client:PATH" ;;
  esac
  devices+=(-netdev "stream,id=wire,server=$server,addr.type=unix,addr.path=${1#*:}"
    -device "virtio-net-pci,netdev=$wire,mac=52:54:00:00:00:$last,host_mtu=9000,romfile=")
}

# forward HERE:THERE puts this machine on the wire, by a hub between it, the other guest and this
# guest's NIC.
forward() {
  wire=nic
  devices+=(-netdev "user,id=here,net=10.9.0.0/24,host=10.9.0.254,hostfwd=tcp:127.0.0.1:${1%:*}-10.9.0.1:${1#*:}"
    -netdev hubport,id=port1,hubid=0,netdev=here -netdev hubport,id=port2,hubid=0,netdev=wire -netdev hubport,id=nic,hubid=0)
}

kernel=6.12 socket= share= wire=wire nic= forward= accel=auto mem=1G smp=2 timeout= stall= quiet= image= make_image= vmlinuz=
files=() devices=()
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    --socket) socket=$2; shift 2 ;;
    --share) share=$2; shift 2 ;;
    --nic) nic=$2; shift 2 ;;
    --forward) forward=$2; shift 2 ;;
    --device) devices+=(-device "$2"); shift 2 ;;
    --accel | --kvm) accel=$2; shift 2 ;;
    --mem) mem=$2; shift 2 ;;
    --smp) smp=$2; shift 2 ;;
    --file) files+=("$2"); shift 2 ;;
    --image) image=$2; shift 2 ;;
    --make-image) make_image=$2; shift 2 ;;
    --vmlinuz) vmlinuz=$2; shift 2 ;;
    --timeout) timeout=$2; shift 2 ;;
    --stall) stall=$2; shift 2 ;;
    --quiet) quiet=1; shift ;;
    --) shift; break ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
[ $# -gt 0 ] || [ -n "$image" ] || die "nothing to run: see $0 --help"
[ -z "$forward" ] || forward "$forward"
[ -z "$nic" ] || nic "$nic"

qemu=${QEMU:-$(command -v qemu-system-x86_64 || true)}
[ -n "$qemu" ] || die "qemu-system-x86_64 is missing: run scripts/setup.sh qemu"
vmlinuz=${vmlinuz:-$BUILD/kernels/$kernel/vmlinuz}
[ -f "$vmlinuz" ] || die "no kernel $kernel under build/kernels: run scripts/setup.sh kernels"
[ -z "$socket" ] || [ -S "$socket" ] || die "$socket is not a socket: start \`causeway device --socket $socket\` first"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-vm.XXXXXX")
pid=
cleanup() {
  # A backend that does not answer leaves QEMU deaf to SIGTERM: SIGKILL follows.
  if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then
    kill "$pid" 2>/dev/null || true
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null || break; sleep 0.2; done
    kill -9 "$pid" 2>/dev/null || true
  fi
  rm -rf "$tmp"
}
on_exit cleanup

# Base image, rebuilt when any of its ingredients is newer.
base=$BUILD/images/base-$kernel.cpio
make_base() {
  if [ ! -f "$base" ] || [ -n "$(find "$ROOT/images/init" "$ROOT/images/build-initramfs.sh" "$vmlinuz" "$BUILD/tools" -newer "$base" -print -quit 2>/dev/null)" ]; then
    "$ROOT/images/build-initramfs.sh" "$kernel" "$base"
  fi
}

# make_initrd PROGRAM [ARG...]: the base, and a layer: the program, what it needs, and the line that
# runs it.
make_initrd() {
  local cmd=$1 so; shift
  case $cmd in
    */*)
      [ -f "$cmd" ] || die "$cmd is not a file"
      files+=("$cmd")
      for so in "$(dirname "$cmd")"/libcudart.so.*; do [ -f "$so" ] && files+=("$so"); done
      cmd=/app/$(basename "$cmd") ;;
  esac
  printf 'exec' >"$tmp/run"
  printf " '%s'" "$cmd" "${@//\'/\'\\\'\'}" >>"$tmp/run"
  chmod 755 "$tmp/run"
  "$ROOT/images/build-initramfs.sh" --layer "$tmp/layer" "${files[@]}" "$tmp/run:/app/run"
  cat "$base" "$tmp/layer" >"$tmp/initrd"; rm "$tmp/layer"
}
if [ -n "$image" ]; then
  base=$image # it has all of it
  ln -s "$(realpath "$image")" "$tmp/initrd"
else
  make_base
  make_initrd "$@"
fi
if [ -n "$make_image" ]; then mv "$tmp/initrd" "$make_image"; exit; fi

append=$guest_append
machine() { # ACCEL MEM: the arguments that every guest shares
  case $1 in
    kvm) printf '%s\n' -accel kvm -cpu host ;;
    tcg) printf '%s\n' -accel tcg,thread=multi -cpu "$tcg_cpu" ;;
  esac
  printf '%s\n' -smp "$smp" -m "$2" -object "memory-backend-memfd,id=mem,size=$2,share=on" \
    -machine q35,memory-backend=mem -nodefaults -display none -no-reboot -kernel "$vmlinuz"
}

# /dev/kvm can exist and still fail at the first instruction: boot something before trusting it.
kvm_works() {
  [ -r /dev/kvm ] && [ -w /dev/kvm ] || { why="no usable /dev/kvm"; return 1; }
  local args; mapfile -t args < <(machine kvm 256M)
  # The subshell keeps bash's own report of a crashed QEMU off the terminal.
  (timeout -k 2 20 "$qemu" "${args[@]}" -serial stdio -initrd "$base" -append "$append causeway.probe" </dev/null >"$tmp/probe"; true) >>"$tmp/probe" 2>&1
  grep -q '@causeway probe ok' "$tmp/probe" || { why="/dev/kvm exists but a guest does not boot with it"; return 1; }
}
case $accel in
  auto) if kvm_works; then accel=kvm; else accel=tcg; [ -n "$quiet" ] || say "vm: emulated CPU (TCG): $why"; fi ;;
  kvm) kvm_works || die "KVM was asked for: $why" ;;
  tcg) ;;
  *) die "--accel is auto, kvm or tcg" ;;
esac

mapfile -t args < <(machine "$accel" "$mem")
if [ -n "$socket" ]; then
  args+=(-chardev "socket,id=gpu0,path=$socket" -device vhost-user-fs-pci,chardev=gpu0,tag=gpu0,queue-size=1024)
  append+=' causeway.tag=gpu0'
fi
[ -z "$share" ] || args+=(-chardev "socket,id=host,path=$share" -device vhost-user-fs-pci,chardev=host,tag=host,queue-size=1024)
[ -n "$quiet" ] || say "vm: kernel $kernel, $accel, $smp CPUs, $mem"
# What the guest says comes through a virtio-serial port, whose other direction tells it that its
# status was heard: a 16550 drops what is not read in time, and the kernel's own messages would come
# in between.
mkfifo "$tmp/port.in" "$tmp/port.out"
exec 4<>"$tmp/port.in"
args+=(-chardev "file,id=console,path=$tmp/console" -serial chardev:console
  "${devices[@]}" -device virtio-serial-pci,id=ports -chardev "pipe,id=port,path=$tmp/port" -device virtserialport,bus=ports.0,chardev=port,name=vm)
"$qemu" "${args[@]}" -initrd "$tmp/initrd" -append "$append causeway.port=vm" </dev/null >"$tmp/port.out" 2>&1 4>&- &
pid=$!

status= began= late=
exec 3<"$tmp/port.out"
[ -n "$stall" ] || : "${timeout:=900}"
deadline=$((SECONDS + ${timeout:-1000000})) said=$SECONDS
while :; do
  left=$((deadline - SECONDS)) rc=0
  [ "$left" -gt 0 ] || { late="after $timeout s"; break; }
  if [ -n "$stall" ] && [ $((said + stall - SECONDS)) -lt $left ]; then
    left=$((said + stall - SECONDS))
    [ "$left" -gt 0 ] || { late="which had said nothing for $stall s"; break; }
  fi
  IFS= read -r -t "$left" line <&3 || rc=$?
  [ "$rc" -le 128 ] || continue
  [ "$rc" = 0 ] || [ -n "$line" ] || break
  line=${line%$'\r'} said=$SECONDS
  case $line in
    *'@causeway begin '*) began=1; [ -n "$quiet" ] || say "vm: guest ${line##*begin } s after power-on" ;;
    *'@causeway exit '*)
      # A program whose last line has no newline shares the line with the marker.
      [ "$line" = "@causeway exit ${line##*exit }" ] || printf '%s\n' "${line%%@causeway exit*}"
      status=${line##*exit }; began=
      echo heard >&4 ;;
    *': Assertion '*' failed.') printf '%s\n' "$line" ;; # QEMU's own last words
    *) if [ -n "$began" ] || [ -z "$quiet$status" ]; then printf '%s\n' "$line"; fi ;;
  esac
done
# kernel_said shows what the guest's kernel had to complain of.
kernel_said() { tr -d '\r' <"$tmp/console" | grep . | tail -20 | sed 's/^/vm: kernel: /' >&2 || true; }
[ -z "$quiet" ] || kernel_said() { :; }
[ -z "$late" ] || { kernel_said; say "vm: ended $late"; exit 124; }
qemu_status=0; wait "$pid" || qemu_status=$?
pid=
case $status in
  '' | *[!0-9]*) kernel_said; die "the guest ended without reporting a status (QEMU: $qemu_status)" ;;
esac
exit "$status"
