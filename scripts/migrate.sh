#!/usr/bin/env bash
# Moves a VM between two QEMUs, each with a vGPU of its own, while CUDA programs run in it, and
# checks that they go on with right results.
#
#   scripts/migrate.sh [--kernel SERIES] [--gpu SEL] [--times N] [--modes "MODE..."] [PHASE...]
#
#   --gpu SEL    the GPU of both (default: soft); on a real one the vGPUs are migratable
#   --warm N     workers that wait on a real one, in each device process
#   --image FILE        the guest's image, made before by
#   --make-image FILE   which does nothing else
#   --times N    there and back so many times (default 1)
#   --append TEXT  more of the guest kernel's command line
#   --balloon HOW  the VM has a memory balloon, by which its kernel tells QEMU of freed memory:
#                  reporting (all the time), hint (when it migrates), plain (neither)
#   --modes      which programs of guest/tests/rounds run meanwhile (default: those of
#                scripts/lib/rounds.sh; processes, two that share memory and events, and over, more
#                managed memory than there is room for, which takes all of the vGPU and runs alone,
#                only if named)
#   PHASE        idle pause move file refused fail late (what is done by default), often (move, five
#                times there and back), large, once (how many bytes of managed memory at the GPU
#                travel), gpus (the VM stays, its programs go to this machine's other GPU and back,
#                by what links the two), faults (some of scripts/lib/faults.sh),
#                allfaults, train (scripts/lib/train.sh: a Python program of this machine's tree
#                trains while its VM moves to and fro)
#
# QEMU alone, with its monitor; an emulated CPU. Each line is a check with what was measured. The
# status is 0 if
# every check passed. docs/MIGRATION.md says what moves.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"
. "$ROOT/scripts/lib/rounds.sh"
. "$ROOT/scripts/lib/faults.sh"
. "$ROOT/scripts/lib/train.sh"
. "$ROOT/scripts/lib/balloon.sh"

kernel=6.12 times=1 phases=() gpu=soft warm=1 image='' make_image='' append='' balloon='' module=''
modes=$rounds_modes
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    --gpu) gpu=$2; shift 2 ;;
    --warm) warm=$2; shift 2 ;;
    --image) image=$2; shift 2 ;;
    --make-image) make_image=$2; shift 2 ;;
    --times) times=$2; shift 2 ;;
    --append) append=$2; shift 2 ;;
    --balloon) balloon=$2; shift 2 ;;
    --modes) modes=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) phases+=("$1"); shift ;;
  esac
done
needs_vm "$kernel"
[ -z "$balloon" ] || balloon_module "$kernel" || die "there is no balloon for the guest"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-migrate.XXXXXX")
logs=$BUILD/logs/migrate/${phases[0]:-all} # of its own: a stage runs this several times
rm -rf "$logs"; mkdir -p "$logs"
console_log=$logs/console.log
declare -A device_pid=() vm_pid=()
reader_pid= at_host= gap= downtime= took= why= departed= begun= rounds=
shares='' ram=512M cpus=2 # of the VM: whether it sees this machine's tree
cleanup() {
  local h
  for h in "${!vm_pid[@]}"; do [ -z "${vm_pid[$h]}" ] || kill -9 "${vm_pid[$h]}" 2>/dev/null; done
  for h in "${!device_pid[@]}"; do end "${device_pid[$h]}"; done
  [ -z "$reader_pid" ] || kill "$reader_pid" 2>/dev/null
  [ -z "$shares" ] || stop_sharing
  rm -rf "$tmp"
}
on_exit cleanup
guest_channel "$tmp"
memory=1GiB
[ "$modes" != over ] || memory=64MiB # nearly all of which it takes
movable=(--gpu "$gpu" --memory $memory)
[ "$gpu" = soft ] || movable=(--gpu "$gpu" --migratable --memory 48GiB --warm "$warm") # contexts count
[ "$gpu" = soft ] || [[ " ${phases[*]} " != *" gpus "* ]] || movable+=(--linked-gpus)

# --- hosts: a and b have a device process each, and a QEMU with a monitor
# ----------------------------------------------

