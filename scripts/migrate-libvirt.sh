#!/usr/bin/env bash
# Moves a VM between two libvirtd with `virsh migrate --live`, saves and restores it, while CUDA
# programs run in it, and checks that they go on with right results.
#
#   scripts/migrate-libvirt.sh [--kernel SERIES] [--times N] [--modes "MODE..."] [PHASE...]
#
#   --times N    there and back so many times (default 1)
#   --modes      which programs of guest/tests/rounds run meanwhile
#   PHASE        move ahead save document suspend abort killed refuse remote (all by default, in
#                this order), often (move, three times there and back); document runs the commands
#                of docs/MIGRATION.md, remote, which comes last, moves a VM whose GPU is on a GPU
#                server
#
# Programs run over several phases; others take their place behind document and before remote.
# Two hosts on one machine, a and b: namespaces of mounts and host names, each with its own
# libvirtd, causewayd and hook. The software GPU and an emulated CPU. Each line is a check with what
# was measured. The status is 0 if every check passed. Needs root.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"
. "$ROOT/scripts/lib/libvirtd.sh"
. "$ROOT/scripts/lib/rounds.sh"

arguments=("$@")
kernel=6.12 times=1 phases=() modes=$rounds_modes
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    --times) times=$2; shift 2 ;;
    --modes) modes=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) phases+=("$1"); shift ;;
  esac
