#!/usr/bin/env bash
# Moves a VM between two hosts whose GPU memory goes ahead of it (`causeway migrate`), while CUDA
# programs run in it, and measures the pause.
#
#   scripts/precopy.sh [--kernel SERIES] [--mib "MIB..."] [--rate "RATE..."] [PHASE...]
#
#   --mib     GPU memory of the program whose moves are measured (default: 512)
#   --mode    what that program does, of guest/tests/rounds: idle, or written, whose kernels write
#             all of it in each round (default: idle)
#   --rate    of the link between the hosts, as tc(8) has it, or none (default: none)
#   --noise   its memory holds what nothing compresses (default: one byte over and over)
#   --with    more options of causeway migrate for what is measured, as in "--connections 1"
#   --gpu     of both hosts, as causeway create has it (default: soft)
#   --memory  of their vGPUs (default: 2GiB)
#   --loopback   no name spaces and no shaped link: both hosts have an address of this machine's
#                own, and need no iproute2
#   --image   the guest's image, as --make-image has made it before, and nothing else
#   --against PROGRAM   another causeway, of which a table is made first (other options of --with
#                       than its own are left out)
#   PHASE     move auto fault (what is done by default), cut, victims (workers, QEMUs and the device
#             process are killed while GPU memory goes ahead), table: it moves with and without
#             pre-copy at each rate and size; throttle; losses: a worker or the device process is
#             killed at either side, in each part of a migration (scripts/lib/losses.sh; FAULTS as
#             for killed); killed: causewayd is killed at either side, in each part of a migration
#             (scripts/lib/killed.sh is the table; FAULTS, an extended regular expression, has it do
#             those rows alone)
#
# Two hosts on one machine: network namespaces with a veth between them, shaped by tc's tbf, each
# with a causewayd, a certificate, and a QEMU with its monitors. The software GPU and an emulated
# CPU. The status is 0 if every check passed. Needs root.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"
. "$ROOT/scripts/lib/rounds.sh"
. "$ROOT/scripts/lib/faults.sh"
. "$ROOT/scripts/lib/killed.sh"
. "$ROOT/scripts/lib/losses.sh"

kernel=6.12 sizes=512 rates=none mode=idle noise= with= against= gpu=soft memory=2GiB loopback= image= make_image= phases=() modes="streams pinned threads"
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    --mib) sizes=$2; shift 2 ;;
    --mode) mode=$2; shift 2 ;;
    --rate) rates=$2; shift 2 ;;
    --with) with=$2; shift 2 ;;
    --noise) noise=1; shift ;;
    --gpu) gpu=$2; shift 2 ;;
    --memory) memory=$2; shift 2 ;;
    --loopback) loopback=1; shift ;;
    --image) image=$2; shift 2 ;;
    --make-image) make_image=$2; shift 2 ;;
    --against) against=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) phases+=("$1"); shift ;;
  esac
done
needs_vm "$kernel"
if [ -z "$loopback$make_image" ]; then
  [ "$(id -u)" = 0 ] || die "needs root, for network namespaces"
  have ip && have tc || die "ip and tc are missing: install iproute2, or use --loopback"
elif [ "$rates" != none ]; then die "--loopback has no link that can be shaped: leave --rate out"
fi

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-precopy.XXXXXX")
logs=$BUILD/logs/precopy
rm -rf "$logs"; mkdir -p "$logs"
console_log=$logs/console.log
declare -A net_pid=() daemon_pid=() vm_pid=() address=([a]=10.77.0.1 [b]=10.77.0.2)
[ -z "$loopback" ] || address=([a]=127.77.0.1 [b]=127.77.0.2)
at_host=a peers= stop_at= reader_pid= gap= downtime= took= why= rounds= job=
cleanup() {
  local h
  [ -z "$job" ] || kill "$job" 2>/dev/null
  for h in "${!vm_pid[@]}"; do [ -z "${vm_pid[$h]}" ] || kill -9 "${vm_pid[$h]}" 2>/dev/null; done
  for h in "${!daemon_pid[@]}"; do
    timeout 10 "$CAUSEWAY" delete vm1 --run-dir "$tmp/$h" >/dev/null 2>&1
    end "${daemon_pid[$h]}"
    cp "$tmp/$h/log/vm1/gpu0.log" "$logs/device-$h.log" 2>/dev/null
  done
  [ -z "$reader_pid" ] || kill "$reader_pid" 2>/dev/null
  for h in a b; do [ ! -f "$tmp/$h/scheduler.json" ] || kill "$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["pid"])' "$tmp/$h/scheduler.json")" 2>/dev/null; done
  for h in "${!net_pid[@]}"; do kill "${net_pid[$h]}" 2>/dev/null; done
  end_below "$tmp"
  rm -rf "$tmp"
}
on_exit cleanup
guest_channel "$tmp"