# serve HOST [ARGS...] starts its device process.
serve() {
  [ ! -e "$logs/device-$1.log" ] || cat "$logs/device-$1.log" >>"$logs/device-$1-before.log"
  start_device "$tmp/$1.sock" "$logs/device-$1.log" "${movable[@]}" --control "$tmp/$1.ctl" -v "${@:2}"
  device_pid[$1]=$service_pid service_pid=
}
stop_serving() { end "${device_pid[$1]}"; device_pid[$1]=; }

# vm HOST [ARGS...] starts a QEMU there; --no-gpu first leaves the device out. All QEMUs have the
# same channel: one that waits for a VM reads nothing, and the source is ended before anything is
# said to the VM again.
vm() {
  local host=$1 gpu=(-chardev "socket,id=gpu0,path=$tmp/$1.sock" -device vhost-user-fs-pci,chardev=gpu0,tag=gpu0,queue-size=1024); shift
  quit_vm "$host"
  if [ "${1:-}" = --no-gpu ]; then shift; gpu=(); fi
  rm -f "$tmp/$host.monitor"
  [ -z "$balloon" ] || gpu+=($(balloon_device "$balloon"))
  [ -z "$shares" ] || gpu+=(-chardev "socket,id=host,path=$tmp/$host.share" -device vhost-user-fs-pci,chardev=host,tag=host,queue-size=1024)
  "$qemu" -accel tcg,thread=multi -cpu "$tcg_cpu" -smp "$cpus" -m "$ram" -object "memory-backend-memfd,id=mem,size=$ram,share=on" -machine q35,memory-backend=mem \
    -nodefaults -display none "${channel[@]}" -chardev "pipe,id=ticks,path=$tmp/ticks" -device virtserialport,bus=channel.0,chardev=ticks,name=ticks \
    -kernel "$BUILD/kernels/$kernel/vmlinuz" -initrd "$tmp/initrd" \
    -append "$guest_append causeway.tag=gpu0 $append" \
    -monitor "unix:$tmp/$host.monitor,server=on,wait=off" "${gpu[@]}" "$@" </dev/null >>"$logs/qemu-$host.log" 2>&1 9>&- 3>&- 4>&- &
  vm_pid[$host]=$!
  until_true 10 [ -S "$tmp/$host.monitor" ]
}
# ask HOST COMMAND: what its QEMU answers.
ask() { timeout 60 python3 "$ROOT/scripts/lib/hmp.py" "$tmp/$1.monitor" "$2"; }
quit_vm() { # HOST
  [ -n "${vm_pid[$1]:-}" ] || return 0
  kill -9 "${vm_pid[$1]}" 2>/dev/null
  wait "${vm_pid[$1]}" 2>/dev/null
  vm_pid[$1]=
}
# migration_is HOST STATUS...: one of them; why is QEMU's reason for a failure.
migration_is() {
  local status host=$1; shift
  status=$(ask "$host" 'info migrate' | tr -d '\r' | sed -n 's/^\(Migration s\|S\)tatus: *//p')
  why=$(sed -n 's/[^(]*(\(.*\))$/\1/p' <<<"$status")
  [[ " $* " == *" ${status%% *} "* ]]
}
runs() { grep -q 'VM status: running' <<<"$(ask "$1" 'info status')"; }


# expect_vm HOST [ARGS...]: a QEMU there that waits for a VM.
expect_vm() {
  rm -f "$tmp/migration"
  vm "$@" -incoming "unix:$tmp/migration" && ask "$1" 'migrate_set_capability return-path on' && until_true 10 [ -S "$tmp/migration" ]
}

# set_off [WHERE] starts the migration from $at_host, with slow=1 at 1 MB/s. With return-path the
# source is done when the destination says that all is well, and goes on if it does not.
set_off() {
  local speed=10g path=on
  [ -z "${slow:-}" ] || speed=1m
  [ -z "${1:-}" ] || path=off
  rm -f "$tmp/gap"
  until_true 5 [ -e "$tmp/gap" ] || return 1
  ask "$at_host" "migrate_set_capability return-path $path" && ask "$at_host" "migrate_set_parameter max-bandwidth $speed" || return 1
  departed=$(ms)
  ask "$at_host" "migrate -d \"${1:-unix:$tmp/${link:-migration}}\""
}

