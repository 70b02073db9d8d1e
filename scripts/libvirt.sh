#!/usr/bin/env bash
# Attaches a vGPU through a real libvirtd (QEMU driver) to a real guest, and does to that VM what
# operators do to VMs.
#
#   scripts/libvirt.sh [--kernel SERIES] [PHASE...]     phases: all of them by default, in the order
#       of the table below
#
# libvirtd, QEMU and Causeway run in private namespaces of mounts and processes: a libvirtd of this
# machine is not touched. Each line is a check with what was measured. The status is 0 if every
# check passed. Needs root.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"
. "$ROOT/scripts/lib/libvirtd.sh"

kernel=6.12 phases=()
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) phases+=("$1"); shift ;;
  esac
done
needs_libvirt "$kernel"
CAUSEWAY=${CAUSEWAY_PROGRAM:-$CAUSEWAY}
in_namespaces "$0" --kernel "$kernel" "${phases[@]}"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-libvirt.XXXXXX")
logs=$BUILD/logs/libvirt
rm -rf "$logs"; mkdir -p "$logs"
console_log=$logs/console.log
export LIBVIRT_DEFAULT_URI=qemu:///system
guest_channel "$tmp"
cleanup() {
  timeout 10 virsh destroy vm1 >/dev/null 2>&1
  stop_libvirtd
  stop_causewayd
  cp -r "$tmp/root/log/." "$logs/" 2>/dev/null
  rm -rf "$tmp"
}
on_exit cleanup

# --- causewayd, the hook and the domain
# --------------------------------------------------------------------------------

