#!/usr/bin/env bash
# Attaches a vGPU through a real libvirtd (QEMU driver) to a real guest, and does to that VM what operators do to VMs.
#
#   scripts/libvirt.sh [--kernel SERIES] [PHASE...]     phases: all of them by default, in the order of the table below
#
# libvirtd, QEMU and Causeway run in private namespaces of mounts and processes: a libvirtd of this machine is not touched.
# Each line is a check with what was measured. The status is 0 if every check passed. Needs root.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/pins.sh"
. "$ROOT/scripts/lib/apt.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"
. "$ROOT/scripts/lib/libvirtd.sh"

kernel=6.12 phases=()
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) phases+=("$1"); shift ;;
  esac
done
if [ "${CAUSEWAY_NAMESPACED:-}" != 1 ]; then
  setup_libvirt
  [ -f "$BUILD/kernels/$kernel/vmlinuz" ] || die "no kernel $kernel under build/kernels: run scripts/setup.sh kernels"
  [ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
  have qemu-system-x86_64 || die "qemu-system-x86_64 is missing: run scripts/setup.sh qemu"
fi
in_namespaces "$0" --kernel "$kernel" "${phases[@]}"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-libvirt.XXXXXX")
logs=$BUILD/logs/libvirt
rm -rf "$logs"; mkdir -p "$logs"
console_log=$logs/console.log
: >"$console_log"
export LIBVIRT_DEFAULT_URI=qemu:///system
mkfifo "$tmp/never" "$tmp/serial.in" "$tmp/serial.out"
exec 9<>"$tmp/never" 3<>"$tmp/serial.out" 4<>"$tmp/serial.in"
cleanup() {
  virsh destroy vm1 >/dev/null 2>&1
  stop_libvirtd
  stop_service
  cp -r "$tmp/root/log/." "$logs/" 2>/dev/null
  rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- the domain --------------------------------------------------------------------------------------------------------

# domain [FILESYSTEM] prints a domain's XML: a guest with an initramfs, whose serial console is a pair of fifos.
domain() {
  cat <<E
<domain type='qemu'>
  <name>vm1</name>
  <memory unit='MiB'>512</memory>
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <vcpu>2</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type>
    <kernel>$BUILD/kernels/$kernel/vmlinuz</kernel><initrd>$tmp/initrd</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 mitigations=off audit=0 no_timer_check</cmdline></os>
  <features><acpi/></features><cpu mode='maximum'/>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <emulator>$(command -v qemu-system-x86_64)</emulator>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'/>
    <controller type='pci' index='2' model='pcie-root-port'/>
    <controller type='usb' model='none'/>
    ${1:-}
    <serial type='pipe'><source path='$tmp/serial'/><target type='isa-serial' port='0'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
E
}
filesystem() { # NAME SOCKET
  echo "<filesystem type='mount'><driver type='virtiofs' queue='1024'/><source socket='$2'/><target dir='$1'/></filesystem>"
}
in_guest_mount() { guest "mkdir -p /run/causeway && mount -t virtiofs ${1:-gpu0} /run/causeway"; }

# --- the phases --------------------------------------------------------------------------------------------------------

# A device process started by hand, the domain started from XML.
phase_byhand() {
  start_device /run/causeway/vm1/gpu0.sock "$logs/device.log" --gpu soft --memory 1GiB -v
  domain "$(filesystem gpu0 /run/causeway/vm1/gpu0.sock)" >"$tmp/vm1.xml"
  virsh -q define --validate "$tmp/vm1.xml"; row "define --validate" ""
  local since; since=$(ms)
  virsh -q start vm1; row "start" "$(($(ms) - since)) ms"
  await '@agent ready' 60; row "the guest is up" "$(($(ms) - since)) ms"
  in_guest_mount && limit=60 guest ./vectoradd; row "a CUDA program in the guest" "$(($(ms) - since)) ms after the start"
  since=$(ms)
  virsh -q destroy vm1; row "destroy" "$(($(ms) - since)) ms"
  stop_service
}

life=$BUILD/life/life
prepare() {
  local cc="gcc -std=gnu11 -O2 -Wall -Wextra -Werror -I$ROOT/guest/libcuda" src=$ROOT/guest/tests/life
  mkdir -p "$BUILD/life"
  $cc -o "$life" "$src/life.c" "$src/gpu.c" -ldl -lpthread || die "guest/tests/life does not build"
  guest_image "$kernel" "$tmp/initrd" "$life" "$BUILD/tests/13.0-static/vectoradd"
}

private_folders "$tmp/root"
prepare
start_libvirtd "$logs/libvirtd.log"
[ ${#phases[@]} -gt 0 ] || phases=(byhand)
for p in "${phases[@]}"; do
  declare -F "phase_$p" >/dev/null || die "no phase $p"
  since=$SECONDS
  "phase_$p"
  printf -- '--      %-62s %s\n' "$p" "$((SECONDS - since)) s"
done
echo "libvirt: $passed passed, $failed failed in $SECONDS s"
[ $failed = 0 ]