# depart STATUS [WHERE] sets off and waits for that status; sets took and downtime.
depart() {
  set_off "${@:2}" || return 1
  until_true "${patience:-90}" migration_is "$at_host" completed failed cancelled "$1"
  took=$(($(ms) - departed))
  ask "$at_host" 'info migrate' | tr -d '\r' >"$tmp/info"
  sed 's/^/migrate: /' "$tmp/info" >>"$logs/qemu-$at_host.log"
  downtime=$(sed -n 's/^downtime: *\([0-9]*\).*/\1/p' "$tmp/info")
  migration_is "$at_host" "$1"
}

# arrive ends the source and goes on at the destination; sets gap to "HOST_MS GUEST_MS" of the
# longest pause.
arrive() {
  quit_vm "$at_host"
  at_host=$(other "$at_host")
  until_true 10 runs "$at_host" && guest true && read -r gap <"$tmp/gap"
}

# move takes the VM to the other host. If that comes to nothing, no QEMU waits there.
move() {
  gap= downtime=
  expect_vm "$(other "$at_host")" && depart completed && arrive && return
  quit_vm "$(other "$at_host")"
  return 1
}
pauses() { echo "$took ms in all; stands still ${gap% *} ms by the host's clock, ${gap#* } ms by its own (QEMU: ${downtime:-?} ms)"; }

# --- the guest
# ---------------------------------------------------------------------------------------------------------

make_image() { # OUT
  build_life "$tmp/tick" ticks
  rounds_image "$1" "$tmp/tick" ${module:+"$module"}
}

prepare() {
  if [ -n "$image" ]; then cp "$image" "$tmp/initrd" || die "there is no image $image"; else make_image "$tmp/initrd"; fi
  mkfifo "$tmp/ticks.in" "$tmp/ticks.out"
  python3 "$ROOT/scripts/lib/ticks.py" "$tmp/ticks.out" "$tmp/gap" 9>&- 3>&- 4>&- & reader_pid=$!
}

boot() { # at host a
  local since; since=$(ms)
  at_host=a
  vm a && guest_up; lap; row "a VM with a vGPU" "$took ms" || return
  [ -z "$balloon" ] || { guest 'insmod ./virtio_balloon.ko && cat /sys/bus/virtio/drivers/virtio_balloon/*/features'; row "its balloon ($balloon)" "" || return; }
  send '&for p in /sys/class/virtio-ports/*; do [ "$(cat $p/name)" != ticks ] || exec ./tick /dev/${p##*/}; done'
  until_true 10 [ -e "$tmp/gap" ]; row "its ticks reach the host" ""
}

# --- the phases
# --------------------------------------------------------------------------------------------------------

# No CUDA program runs: the mount moves.
phase_idle() {
  local i
  guest './life once'; row "a program runs" ""
  for i in $(seq $((times * 2))); do
    move; row "no program runs: move $i, to $at_host" "$(keep pauses)" || return
    guest 'cat /run/causeway/info >/dev/null && ./life once'; row "its mount is as it was, a program runs" ""
  done
}

# The programs of all further phases, which run until the last has passed.
begin() {
  [ -z "$begun" ] || return 0
  begun=1
  programs start; row "programs run: $modes" ""
}
go_on() { programs on; row "all programs go on, all results right" ""; }

# spawn MODE starts another program of rounds; end_spawned ends it: its results were right.
spawn() {
  guest 'rm -f /tmp/spawned' # the program opens it when it runs: what the one before wrote must be gone by then
  send "&./rounds $1 >/tmp/spawned 2>&1"
  guest 'for i in $(seq 300); do grep -qs @round /tmp/spawned && break; usleep 100000; done; grep -q @round /tmp/spawned'
}
end_spawned() { guest 'kill $!; wait $!; grep "^@done [1-9][0-9]* 0 " /tmp/spawned || { cat /tmp/spawned; false; }'; }

# at_a: the VM is where the phases want it.
at_a() { [ $at_host = a ] || move; }

# What cannot move refuses, and the VM goes on where it is; standing still is no move.
phase_refused() {
  at_a || return
  spawn captures; row "a program with a stream that captures" "" || return
  expect_vm b && depart failed && why=$(grep -o 'device state transfer failed.*' "$logs/device-a.log" | tail -n 1 | sed 's/.*error=//')
  stays "migration fails"
  end_spawned; row "and so does the program" ""
  spawn callbacks; row "a program whose streams wait for functions of its own" "" || return
  ask a stop && nap 3 && ask a cont; row "stop for 3 s, cont" ""
  nap 0.5; end_spawned; row "the program went on" ""
}