causewayd_pid=
start_causewayd() { # [PROGRAM]
  "${1:-$CAUSEWAY}" daemon --config "$tmp/causewayd.toml" >>"$logs/causewayd.log" 2>&1 9>&- 3>&- 4>&- &
  causewayd_pid=$!
  for _ in $(seq 600); do
    "$CAUSEWAY" ps >/dev/null 2>&1 && [ -S /run/causeway/causewayd.sock ] && return
    kill -0 "$causewayd_pid" 2>/dev/null || break
    nap 0.1
  done
  tail -5 "$logs/causewayd.log" >&2
  die "causewayd does not answer: see $logs/causewayd.log"
}
stop_causewayd() {
  end "$causewayd_pid"
  causewayd_pid=
}
# vgpu KEY prints a value of vm1/gpu0 as causewayd tells it.
vgpu() { "$CAUSEWAY" inspect vm1/gpu0 --json 2>/dev/null | sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" | head -1; }

life=$tmp/life
prepare() {
  build_life "$life" life gpu
  "$ROOT/scripts/build-tests.sh" --only 13.0-static vectoradd || die "guest/tests/vectoradd does not build: run scripts/setup.sh cuda 13.0"
  guest_image "$kernel" "$tmp/initrd" "$life" "$BUILD/tests/13.0-static/vectoradd" || die "no guest image"
  truncate -s 1M "$tmp/disk.raw"
  printf '%s\n' 'run_dir = "/run/causeway"' "state_dir = \"$tmp/state\"" "log_dir = \"$logs\"" '[devices]' 'log = "file"' 'verbose = true' >"$tmp/causewayd.toml"
  sed "s,/usr/bin/causeway,$CAUSEWAY,g" "$ROOT/scripts/package/files/libvirt-hook" >/etc/libvirt/hooks/qemu.d/causeway
  chmod 755 /etc/libvirt/hooks/qemu.d/causeway
}

# domain [METADATA [FILESYSTEM [MEMORYBACKING]]] prints a domain's XML: a guest with an initramfs,
# and guest.sh's channel.
shared="<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"
domain() {
  cat <<E
<domain type='qemu'>
  <name>vm1</name>
  <uuid>7a6f1a2e-5b0c-4c55-9c1e-0d8f3c0a9b11</uuid>
  ${1:+<metadata>$1</metadata>}
  <memory unit='MiB'>512</memory>
  ${3-$shared}
  <vcpu>2</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type>
    <kernel>$BUILD/kernels/$kernel/vmlinuz</kernel><initrd>$tmp/initrd</initrd>
    <cmdline>$guest_append</cmdline></os>
  <features><acpi/></features>$tcg_cpu_xml
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <emulator>$(command -v qemu-system-x86_64)</emulator>
    <disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='$tmp/disk.raw'/><target dev='vda' bus='virtio'/></disk>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'/>
    <controller type='pci' index='2' model='pcie-root-port'/>
    <controller type='pci' index='3' model='pcie-root-port'/>
    <controller type='pci' index='4' model='pcie-root-port'/>
    <controller type='usb' model='none'/>
    ${2:-}
    <channel type='pipe'><source path='$tmp/agent'/><target type='virtio' name='agent'/></channel>
    <serial type='file'><source path='$console_log' append='on'/><target type='isa-serial' port='0'/></serial>
    <serial type='pty'><target type='isa-serial' port='1'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
E
}
metadata="<causeway:vgpus xmlns:causeway='urn:causeway:vgpu:1'><causeway:vgpu name='gpu0' gpu='any' memory='1GiB' share='50' cap='75'/></causeway:vgpus>"
filesystem="<filesystem type='mount'><driver type='virtiofs' queue='1024'/><source socket='/run/causeway/vm1/gpu0.sock'/><target dir='gpu0'/></filesystem>"

define() { domain "$@" >"$tmp/vm1.xml" && virsh -q define --validate "$tmp/vm1.xml" >"$tmp/out" 2>&1 || { cat "$tmp/out"; false; }; }
start() { virsh -q start vm1 && guest_up; }
processors() { timeout 20 virsh qemu-monitor-command vm1 --hmp 'info registers -a'; }
# A driver that was just plugged in takes a moment to find its device.
mount_gpu() {
  guest 'mkdir -p /run/causeway; for i in $(seq 200); do mount -t virtiofs gpu0 /run/causeway 2>/dev/null && break; usleep 100000; done; [ -e /run/causeway/info ]'
}
# spawn MODE starts a program in the guest's background and sets pid to its pid there.
spawn() {
  send "&./life $1"
  await '@ready *' && pid=${line#@ready }
}
refused() { ! "$@" >"$tmp/out" 2>&1; } # COMMAND...; its text is in $tmp/out
says() { grep -qF -e "$1" "$tmp/out" || { head -12 "$tmp/out" | sed 's/^/        | /'; false; }; }
timed() { local since; since=$(ms); "$@" >"$tmp/out" 2>&1; local rc=$?; took=$(($(ms) - since)); [ $rc = 0 ] || sed 's/^/        | /' "$tmp/out"; return $rc; }

# --- the phases
# --------------------------------------------------------------------------------------------------------

# The domain's XML says everything; the hook has the vGPU ready.
phase_declarative() {
  stop_causewayd
  define && virsh -q start vm1 --paused && virsh -q destroy vm1; row "a domain without a vGPU starts while causewayd is down" ""
  define "$metadata" "$filesystem"; row "define --validate, with metadata and <filesystem>" ""
  refused virsh start vm1 && says 'causewayd does not run'; row "a domain with one does not, and says why" ""
  start_causewayd
  local since; since=$(ms)
  timed virsh -q start vm1; row "virsh start: the hook has causewayd ready the socket" "$took ms"
  guest_up; lap; row "the guest is up" "$took ms" || return
  mount_gpu && limit=60 guest ./vectoradd; lap; row "a CUDA program in the guest" "$took ms after the start"
  [ "$(vgpu state)" = connected ] && [ "$(vgpu memory)" = 1073741824 ] && [ "$(vgpu share)" = 50 ] && [ "$(vgpu cap)" = 75 ]
  row "causewayd has the metadata's limits" ""
  : >"$tmp/typed"
  timeout 300 script -qfc 'virsh console vm1 serial1' "$tmp/typed" >/dev/null 2>&1 <&9 & local c=$!
  until_true 10 grep -q 'Escape character' "$tmp/typed" && guest 'echo hello from the guest >/dev/ttyS1' && until_true 10 grep -q 'hello from the guest' "$tmp/typed"
  row "virsh console" ""
  kill $c 2>/dev/null; wait $c 2>/dev/null
  spawn loop
  timed virsh -q destroy vm1; row "destroy while a program runs" "$took ms"
  gone; row "the vGPU is released, nothing of it is left" "$gone ms"
}

# has_vgpu [--inactive] looks for both parts in the domain's description, no_vgpu for either.
has_vgpu() { virsh dumpxml vm1 "$@" >"$tmp/out" && says /run/causeway/vm1/gpu0.sock && says '<causeway:vgpu name="gpu0" memory="1GiB" share="50"/>'; }
no_vgpu() { virsh dumpxml vm1 "$@" >"$tmp/out" && ! grep -e urn:causeway -e /run/causeway/vm1 "$tmp/out"; }

# gone waits until no process or file of vm1's vGPU is left; sets gone to the ms that took.
gone() {
  local since; since=$(ms)
  while [ -n "$(pgrep -f 'causeway (device|worker)|/proc/self/exe (worker|keeper)')" ] || [ -e /run/causeway/vm1 ]; do
    gone=$(($(ms) - since))
    [ $gone -lt $((30000 * slack)) ] || { pgrep -af 'causeway (device|worker)|/proc/self/exe'; ls -R /run/causeway; return 1; }
    nap 0.05
  done
  gone=$(($(ms) - since))
}

is_state() { [ "$(vgpu state)" = "$1" ]; }
no_workers() { ! pgrep -f '/proc/self/exe worker' >/dev/null; }

# The same by command, into a running guest and its definition.
phase_hotplug() {
  define '' '' '' && start; row "a guest without a vGPU, its memory not shared" ""
  refused "$CAUSEWAY" attach vm1 && says "<source type='memfd'" && says "<access mode='shared'"; row "attach: refused with the XML to add" ""
  virsh -q destroy vm1
  define && start; row "the same with shared memory" "" || return
  "$CAUSEWAY" attach vm1 --memory 1GiB --share 50 --dry-run >"$tmp/out" && says "memory='1GiB' share='50'" && says /run/causeway/vm1/gpu0.sock && [ ! -e /run/causeway/vm1 ]
  row "attach --dry-run prints the XML, does nothing" ""
  timed "$CAUSEWAY" attach vm1 --memory 1GiB --share 50; row "causeway attach, live and persistent" "$took ms"
  has_vgpu && has_vgpu --inactive
  row "both descriptions have it, metadata and device" ""
  mount_gpu && limit=60 guest ./vectoradd; row "a CUDA program in the guest" ""
  refused "$CAUSEWAY" attach vm1 --name gpu0 && says 'has such a vGPU already'; row "attach again: refused" ""
  local mode
  for mode in idle loop long copy; do
    spawn $mode || { row "life $mode starts" ""; continue; }
    local victim=$pid
    timed "$CAUSEWAY" detach vm1; row "causeway detach while a program runs ($mode)" "$took ms"
    [ $mode = idle ] || { await '@error *' 10 && [[ $line == '@error '[1-9]* ]]; row "the program gets an error and ends" "$line"; }
    guest "kill $victim 2>/dev/null; for i in \$(seq 150); do [ -d /proc/$victim ] || break; usleep 200000; done; [ ! -d /proc/$victim ] && umount -l /run/causeway"
    row "the guest lives, and the program is gone" ""
    gone; row "so are its worker and the device process" "$gone ms"
    no_vgpu && no_vgpu --inactive; row "neither description has a trace" ""
    timed "$CAUSEWAY" attach vm1 && mount_gpu && guest ./life once; row "attached again, a program runs" "$took ms to attach"
  done
  virsh -q destroy vm1
  gone; row "destroy: the hook released what was plugged in" "$gone ms"
}

# steady begins a program that computes and checks without end; still_steady ends it: no result
# wrong, no pause longer than allowed, which others at work prolong.
steady() { spawn pinned; row "a program that checks its results runs" "" && steady_pid=$pid; }
still_steady() { # WHAT PAUSE_MS
  send "&kill $steady_pid"
  await '@pinned *' 10; local result=$line
  guest "while [ -d /proc/$steady_pid ]; do usleep 50000; done" && [[ $result =~ ^@pinned\ ([0-9]+)\ 0\ ([0-9]+)$ ]] && [ "${BASH_REMATCH[1]}" -gt 5 ] && [ "${BASH_REMATCH[2]}" -le "$(allowed "$2")" ]
  row "$1" "rounds, wrong, longest pause in ms: ${result#@pinned }"
}

# What happens to VMs in the course of time.
phase_lifecycle() {
  local since device
  define "$metadata" "$filesystem" && start && mount_gpu && guest ./life once; row "a VM with a vGPU" "" || return
  device=$(vgpu pid)

  steady
  virsh -q suspend vm1 && nap 3 && virsh -q resume vm1; row "suspend for 3 s, resume" ""
  nap 1
  still_steady "the program went on" 3000

  steady
  stop_libvirtd; nap 1; start_libvirtd "$logs/libvirtd.log"
  [ "$(virsh domstate vm1)" = running ]; row "libvirtd restarted" ""
  stop_causewayd; nap 2; start_causewayd
  [ "$(vgpu state)" = connected ] && [ "$(vgpu pid)" = "$device" ]; row "causewayd restarted: it finds the vGPU again" ""
  stop_causewayd
  (cd "$ROOT" && go build -trimpath -ldflags '-X main.version=next' -o "$tmp/next/bin/causeway" ./host/causeway) && ln -s "$BUILD/lib" "$tmp/next/lib" &&
    start_causewayd "$tmp/next/bin/causeway"
  [ "$(vgpu state)" = connected ] && [ "$(vgpu pid)" = "$device" ] && grep -q 'causewayd is ready.*version=next' "$logs/causewayd.log"; row "causewayd upgraded: so does another version" ""
  guest ./life once; row "another program starts meanwhile" ""
  still_steady "neither was noticed" 3000

  steady
  timed timeout 300 virsh snapshot-create-as vm1 s1 --memspec "file=$tmp/s1.mem,snapshot=external" --diskspec "vda,snapshot=external,file=$tmp/s1.qcow2"
  [ "$(virsh domstate vm1)" = running ]; row "a snapshot with memory while a program runs" "$took ms"
  virsh -q snapshot-create-as vm1 s2 --disk-only --diskspec "vda,snapshot=external,file=$tmp/s2.qcow2" >/dev/null; row "a snapshot of disks" ""
  timed timeout 300 virsh save vm1 "$tmp/vm1.save"; row "virsh save" "$took ms"
  gone; row "the vGPU is released meanwhile" "$gone ms"
  timed timeout 300 virsh restore "$tmp/vm1.save"; row "virsh restore: the hook readies the vGPU" "$took ms"
  limit=60 guest 'cat /run/causeway/info >/dev/null && ./life once'; row "the mount is as it was, another program runs" ""
  still_steady "the first went on, all results right" 6000

  spawn loop
  since=$(ms)
  send 'echo b >/proc/sysrq-trigger'
  guest_up; lap; row "the guest reboots" "$took ms"
  mount_gpu && guest ./life once; row "and runs a program" ""

  spawn loop
  kill -9 "$(vgpu pid)"
  await '@error *' 10 && [[ $line == '@error 719 '* ]]; row "the device process is killed while a program runs: error 719" "$line"
  until_true 5 is_state lost; row "causewayd says that the vGPU is lost" ""
  guest umount -l /run/causeway; row "the VM lives, and lets go of the mount" ""
  timed "$CAUSEWAY" detach vm1 --live; row "causeway detach of a lost vGPU" "$took ms"
  timed "$CAUSEWAY" attach vm1 --live && mount_gpu && guest ./life once; row "attached again, a program runs" "$took ms to attach"
  timed virsh -q destroy vm1; row "destroy" "$took ms"
  gone; row "nothing is left" "$gone ms"
  start && mount_gpu && guest ./life once; row "the next start has a vGPU again" ""
  virsh -q destroy vm1
}

# The complete examples of docs/LIBVIRT.md, as they stand; without KVM, they are defined for an
# emulated CPU.
phase_examples() {
  local f name n=0
  awk -v dir="$tmp" '/^```xml$/ {getline; if (/^<domain/) {n++; on = 1; f = dir "/example" n ".xml"}} /^```$/ {on = 0} on {print > f}' "$ROOT/docs/LIBVIRT.md"
  for f in "$tmp"/example*.xml; do
    n=$((n + 1)) name=$(sed -n 's/.*<name>\(.*\)<.name>.*/\1/p' "$f")
    sed -i "s/type='kvm'/type='qemu'/; s/mode='host-passthrough'/mode='maximum'/" "$f"
    virsh define --validate "$f" >"$tmp/out" 2>&1 || { cat "$tmp/out"; false; }; row "docs/LIBVIRT.md: domain $name" ""
    "$CAUSEWAY" hook qemu "$name" prepare begin - <"$f" 2>"$tmp/out"; local rc=$?
    [ $rc = 0 ] || cat "$tmp/out"
    "$CAUSEWAY" hook qemu "$name" release end - <"$f" && [ $rc = 0 ]; row "and its hook" ""
    virsh -q undefine "$name"
  done
  [ $n -ge 2 ]; row "the documentation has examples" "$n"
}

# QEMU without libvirt.
phase_qmp() {
  local qemu
  qemu-system-x86_64 -accel tcg,thread=multi -cpu "$tcg_cpu" -smp 2 -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on -machine q35,memory-backend=mem \
    -nodefaults -display none "${channel[@]}" -qmp "unix:$tmp/qmp,server=on,wait=off" \
    -monitor "unix:$tmp/monitor,server=on,wait=off" -device pcie-root-port,id=rp1,chassis=1 \
    -kernel "$BUILD/kernels/$kernel/vmlinuz" -initrd "$tmp/initrd" -append "$guest_append" 9>&- 3>&- 4>&- &
  qemu=$!
  guest_up; row "a guest of QEMU without libvirt" "" || return
  timed "$CAUSEWAY" attach vm2 --qmp "$tmp/qmp" --memory 1GiB; row "causeway attach --qmp" "$took ms"
  mount_gpu && guest ./life once; row "a program runs" "" || { stuck $qemu; "$CAUSEWAY" inspect vm2/gpu0; "$CAUSEWAY" logs vm2/gpu0 | tail -40; }
  refused "$CAUSEWAY" attach vm2 --qmp "$tmp/qmp" && says 'has such a vGPU'; row "attach again: refused" ""
  spawn loop
  timed "$CAUSEWAY" detach vm2 --qmp "$tmp/qmp"; row "causeway detach --qmp while a program runs" "$took ms"
  await '@error *' 10; row "the program gets an error" "$line"
  guest umount -l /run/causeway
  timed "$CAUSEWAY" attach vm2 --qmp "$tmp/qmp" && mount_gpu && guest ./life once; row "attached again, a program runs" "$took ms to attach"
  end $qemu
  until_true 5 "$CAUSEWAY" delete vm2/gpu0; row "the VM ends; causeway delete ends the vGPU" ""
}

# A NIC with SR-IOV, as sysfs would show it: libvirt takes a function's <hostdev> into a definition,
# and gives it back.
phase_functions() {
  local pci=/sys/bus/pci/devices nic=0000:41:00.0 f=0000:41:00.2 address="bus='0x41' slot='0x00' function='0x2'"
  mkdir -p $pci && mount -t tmpfs tmpfs $pci && mkdir $pci/$nic $pci/$f
  echo 0x020000 | tee $pci/$nic/class >$pci/$f/class
  echo 8 >$pci/$nic/sriov_totalvfs
  ln -s ../$f $pci/$nic/virtfn0 && ln -s ../../../kernel/iommu_groups/7 $pci/$f/iommu_group
  define; has() { virsh dumpxml vm1 "$@" >"$tmp/out" && says "$address"; }
  timed "$CAUSEWAY" vf assign $nic --vm vm1 && has --inactive; row "causeway vf assign: a function is in the definition" "$took ms"
  "$CAUSEWAY" vf list >"$tmp/out" && says 'reserved for VM vm1'; row "and reserved" ""
  refused "$CAUSEWAY" vf assign $f --vm vm1 && says 'is reserved for VM vm1'; row "assign again: refused" ""
  timed "$CAUSEWAY" vf release vm1 && virsh dumpxml vm1 >"$tmp/out" && ! grep -F "$address" "$tmp/out"; row "causeway vf release: it is out of it" "$took ms"
  "$CAUSEWAY" vf assign $nic --vm vm1 --config >"$tmp/out" && virsh -q undefine vm1 --snapshots-metadata --managed-save && "$CAUSEWAY" vf release vm1 >"$tmp/out" && says "$f is free"
  row "released after its VM is no more" ""
  define && virsh -q start vm1 --paused && refused "$CAUSEWAY" vf assign $nic --vm vm1 --live && says 'plug in: ' && says 'taken back'
  row "libvirt does not plug it in: all is taken back" "$(keep sed "s/^causeway: plug in: //; s/\\(.\\{80\\}\\).*/\\1/" "$tmp/out")"
  "$CAUSEWAY" vf list >"$tmp/out" && says 'free' && virsh -q destroy vm1; row "and it is free" ""
  umount $pci
}

# only_we: left is who else is there.
only_we() {
  left=$(ps -eo pid=,args= | grep -vE "^ *(1|$libvirtd_pid) |ps -eo|grep -v| scheduler --socket|scripts/libvirt.sh|<defunct>")
  [ -z "$left" ]
}

# After everything: the scheduler and causewayd go, nothing else may be there.
phase_leftovers() {
  local left
  "$CAUSEWAY" ps --json >"$tmp/out" && ! grep '"vm"' "$tmp/out"; row "causewayd knows no vGPU" ""
  stop_causewayd
  until_true 5 only_we; row "no process is left but the scheduler, which outlives causewayd" "$left"
  left=$(find /run/causeway -mindepth 1 | grep -v -e /scheduler -e causewayd.lock -e vfs.lock); [ -z "$left" ]; row "no socket or record" "$left"
  left=$(ours); [ "$left" = "$mounts" ]; row "no mount" "$left"
  left=$(find /dev/shm -name '*causeway*'); [ -z "$left" ]; row "no shared memory" "$left"
}

private_folders "$tmp/root"
prepare
start_libvirtd "$logs/libvirtd.log"
start_causewayd
ours() { grep -cE " (/run/causeway|$tmp)[/ ]" /proc/mounts; } # mounts of this run: others are of who runs beside it
mounts=$(ours)
[ ${#phases[@]} -gt 0 ] || phases=(examples declarative hotplug lifecycle qmp functions leftovers)
run_phases "${phases[@]}"
calm_kernels
echo "libvirt: $passed passed, $failed failed in $SECONDS s"
[ $failed = 0 ]