done
needs_libvirt "$kernel"
in_namespaces "$0" "${arguments[@]}"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-hosts.XXXXXX")
logs=$BUILD/logs/migrate-libvirt
rm -rf "$logs"; mkdir -p "$logs"
console_log=$logs/console.log
# The documents' commands name files in /var/tmp, which both hosts share, and other runs of this
# script do not.
[[ $tmp == /var/tmp/* ]] || { mkdir "$tmp/var" && mount --bind "$tmp/var" /var/tmp; } || die "no /var/tmp"
guest_channel "$tmp"
declare -A host_pid=() libvirtd=() causewayd=()
at_host=a rounds= begun=
cleanup() {
  local h
  for h in "${!host_pid[@]}"; do timeout 10 nsenter -t "${host_pid[$h]}" -m -u virsh -q destroy vm1 >/dev/null 2>&1; done
  for h in "${!host_pid[@]}"; do
    end "${libvirtd[$h]:-}"; end "${causewayd[$h]:-}"; end "${host_pid[$h]}"
    cp -r "$tmp/$h/log/." "$logs/$h/" 2>/dev/null
  done
  rm -rf "$tmp"
}
on_exit cleanup

# --- hosts
# --------------------------------------------------------------------------------------------------------------

# on HOST COMMAND... runs it there; stay_on becomes it, for what runs in the background.
stay_on() { exec nsenter -t "${host_pid[$1]}" -m -u -- env LIBVIRT_DEFAULT_URI="$(uri "$1")" "${@:2}" 9>&- 3>&- 4>&-; }
on() { (stay_on "$@"); }
awaits() { if [ "$1" = a ]; then echo 127.0.0.1:7744; else echo 127.0.0.1:7745; fi; } # where a host's causewayd awaits the other
uri() { echo "qemu+unix:///system?socket=$tmp/$1/libvirt-sock"; }
answers() { on "$1" virsh version && on "$1" "$CAUSEWAY" ps && on "$1" test -S /run/causeway/causewayd.sock; } >/dev/null 2>&1

start_causewayd() { # HOST
  stay_on "$1" "$CAUSEWAY" daemon --config "$tmp/$1/causewayd.toml" >>"$logs/$1/causewayd.log" 2>&1 & causewayd[$1]=$!
}
# host NAME makes one: folders of its own, causewayd, the hook, libvirtd, whose socket the other
# host sees, too.
host() {
  local dir=$tmp/$1
  mkdir -p "$dir" "$logs/$1"
  unshare --mount --uts --propagation private bash -c '. "$1/scripts/lib/libvirtd.sh"; hostname "$2"; private_folders "$3"; : >"$3/ready"; exec sleep infinity' \
    - "$ROOT" "$1" "$dir" 9>&- 3>&- 4>&- & host_pid[$1]=$!
  until_true 60 [ -e "$dir/ready" ] || die "host $1 does not come to be"
  printf 'unix_sock_dir = "%s"\n' "$dir" >>"$dir/etc/libvirtd.conf"
  printf '%s\n' 'run_dir = "/run/causeway"' "state_dir = \"$dir/state\"" "log_dir = \"$logs/$1\"" '[devices]' 'log = "file"' 'verbose = true' >"$dir/causewayd.toml"
  "$CAUSEWAY" certify --dir "$tmp/pki" "$1" 127.0.0.1 >/dev/null || die "no certificate for host $1"
  printf '%s\n' '[migration]' "listen = '$(awaits "$1")'" "ca = '$tmp/pki/ca.pem'" "certificate = '$tmp/pki/$1.pem'" "key = '$tmp/pki/$1-key.pem'" >>"$dir/causewayd.toml"
  sed "s,/usr/bin/causeway,$CAUSEWAY,g" "$ROOT/scripts/package/files/libvirt-hook" >"$dir/etc/hooks/qemu.d/causeway"
  chmod 755 "$dir/etc/hooks/qemu.d/causeway"
  start_causewayd "$1"
  stay_on "$1" libvirtd >"$logs/$1/libvirtd.log" 2>&1 & libvirtd[$1]=$!
  until_true 60 answers "$1" || { tail -n 5 "$logs/$1/libvirtd.log" "$logs/$1/causewayd.log" >&2; die "host $1 does not answer"; }
}

domain() { # ATTRIBUTES of its vGPU
  cat <<X
<domain type='qemu'>
  <name>vm1</name>
  <metadata>
    <causeway:vgpus xmlns:causeway='urn:causeway:vgpu:1'><causeway:vgpu name='gpu0' $1 memory='1GiB'/></causeway:vgpus>
  </metadata>
  <memory unit='MiB'>512</memory>
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <vcpu>2</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type>
    <kernel>$BUILD/kernels/$kernel/vmlinuz</kernel><initrd>$tmp/initrd</initrd>
    <cmdline>$guest_append causeway.tag=gpu0</cmdline></os>
  <features><acpi/></features>$tcg_cpu_xml
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <emulator>$(command -v qemu-system-x86_64)</emulator>
    <controller type='usb' model='none'/>
    <filesystem type='mount'>
      <driver type='virtiofs' queue='1024'/>
      <source socket='/run/causeway/vm1/gpu0.sock'/><target dir='gpu0'/>
    </filesystem>
    <channel type='pipe'><source path='$tmp/agent'/><target type='virtio' name='agent'/></channel>
    <serial type='file'><source path='$console_log' append='on'/><target type='isa-serial' port='0'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
X
}

# --- checks
# -------------------------------------------------------------------------------------------------------------

# vm COMMAND... at the VM's host, timed; its text is in $tmp/out, and shown if it fails.
timed() { local since rc; since=$(ms); "$@" >"$tmp/out" 2>&1; rc=$?; took=$(($(ms) - since)); [ $rc = 0 ] || { echo "        | status $rc"; sed 's/^/        | /' "$tmp/out"; }; return $rc; }
processors() { on "$at_host" timeout 20 virsh qemu-monitor-command vm1 --hmp 'info registers -a'; }
vm() { local command=$1; shift; timed on "$at_host" timeout 500 virsh -q "$command" vm1 "$@"; }
is_there() { # or it is said how each host sees it
  local h
  [ "$(on "$at_host" virsh domstate vm1 2>/dev/null)" != running ] || return 0
  for h in a b; do on $h virsh list --all 2>&1 | sed "1d;s/^/        | $h: /"; done
  return 1
}
said() { keep grep -m1 . "$tmp/out"; }
# released HOST: nothing of the vGPU is left there.
released() { ! on "$1" test -e /run/causeway/vm1; }

move() { # to the other host
  local to; to=$(other "$at_host")
  vm migrate --live --persistent --undefinesource "$(uri "$to")" tcp://127.0.0.1 && at_host=$to && is_there
}
begin() {
  [ -z "$begun" ] || return 0
  begun=1
  programs start; row "programs run: $modes" ""
}
go_on() { programs on; row "all programs go on, all results right" ""; }
finish() {
  [ -n "$begun" ] || return 0
  begun=
  programs end; row "and end: rounds made" "$rounds"
}

phase_move() {
  local i from
  begin || return
  for i in $(seq $((times * 2))); do
    from=$at_host
    move; row "virsh migrate --live from $from to $(keep other $from), move $i" "$took ms" || return
    until_true 10 released $from; row "$from has released the vGPU" ""
    go_on
  done
}

phase_often() { local times=3; phase_move; }

# Their GPU memory goes ahead, then libvirt moves the VM; and it is called off while that is under
# way.
phase_ahead() {
  local to job
  begin || return
  send '&ROUNDS_MIB=128 ./rounds idle >/tmp/large 2>&1'
  guest 'for i in $(seq 300); do grep -q @round /tmp/large && break; usleep 100000; done; grep -q @round /tmp/large'; row "a program with 128 MiB of GPU memory" ""
  for _ in 1 2; do
    to=$(other "$at_host")
    timed migrate "$to" && at_host=$to && is_there; row "causeway migrate to $to" "$took ms: $(keep tail -n 1 "$tmp/out")" || return
    until_true 10 released "$(other "$to")"; row "$(keep other "$to") has released the vGPU" ""
    go_on
  done
  to=$(other "$at_host")
  stay_migrate "$to" --bandwidth 20MiB >"$tmp/out" 2>&1 & job=$!
  until_true 20 arriving "$to" && kill -INT $job; ! wait $job && is_there; row "Ctrl-C while memory goes ahead: it stays" "$(keep tail -n 1 "$tmp/out")"
  until_true 10 released "$to"; row "nothing is left on $to" ""
  guest 'kill $!; wait $!; grep "^@done [1-9][0-9]* 0 " /tmp/large'; row "the memory is as it was" ""
  go_on
}
arriving() { grep -q arriving <<<"$(on "$1" "$CAUSEWAY" ps -a 2>&1)"; } # through a pipe grep would leave at the first match, and who still writes fail
migrate() { (stay_migrate "$@"); }
stay_migrate() { # HOST [ARGS...]
  stay_on "$at_host" timeout 500 "$CAUSEWAY" migrate vm1 "$(awaits "$1")" --config "$tmp/$at_host/causewayd.toml" --to "$(uri "$1")" --uri tcp://127.0.0.1 "${@:2}"
}

phase_save() {
  begin || return
  vm save "$tmp/saved"; row "virsh save" "$took ms" || return
  until_true 10 released $at_host; row "the vGPU is released meanwhile" ""
  timed on $at_host timeout 500 virsh -q restore "$tmp/saved" && is_there; row "virsh restore" "$took ms" || return
  go_on
  vm save "$tmp/saved"; row "virsh save again" "$took ms" || return
  at_host=$(other $at_host)
  timed on $at_host timeout 500 virsh -q restore "$tmp/saved" && is_there; row "virsh restore on the other host" "$took ms" || return
  go_on
  move; row "and the VM moves back" "$took ms"
}

# The commands of docs/MIGRATION.md, as they stand there but for the name of the other host.
phase_document() {
  local command words at_snapshot n=0
  begin || return
  while read -r command; do
    n=$((n + 1))
    read -ra words <<<"${command//'qemu+ssh://hostb/system'/$(uri b) tcp://127.0.0.1}"
    timed on $at_host timeout 500 "${words[@]}"; row "$command" "$took ms" || break
    # The guest's count of commands goes back with its memory.
    case $command in *snapshot-create*) at_snapshot=$sent ;; *snapshot-revert*) sent=$at_snapshot ;; *hostb*) at_host=b ;; esac
    if is_there; then go_on; fi
  done < <(sed -n 's/^ *//; /^```sh$/,/^```$/p' "$ROOT/docs/MIGRATION.md" | grep '^virsh ')
  [ $n -ge 10 ]; row "docs/MIGRATION.md has commands" "$n"
  rm -f /var/tmp/vm1.saved /var/tmp/vm1.memory
}

phase_suspend() {
  begin || return
  vm suspend && nap 3 && vm resume; row "virsh suspend for 3 s, resume" ""
  go_on
}

# The link is slow, and the job is aborted while memory is sent.
phase_abort() {
  begin || return
  stay_on $at_host timeout 500 virsh -q migrate vm1 --live --bandwidth 1 "$(uri "$(other $at_host)")" tcp://127.0.0.1 >"$tmp/out" 2>&1 & local job=$!
  until_true 20 sending && vm domjobabort; row "virsh domjobabort while memory is sent" ""
  ! wait $job && is_there; row "the VM is where it was" "$(keep said)"
  go_on
  until_true 10 released "$(other $at_host)"; row "nothing is left on the other host" ""
}
# A causewayd is killed while memory is sent: nothing of a migration passes through it.
phase_killed() {
  local who to job
  begin || return
  for who in destination source; do
    to=$(other $at_host)
    stay_on $at_host timeout 500 virsh -q migrate vm1 --live --persistent --undefinesource --bandwidth 1 "$(uri "$to")" tcp://127.0.0.1 >"$tmp/out" 2>&1 & job=$!
    host=$to
    [ $who = destination ] || host=$at_host
    until_true 20 sending && kill -9 "${causewayd[$host]}"; row "the $who's causewayd is killed while memory is sent" ""
    wait "${causewayd[$host]}" 2>/dev/null
    on $at_host virsh -q migrate-setspeed vm1 10000
    wait $job; row "the VM moves all the same" "$(keep sed -n 1p "$tmp/out")" || return
    at_host=$to
    is_there && go_on
    on "$host" rm /run/causeway/causewayd.sock # the other host's has the same path in /proc/net/unix, which both see
    start_causewayd "$host" && until_true 20 answers "$host"; row "causewayd on $host is back" ""
    until_true 10 released "$(other "$at_host")"; row "nothing is left on $(keep other $at_host)" "" || on "$(other $at_host)" "$CAUSEWAY" ps
  done
}
fill() { echo $(($(stat -c %s "$BUILD/tests/13.0-static/rounds") * 100 / 1048576)); }
# refuses: a migration to $to that has all that to send, 10 MiB a second, ends with less than half
# of it sent. libvirt calls it canceled, or names what the other QEMU says of a stream that ends,
# whichever it hears first.
refuses() {
  local job rc
  stay_on $at_host timeout 500 virsh -q migrate vm1 --live --bandwidth 10 "$(uri "$to")" tcp://127.0.0.1 >"$tmp/job" 2>&1 & job=$!
  took=$(ms)
  while kill -0 $job 2>/dev/null; do
    on $at_host virsh domjobinfo vm1 --rawstats 2>/dev/null | sed -n 's/^memory_processed: *//p'
    nap 0.1
  done >"$tmp/sent"
  wait $job; rc=$?; took=$(($(ms) - took))
  sent_mib=$(sort -n "$tmp/sent" | awk 'END { print int($1 / 1048576) }')
  [ $rc != 0 ] && grep -qE "canceled|job 'migration (out|in)' failed" "$tmp/job" && is_there && [ "$sent_mib" -lt $(($(fill) / 2)) ]
}
kept() { on $at_host "$CAUSEWAY" inspect vm1 >"$tmp/out" && grep -q '^ *stays .*captures' "$tmp/out"; }

# What cannot move is known before; or the other host lacks what the vGPU needs: its hook says so
# before anything is sent.
phase_refuse() {
  local to; to=$(other $at_host)
  begin || return
  send '&./rounds captures >/tmp/captures 2>&1'
  guest 'for i in $(seq 300); do grep -q @round /tmp/captures && break; usleep 100000; done; grep -q @round /tmp/captures'; row "a program with a stream that captures" ""
  guest 'mkdir /tmp/fill; for i in $(seq 100); do cp ./rounds /tmp/fill/$i; done'; row "memory to send" "$(keep fill) MiB"
  until_true 10 kept; row "causeway inspect says what keeps the VM here" "$(keep sed -n 's|^ *stays *||p' "$tmp/out")"
  refuses; row "virsh migrate is called off at once, the VM runs on" "$took ms, $sent_mib MiB sent: $(keep grep -m1 . "$tmp/job")" || sed 's/^/        | /' "$tmp/job"
  until_true 10 grep -q 'called off.*captures' "$logs/$at_host/causewayd.log" && grep -q 'a migration begins that will fail.*captures' "$logs/$at_host/vm1/gpu0.log"
  row "causewayd's log and the vGPU's say why" "$(keep sed -n 's/.*called off.*why="\(.*\)".*/\1/p' "$logs/$at_host/causewayd.log" | tail -n 1)"
  kept; row "and causeway inspect" ""
  guest 'kill $!; wait $!; grep "^@done [1-9][0-9]* 0 " /tmp/captures'; row "the program, too" ""
  guest 'rm -r /tmp/fill'
  end "${causewayd[$to]}"; causewayd[$to]=
  ! vm migrate --live --persistent --undefinesource "$(uri "$to")" tcp://127.0.0.1 >/dev/null && is_there && grep -q 'causewayd does not run' "$tmp/out"
  row "$to has no causewayd: refused at once" "$took ms: $(keep sed -n '/causeway: hook: /{s/.*causeway: hook: //p;q}' "$tmp/out")"
  start_causewayd "$to" && until_true 20 answers "$to"; row "causewayd on $to is back" ""
  go_on
}
sending() { grep -q '^Memory processed: *[1-9]' <<<"$(on $at_host virsh domjobinfo vm1)"; }

# --- a GPU server
# -------------------------------------------------------------------------------------------------------

# serve makes a third host, whose causewayd serves its GPU to the two.
server=127.0.0.1:7746
serve() {
  local dir=$tmp/gpus
  mkdir -p "$dir" "$logs/gpus"
  "$CAUSEWAY" certify --dir "$tmp/pki" gpus 127.0.0.1 >/dev/null || return
  printf '%s\n' "run_dir = '$dir/run'" "state_dir = '$dir/state'" "log_dir = '$logs/gpus'" '[devices]' 'log = "file"' '[migration]' "ca = '$tmp/pki/ca.pem'" \
    "certificate = '$tmp/pki/gpus.pem'" "key = '$tmp/pki/gpus-key.pem'" >"$dir/causewayd.toml"
  "$CAUSEWAY" serve --listen $server --allow a,b --config "$dir/causewayd.toml" >>"$logs/gpus/causewayd.log" 2>&1 9>&- 3>&- 4>&- & causewayd[gpus]=$!
  until_true 20 "$CAUSEWAY" ps --run-dir "$dir/run" >/dev/null 2>&1
}
# uses_server HOST: its causewayd takes GPUs from there, and asks the other host for VMs that leave.
uses_server() {
  sed -i "s/^\[migration\]$/&\npeers = ['$(awaits "$(other "$1")")']/" "$tmp/$1/causewayd.toml" && printf '%s\n' '[remote]' "servers = ['$server']" >>"$tmp/$1/causewayd.toml" && kill -HUP "${causewayd[$1]}"
  until_true 20 lists_server "$1"
}
lists_server() { grep -q '^127.0.0.1' <<<"$(on "$1" "$CAUSEWAY" gpus --all 2>/dev/null)"; }
served() { "$CAUSEWAY" inspect "$1/vm1:gpu0" --json --run-dir "$tmp/gpus/run" 2>/dev/null; }
served_worker() { { served a; served b; } | grep -om 1 '"worker": *[0-9]*'; }

# A VM whose GPU is on a server moves by virsh migrate alone: GPU memory and worker stay where they
# are.
phase_remote() {
  local i from worker modes="streams threads waits times" # none whose kernels read the guest's memory in place
  serve && uses_server a && uses_server b; row "a GPU server, which both hosts use" "" || { tail -n 3 "$logs/gpus/causewayd.log"; return 1; }
  vm destroy && on $at_host virsh -q undefine vm1 && until_true 20 released $at_host; row "the VM with a GPU of the host's ends" ""
  domain "remote='any'" >"$tmp/remote.xml"
  on $at_host virsh -q define --validate "$tmp/remote.xml" && vm start && guest_up; row "a VM with remote='any' in its XML" "$took ms" || return
  sent=0
  begin || return
  worker=$(served_worker)
  for i in $(seq $((times * 2))); do
    from=$at_host
    move; row "virsh migrate --live from $from to $(keep other $from), move $i" "$took ms" || return
    until_true 20 released $from; row "$from has released the vGPU" ""
    go_on
    [ -n "$worker" ] && [ "$(served_worker)" = "$worker" ]; row "the worker at the server is the same" "$worker"
  done
  ! vm migrate --live "qemu+unix:///system?socket=$tmp/nobody" >/dev/null && is_there; row "a migration to nowhere: it stays" ""
  go_on
  finish
}

rounds_image "$tmp/initrd"
domain "gpu='soft'" >"$tmp/vm1.xml"
host a
host b
row "two hosts: libvirtd, causewayd and hook on each" "$SECONDS s"
on a virsh -q define --validate "$tmp/vm1.xml" && vm start && guest_up; row "a VM with a vGPU on a" "" || exit 1
guest './life once'; row "a CUDA program runs" ""
[ ${#phases[@]} -gt 0 ] || phases=(move ahead save document suspend abort killed refuse remote)
for p in "${phases[@]}"; do
  [ "$p" != remote ] || finish
  run_phases "$p"
  [ "$p" != document ] || finish
done
finish
vm destroy; row "virsh destroy" "$took ms"
until_true 10 released a && until_true 10 released b; row "nothing is left on either host" ""
calm_kernels
echo "migrate-libvirt: $passed passed, $failed failed in $SECONDS s"
[ $failed = 0 ]