# With programs running, there and back.
phase_move() {
  local i
  for i in $(seq $((times * 2))); do
    move; row "move $i, to $at_host" "$(keep pauses)" || return
    go_on
  done
}

# Ten moves in a row.
phase_often() { local times=5; phase_move; }

# between_gpus LOG: how quickly one read the other's memory.
between_gpus() { sed -n 's/.*msg="memory read from the other GPU".* gb_s=/GB\/s: /p' "$1" | tr '\n' ' '; }
# The VM stays, its programs go to the other GPU of this machine and back.
phase_gpus() {
  local i there=(1 0) said linked=$logs/device-$at_host.log
  [ "$gpu" != soft ] || there=(soft/1 soft/0)
  mkdir -p "$tmp/run/vm1"
  ln -sfn "$tmp/$at_host.ctl" "$tmp/run/vm1/gpu0.ctl"
  for i in $(seq $((times * 2))); do
    said=$("$CAUSEWAY" move vm1 --run-dir "$tmp/run" --gpu "${there[(i - 1) % 2]}" 2>&1); row "move $i, to GPU ${there[(i - 1) % 2]}" "$said" || return
    go_on
  done
  [ "$gpu" = soft ] || grep -q 'msg="memory read from the other GPU"' "$linked"; row "by what links the two" "$(keep between_gpus "$linked")"
}

# Standing still for longer than a loan's term.
phase_pause() {
  ask $at_host stop && nap 3 && ask $at_host cont; row "stop for 3 s, cont" ""
  go_on
}

# To a file, and from it to another device process.
phase_file() {
  depart completed "exec:cat >$tmp/file"; row "saved to a file" "$took ms, $(keep stat -c %s "$tmp/file") bytes" || return
  quit_vm $at_host && stop_serving $at_host && $serves $at_host
  vm $at_host -incoming "exec:cat $tmp/file" && until_true 30 runs $at_host; row "another QEMU and device process restore it" "" || return
  rm "$tmp/file"
  go_on
}

# stays WHAT: the VM and its programs go on where they are, after a migration that came to nothing.
stays() {
  local rc=$?
  quit_vm b
  kill -CONT "${device_pid[b]}"
  [ $rc = 0 ] && until_true 10 runs a; row "$1: the VM goes on at a" "$why"
  go_on
}

# What comes to nothing while memory is sent, for which a slow link leaves time; or because there is
# no device.
phase_fail() {
  at_a || return
  # QEMU 10.0.2 says that it failed instead, once in some dozens of times, if a thread of it finds
  # the closed channel ("Channel error") before another has noted the cancel.
  expect_vm b && slow=1 depart active && ask a migrate_cancel && until_true 10 migration_is a cancelled failed
  stays "cancelled while memory is sent"
  expect_vm b && slow=1 depart active && quit_vm b && until_true 10 migration_is a failed
  stays "the destination is killed while memory is sent"
  expect_vm b --no-gpu && depart failed
  stays "the destination has no vGPU"
}

# deaf HOST: its QEMU waits for its device process and for nothing else.
deaf() { ! timeout 1 python3 "$ROOT/scripts/lib/hmp.py" "$tmp/$1.monitor" 'info status' >/dev/null; }

# refused PATTERN: b's device process said so, which why is then.
refused() {
  until_true 5 grep -qE "$1" "$logs/device-b.log" && why=$(grep -m1 -oE "[^=:\"]*($1).*" "$logs/device-b.log")
}

# A destination that dies or refuses when the GPU's state comes to it.
phase_late() {
  at_a || return
  # Its device process is stopped, so its QEMU waits, and with it, as what it sends is not read, the
  # source's.
  expect_vm b && kill -STOP "${device_pid[b]}" && set_off && until_true 30 deaf b && quit_vm b && until_true 20 migration_is a failed
  stays "the destination is killed while it takes the GPU's state"
  stop_serving b; $serves b --memory 1MiB
  expect_vm b && depart failed && refused 'OUT_OF_MEMORY.*'
  stays "the destination's vGPU has too little memory"
  stop_serving b; $serves b --sessions 1
  expect_vm b && depart failed && refused 'as many CUDA processes as it may.*'
  stays "the destination's vGPU takes one program only"
  stop_serving b; $serves b
  move; row "then the VM moves" "$(keep pauses)" || return
  go_on
}