# --- hosts
# --------------------------------------------------------------------------------------------------------------

# on HOST COMMAND... runs it in the host's network; stay_on becomes it, for what runs in the
# background.
stay_on() {
  if [ -n "$loopback" ]; then exec "${@:2}" 9>&- 3>&- 4>&-; fi
  exec nsenter -t "${net_pid[$1]}" -n -- "${@:2}" 9>&- 3>&- 4>&-
}
on() { (stay_on "$@"); }
cli() { on "$1" "$CAUSEWAY" "${@:2}" --run-dir "$tmp/$1"; }

networks() {
  local h
  [ -z "$loopback" ] || return 0
  for h in a b; do
    unshare --net sleep infinity 9>&- 3>&- 4>&- & net_pid[$h]=$!
  done
  until_true 5 apart
  on a ip link add name wirea type veth peer name wireb netns "${net_pid[b]}" || die "no veth between the hosts"
  for h in a b; do
    on $h ip address add "${address[$h]}/24" dev wire$h && on $h ip link set wire$h up && on $h ip link set lo up || die "no network of host $h"
  done
}
apart() { [ "$(readlink "/proc/${net_pid[a]}/ns/net")" != "$(readlink /proc/self/ns/net)" ] && [ "$(readlink "/proc/${net_pid[b]}/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
# shape RATE: of the link, both ways.
shape() {
  local h
  [ -z "$loopback" ] || return 0
  for h in a b; do
    on $h tc qdisc del dev wire$h root 2>/dev/null
    [ "$1" = none ] || on $h tc qdisc add dev wire$h root tbf rate "$1" burst 1mb latency 50ms || return
  done
}

start_causewayd() { # HOST
  stay_on "$1" "$CAUSEWAY" daemon --config "$tmp/$1.toml" -v >>"$logs/causewayd-$1.log" 2>&1 & daemon_pid[$1]=$!
  until_true 20 answers "$1"
}
answers() { [ -S "$tmp/$1/causewayd.sock" ] && cli "$1" gpus >/dev/null 2>&1; }
host() { # NAME
  mkdir -p "$tmp/$1"
  "$CAUSEWAY" certify --dir "$tmp/pki" "$1" "${address[$1]}" >/dev/null || return
  printf '%s\n' "run_dir = '$tmp/$1'" "state_dir = '$tmp/$1/state'" "log_dir = '$tmp/$1/log'" '[devices]' "log = 'file'" 'verbose = true' ${stop_at:+"environment = { CAUSEWAY_STOP_AT = '$stop_at' }"} '[migration]' \
    "listen = '${address[$1]}:7744'" "ca = '$tmp/pki/ca.pem'" "certificate = '$tmp/pki/$1.pem'" "key = '$tmp/pki/$1-key.pem'" "peers = [$peers]" >"$tmp/$1.toml"
  start_causewayd "$1"
}
vgpu() { cli "$1" create vm1 --name gpu0 --gpu "$gpu" --migratable --memory "$memory" >/dev/null; } # at HOST
device_of() { cli "$1" ps --json | python3 -c 'import json,sys; print(next(v["pid"] for v in json.load(sys.stdin)))'; }
# sessions HOST STATE: how many.
sessions() { cli "$1" ps --json 2>/dev/null | python3 -c 'import json,sys; print(sum(s["state"]==sys.argv[1] for v in json.load(sys.stdin) for s in (v.get("status") or {}).get("sessions") or []))' "$2"; }
# empty HOST: no session, no worker of one.
empty() { [ "$(sessions "$1" arriving)$(sessions "$1" parked)$(sessions "$1" running)" = 000 ]; }

# vm HOST [ARGS...] starts a QEMU there.
vm() {
  local host=$1; shift
  end_vm "$host"
  rm -f "$tmp/$host.monitor" "$tmp/$host.qmp"
  stay_on "$host" "$qemu" -accel tcg,thread=multi -cpu "$tcg_cpu" -smp 2 -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on -machine q35,memory-backend=mem \
    -nodefaults -display none "${channel[@]}" -chardev "pipe,id=ticks,path=$tmp/ticks" -device virtserialport,bus=channel.0,chardev=ticks,name=ticks \
    -kernel "$BUILD/kernels/$kernel/vmlinuz" -initrd "$tmp/initrd" -append "$guest_append causeway.tag=gpu0" \
    -monitor "unix:$tmp/$host.monitor,server=on,wait=off" -qmp "unix:$tmp/$host.qmp,server=on,wait=off" \
    -chardev "socket,id=gpu0,path=$tmp/$host/vm1/gpu0.sock" -device vhost-user-fs-pci,chardev=gpu0,tag=gpu0,queue-size=1024 "$@" </dev/null >>"$logs/qemu-$host.log" 2>&1 &
  vm_pid[$host]=$!
  until_true 10 [ -S "$tmp/$host.monitor" ]
}
ask() { timeout 60 python3 "$ROOT/scripts/lib/hmp.py" "$tmp/$1.monitor" "$2"; }
end_vm() { # HOST
  [ -n "${vm_pid[$1]:-}" ] || return 0
  kill -9 "${vm_pid[$1]}" 2>/dev/null
  wait "${vm_pid[$1]}" 2>/dev/null
  vm_pid[$1]=
}
runs() { grep -q 'VM status: running' <<<"$(ask "$1" 'info status')"; }
incoming() { on "$1" grep -qE ':115C 0+:0000 0A ' /proc/net/tcp; } # port 4444 listens
# await_vm HOST: a QEMU there that waits for a VM.
await_vm() { vm "$1" -incoming "tcp:${address[$1]}:4444" && ask "$1" 'migrate_set_capability return-path on' >/dev/null && until_true 10 incoming "$1"; }

# --- moves
# --------------------------------------------------------------------------------------------------------------

# depart [plain] moves the VM to the other host: by causeway migrate, or by QEMU's monitor alone;
# sets took, downtime, gap.
depart() {
  local to; to=$(other "$at_host")
  gap= downtime=
  await_vm "$to" || return
  rm -f "$tmp/gap"; until_true 5 [ -e "$tmp/gap" ]
  local since; since=$(ms)
  if [ "${1:-}" = plain ]; then
    ask "$at_host" 'migrate_set_capability return-path on' && ask "$at_host" "migrate_set_parameter max-bandwidth ${speed:-10g}" && ask "$at_host" "migrate -d tcp:${address[$to]}:4444" || return
    until_true 150 over "$at_host"
  else
    on "$at_host" timeout 600 "$CAUSEWAY" migrate vm1 "${address[$to]}" --run-dir "$tmp/$at_host" --config "$tmp/$at_host.toml" --qmp "$tmp/$at_host.qmp" \
      --uri "tcp:${address[$to]}:4444" ${options:-} >"$tmp/said" 2>&1
  fi
  local rc=$?
  took=$(($(ms) - since))
  sed 's/^/migrate: /' "$tmp/said" >>"$logs/said.log" 2>/dev/null
  [ $rc = 0 ] || { sed 's/^/        | /' "$tmp/said"; end_vm "$to"; return 1; }
  downtime=$(ask "$at_host" 'info migrate' | tr -d '\r' | sed -n 's/^downtime: *\([0-9]*\).*/\1/p;s/^Downtime (ms): *\([0-9]*\).*/\1/p' | head -n 1)
  peak=$(peak_at "$to")
  end_vm "$at_host"
  at_host=$to
  until_true 20 runs "$at_host" && guest true && read -r gap <"$tmp/gap"
}
# peak_at HOST: the most memory that a worker there has had in use, in MiB.
peak_at() {
  cli "$1" ps --json | python3 -c 'import json,sys
most = 0
for v in json.load(sys.stdin):
  for s in (v.get("status") or {}).get("sessions") or []:
    try: most = max([most] + [int(l.split()[1]) for l in open("/proc/%d/status" % s["worker"]) if l.startswith("VmHWM")])
    except (OSError, KeyError): pass
print(most // 1024)'
}
over() { grep -qE 'tatus: *(completed|failed)' <<<"$(ask "$1" 'info migrate')"; }
pauses() { echo "$took ms in all; stands still ${gap% *} ms by the host's clock (QEMU: ${downtime:-?} ms)"; }
ahead_of() { sed -n 's/.*moved to .* s, \(.*\) of GPU memory before it/\1 ahead/p' "$tmp/said"; }

make_image() {
  gcc -std=gnu11 -O2 -Wall -Wextra -Werror -o "$tmp/tick" "$ROOT/guest/tests/life/ticks.c" || die "guest/tests/life/ticks.c does not build"
  rounds_image "$1" "$tmp/tick"
}
prepare() {
  if [ -n "$image" ]; then cp "$image" "$tmp/initrd" || die "there is no image $image"; else make_image "$tmp/initrd"; fi
  mkfifo "$tmp/ticks.in" "$tmp/ticks.out"
  python3 "$ROOT/scripts/lib/ticks.py" "$tmp/ticks.out" "$tmp/gap" 9>&- 3>&- 4>&- & reader_pid=$!
  networks
}
boot() {
  local since; since=$(ms)
  vm a && guest_up; lap; row "a VM with a vGPU on a" "$took ms" || return
  send '&for p in /sys/class/virtio-ports/*; do [ "$(cat $p/name)" != ticks ] || exec ./tick /dev/${p##*/}; done'
  until_true 10 [ -e "$tmp/gap" ]; row "its ticks reach the host" ""
}
spawn() { # MIB
  guest 'rm -f /tmp/spawned' # the program opens it when it runs: what the one before wrote must be gone by then
  send "&${noise:+ROUNDS_NOISE=1} ROUNDS_MIB=$1 ./rounds $mode >/tmp/spawned 2>&1"
  guest 'for i in $(seq 600); do grep -qs @round /tmp/spawned && break; usleep 100000; done; grep -q @round /tmp/spawned'
}
end_spawned() { guest 'kill $!; wait $!; grep "^@done [1-9][0-9]* 0 " /tmp/spawned || { cat /tmp/spawned; false; }'; }

# --- phases
# -------------------------------------------------------------------------------------------------------------

# There and back while programs run, with a program that has much memory.
phase_move() {
  local i
  spawn "${sizes%% *}"; row "a program with ${sizes%% *} MiB of GPU memory" "" || return
  programs start; row "programs run: $modes" ""
  for i in 1 2; do
    depart; row "causeway migrate, move $i, to $at_host" "$(keep pauses)" || return
    row "$(keep sed -n 's/.*\(round [0-9]*: .*\)/\1/p' "$tmp/said" | keep tail -n 1)" "$(keep ahead_of)"
    until_true 10 empty "$(other $at_host)"; row "nothing is left on the other host" ""
    programs on; row "all programs go on, all results right" ""
  done
  programs end; row "the programs end: rounds made" "$rounds"
  end_spawned; row "the large program's memory is as it was" ""
}

# sending: memory goes ahead; begin_slow has a link on which that takes long.
sending() { [ "$(sessions "$(other $at_host)" arriving)" -gt 0 ]; }
begin_slow() {
  shape 50mbit && await_vm "$(other $at_host)" || return
  stay_on $at_host "$CAUSEWAY" migrate vm1 "${address[$(other $at_host)]}" --run-dir "$tmp/$at_host" --config "$tmp/$at_host.toml" --qmp "$tmp/$at_host.qmp" --uri "tcp:${address[$(other $at_host)]}:4444" \
    >"$tmp/said" 2>&1 & job=$!
  until_true 20 sending
}
# stays WHAT: the VM goes on here, and nothing is left there.
stays() {
  local rc=$? to; to=$(other $at_host)
  [ $rc = 0 ] && ! wait $job 2>/dev/null; row "$1: nothing is moved" "$(keep tail -n 1 "$tmp/said")"
  shape none
  end_vm "$to"
  runs $at_host && guest true; row "the VM goes on where it was" ""
  until_true 40 empty "$to"; row "nothing is left on the other host" ""
}
# comes WHAT: the VM moves all the same.
comes() {
  local rc=$? to; to=$(other $at_host)
  shape none
  [ $rc = 0 ] && wait $job; row "$1: the VM moves" "$(keep tail -n 1 "$tmp/said")"
  end_vm $at_host
  at_host=$to
  until_true 20 runs "$at_host" && guest true; row "the VM goes on there" ""
}
# slay_causewayd HOST: SIGKILL, and another takes its place.
slay_causewayd() { kill -9 "${daemon_pid[$1]}"; wait "${daemon_pid[$1]}" 2>/dev/null; start_causewayd "$1"; }
cut_link() { on b ip link set wireb "$1"; }

# What ends a pre-copy while memory is sent.
phase_fault() {
  local noise=1 # what is sent takes as long as the link says: a crowded machine ends a daemon more slowly than it sends what compresses
  [ $at_host = a ] || depart || return
  spawn 64; row "a program with 64 MiB of GPU memory" "" || return
  begin_slow && kill -INT $job; stays "Ctrl-C"
  begin_slow && end "${daemon_pid[b]}" && start_causewayd b; stays "the other host's causewayd ends"
  begin_slow && slay_causewayd b; stays "the other host's causewayd is killed"
  begin_slow && slay_causewayd a; comes "causewayd here is killed"
  depart; row "and comes back, to the vGPU of another causewayd" "$(keep pauses)" || return
  begin_slow && kill -9 "$(device_of b)"; stays "the other host's device process is killed"
  until_true 10 vgpu b; row "it has another" "" # causewayd notices within half a second that the one before is gone
  begin_slow && kill -9 "$job"; stays "causeway migrate is killed"
  end "${daemon_pid[b]}"; daemon_pid[b]=
  ! on a "$CAUSEWAY" migrate vm1 "${address[b]}" --run-dir "$tmp/a" --config "$tmp/a.toml" --qmp "$tmp/a.qmp" --uri tcp:x:1 >"$tmp/said" 2>&1; row "no causewayd there: refused at once" "$(keep tail -n 1 "$tmp/said")"
  start_causewayd b; row "it is back" ""
  depart; row "then the VM moves" "$(keep pauses)" || return
  depart; row "and back" "$(keep pauses)" || return
  end_spawned; row "the program's memory is as it was" ""
}

# worker_of HOST: the one with most memory.
worker_of() { ps -o pid= --sort=-rss --ppid "$(device_of "$1")" | head -n 1 | tr -d ' '; }
slay() { [ -n "$1" ] && kill -9 "$1" && until_true 5 ended "$1"; }

# fell: the spawned program ends by an error when it looks at its memory, and no round that it made
# was wrong.
fell() { guest 'kill $!; ! wait $! && grep -q "^@round " /tmp/spawned && ! grep -q -e "^@done " -e "^@round [0-9]* [1-9]" /tmp/spawned || { cat /tmp/spawned; false; }'; }

# Who is killed while GPU memory goes ahead: worker and QEMU of the other host, worker, device
# process and QEMU here.
phase_victims() {
  local noise=1
  [ $at_host = a ] || depart || return
  spawn 64; row "a program with 64 MiB of GPU memory" "" || return
  programs start; row "programs run: $modes" "" || return
  begin_slow && slay "$(worker_of b)"; comes "a worker of the other host is killed"
  programs on; row "all programs go on, all results right" "" # its session's memory came with the state
  depart; row "the VM moves back" "$(keep pauses)" || return
  begin_slow && end_vm b && shape none; stays "the other host's QEMU is killed"
  programs on; row "all programs go on, all results right" ""
  end_spawned; row "the large program's memory is as it was" ""
  spawn 64; row "another" "" || return
  begin_slow && slay "$(worker_of a)"; comes "the worker of the large program is killed"
  fell; row "that program ends by an error, no round of it was wrong" ""
  programs on; row "all others go on, all results right" ""
  programs end; row "the programs end: rounds made" "$rounds"
  depart; row "the VM moves back" "$(keep pauses)" || return
  spawn 64; row "a third" "" || return
  begin_slow && slay "$(device_of a)" && shape none; stays "the device process here is killed"
  fell; row "its program ends by an error, as without a migration" ""
  end_vm a
  until_true 20 vgpu a && vm a && guest_up; row "a VM with a vGPU on a, once more" "" || return
  sent=0
  spawn 64; row "a program with 64 MiB of GPU memory" "" || return
  begin_slow && end_vm a && shape none; ! wait $job 2>/dev/null && grep -q 'the VM here has ended' "$tmp/said"; row "QEMU here is killed: the VM is gone" "$(keep tail -n 1 "$tmp/said")"
  shape none
  until_true 20 empty a && until_true 40 empty b; row "nothing is left on either host" ""
  ! grep -qE 'status: running' <<<"$(ask b 'info status')"; row "and no VM runs there" ""
  end_vm b
}

# The link is cut, which either side takes half a minute to be sure of.
phase_cut() {
  local noise=1
  [ $at_host = a ] || depart || return
  spawn 64; row "a program with 64 MiB of GPU memory" "" || return
  begin_slow && cut_link down; stays "the link is cut"
  cut_link up; row "the link is back" ""
  depart; row "then the VM moves" "$(keep pauses)" || return
  end_spawned; row "the program's memory is as it was" ""
}

# Without causeway migrate: a's causewayd sends memory to its peer b, which awaits the VM, when QEMU
# begins to send that.
phase_auto() {
  [ $at_host = a ] || depart || return
  spawn 64; row "a program with 64 MiB of GPU memory" "" || return
  rm -f "$tmp/said"
  speed=64m depart plain; row "QEMU moves the VM to b" "$(keep pauses)" || return
  grep "session's memory went ahead" "$tmp/a/log/vm1/gpu0.log" >"$tmp/out"; row "its GPU memory went ahead" "$(keep sed -n 's/.*\(bytes=.*\)/\1/p' "$tmp/out" | keep tail -n 1)"
  end_spawned; row "the program's memory is as it was" ""
}

# Each rate and size, with and without.
phase_table() {
  local rate mib plain plain_took plain_peak
  printf 'table:  program   link      MiB   without: all ms  stands ms  worker MiB   with: all ms  stands ms  worker MiB   rounds\n'
  for rate in $rates; do
    shape "$rate" || die "tc cannot shape the link to $rate"
    for mib in $sizes; do
      spawn "$mib"; row "a program with $mib MiB at $rate" "" || return
      depart plain; row "without pre-copy" "$(keep pauses)" || return
      plain=${gap% *} plain_took=$took plain_peak=$peak
      options=$with depart; row "with" "$(keep pauses)" || return
      printf 'table:  %-9s %-8s %4s %16s %10s %11s %14s %10s %11s   %s\n' "$which" "$rate" "$mib" "$plain_took" "$plain" "$plain_peak" "$took" "${gap% *}" "$peak" \
        "$(sed -n -e 's/.*round [0-9]*: \(.*\) changed of .*, in \(.*\)/\1 in \2;/p' -e 's/.*GPU memory before it, //p' "$tmp/said" | tr '\n' ' ')"
      end_spawned; row "its memory is as it was" ""
    done
  done
  shape none
}

# A program that changes memory faster than the link carries it: the VM stays if it must not stand
# for what is left, and moves when the program is held back.
phase_throttle() {
  spawn "${sizes%% *}"; row "a program that changes ${sizes%% *} MiB all the time" "" || return
  shape "${rates%% *}"
  ! options="--max-pause 300ms" depart; row "without --throttle: it stays" "$(keep tail -n 1 "$tmp/said")"
  options="--max-pause 300ms --throttle" depart; row "with --throttle" "$(keep pauses)"
  keep sed -n 's/^/        | /p' "$tmp/said"
  shape none
  end_spawned; row "its memory is as it was" ""
}

if [ -n "$make_image" ]; then make_image "$make_image"; exit; fi
[ ${#phases[@]} -gt 0 ] || phases=(move auto fault)
# Where memory goes ahead by itself, it does so beside what table measures without.
[[ " ${phases[*]} " != *" auto "* ]] || peers="'${address[b]}'"
if [[ " ${phases[*]} " == *" killed "* || " ${phases[*]} " == *" losses "* ]]; then
  say "building causeway with parts of a move that wait"
  (cd "$ROOT" && go build -trimpath -tags faults -o "$BUILD/bin/causeway-faults" ./host/causeway) || die "it does not build"
  CAUSEWAY=$BUILD/bin/causeway-faults peers="'${address[a]}', '${address[b]}'" stop_at=$tmp/stop
  mkdir "$stop_at"
fi
prepare
begin() {
  host a && host b && vgpu a && vgpu b; row "two hosts: networks, certificates, causewayd and a vGPU on each" "$SECONDS s" && boot
}
which=this
if [ -n "$against" ]; then
  ours=$CAUSEWAY all_with=$with
  CAUSEWAY=$against which=other with=
  begin && phase_table
  end_vm $at_host
  for h in a b; do
    cli $h delete vm1 >/dev/null 2>&1; end "${daemon_pid[$h]}"
    rm -rf "${tmp:?}/$h" "$tmp/$h.toml"
  done
  CAUSEWAY=$ours which=this with=$all_with at_host=a
fi
begin || exit 1
run_phases "${phases[@]}"
calm_kernels
echo "precopy: $passed passed, $failed failed in $SECONDS s"
[ $failed = 0 ]