# What GPU memory costs.
phase_large() {
  local mib
  for mib in 0 128 512; do
    guest "export ROUNDS_MIB=$mib"
    spawn idle; row "a program with $mib MiB of GPU memory" "" || return
    move; row "it moves to $at_host" "$(keep pauses)" || return
    end_spawned; row "its memory is as it was" ""
  done
}

# travelled HOST sets of_ram and of_state: MiB of the VM's memory that QEMU has sent, pages of
# zeroes left out, and of its programs' state, which the device process of the host it left has.
travelled() {
  of_ram=$(sed -n 's/^normal bytes: *\([0-9]*\) kbytes.*/\1/p' "$tmp/info")
  of_state=$(grep -o 'msg="session saved" .*' "$logs/device-$1.log" | sed -n 's/.* bytes=\([0-9]*\).*/\1/p' | tail -n 1)
  of_ram=$((${of_ram:-0} / 1024)) of_state=$((${of_state:-0} >> 20))
  [ $of_ram -gt 0 ]
}
# What lies at the GPU travels in the state once. The pages that it was in before the guest's kernel
# has back, and what they hold goes with the VM's memory unless it is zero (init_on_free=1), or
# reported to QEMU (--balloon reporting).
phase_once() {
  local mib from of_ram of_state most='' rams=() states=()
  for mib in 0 96; do
    guest "export ROUNDS_MIB=$mib"
    spawn handed; row "a program with $mib MiB of managed memory at the GPU" "" || return
    [ "$balloon" != reporting ] || { balloon_settled "${vm_pid[$at_host]}"; row "its kernel has reported what is free" "$took MiB are left to QEMU"; }
    from=$at_host
    move && travelled $from; row "it moves to $at_host" "$of_ram MiB of the VM's memory, $of_state MiB of state" || return
    end_spawned; row "every byte of it is right" ""
    rams+=($of_ram) states+=($of_state)
  done
  of_state=$((states[1] - states[0])) of_ram=$((rams[1] - rams[0]))
  [ $of_state -ge 96 ] && [ $of_state -lt 112 ]; row "96 MiB are in the state once" "$of_state MiB more"
  [ "$balloon" != reporting ] || most=64
  [[ " $append " != *" init_on_free=1 "* ]] || most=48
  [ -z "$most" ] || [ $of_ram -lt "$most" ]; row "in the VM's memory, to which they have been given back${append:+ ($append)}" "$of_ram MiB more"
}

if [ -n "$make_image" ]; then make_image "$make_image"; exit; fi
serves=serve
if [[ " ${phases[*]} " == *faults* ]]; then
  say "building causeway with parts of a move that wait"
  (cd "$ROOT" && go build -trimpath -tags faults -o "$BUILD/bin/causeway-faults" ./host/causeway) || die "it does not build"
  CAUSEWAY=$BUILD/bin/causeway-faults serves=serve_kept
  mkdir "$tmp/stop"
fi
[[ " ${phases[*]} " != *" train "* ]] || share_tree
prepare
$serves a
$serves b
boot || exit 1
[ ${#phases[@]} -gt 0 ] || phases=(idle pause move file refused fail late)
for p in "${phases[@]}"; do
  declare -F "phase_$p" >/dev/null || die "no phase $p"
  began=$SECONDS
  case $p in idle | large | once | train) ;; *) begin || break ;; esac
  "phase_$p"
  printf -- '--      %-62s %s\n' "$p" "$((SECONDS - began)) s"
done
if [ -n "$begun" ]; then
  programs end; row "the programs end: rounds made" "$rounds"
  if [[ " $modes " == *" training "* ]]; then same_curve "$gpu"; row "its losses are those of a run that was not moved" "$curve"; fi
fi
calm_kernels
echo "migrate: $passed passed, $failed failed in $SECONDS s"
[ $failed = 0 ]
