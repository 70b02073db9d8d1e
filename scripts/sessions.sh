#!/usr/bin/env bash
# Shows how sessions live and end, in a VM and under `causeway run`: exit, crash, SIGKILL, SIGSTOP,
# fork, reboot, the VM's death, the worker's death, the device process's, hostile programs; and what
# an idle session costs. Each line is a check with what was measured.
#
#   scripts/sessions.sh [--kernel SERIES] [--accel tcg|kvm]
#
# The programs are guest/tests/life. This script tells a shell in the guest what to run, and looks
# at the workers
# here. The status is 0 if every check passed.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"

kernel=6.12 accel=tcg
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    --accel) accel=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
# The promise is 2 s, and half a second for what ends in order. An emulated CPU shares two cores
# with everything that it waits for, which takes up to half a second more.
death=2000 quick=500
[ "$accel" = kvm ] || death=2500 quick=1000
needs_vm "$kernel"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-sessions.XXXXXX")
mkdir -p "$BUILD/logs"
device_log=$BUILD/logs/sessions-device.log console_log=$BUILD/logs/sessions-console.log
qemu_pid=
on_exit end_vm

# --- measuring
# ---------------------------------------------------------------------------------------------------------

guest_channel "$tmp"

# gone_after PID SINCE prints the ms from SINCE until the process is gone, at most a minute.
gone_after() {
  while [ -d "/proc/$1" ] && [ $(($(ms) - $2)) -lt 60000 ]; do nap 0.01; done
  echo $(($(ms) - $2))
}
workers() { cat /proc/"$service_pid"/task/*/children 2>/dev/null | tr -d '\n'; }
# no_workers_after SINCE prints the ms until the device has no worker, at most a minute.
no_workers_after() {
  while [ -n "$(workers)" ] && [ $(($(ms) - $1)) -lt 60000 ]; do nap 0.02; done
  echo $(($(ms) - $1))
}
# worker_of GUEST_PID prints the last worker that was started for it.
worker_of() { sed -n "s/.*worker started.* guest_pid=$1 .*worker=\([0-9]*\).*/\1/p" "$device_log" | tail -1; }
# resumed GUEST_PID prints how often its session came back to the GPU. in_time MS LIMIT: it took no
# longer than that may take now; sets most, for the row.
resumed() { grep -c "session resumed.* guest_pid=$1\b" "$device_log"; }
in_time() { local rc=$?; most=$(allowed "$2"); [ $rc = 0 ] && at_most "$1" "$most"; }
fds() { ls "/proc/$service_pid/fd" | wc -l; }
threads() { ls "/proc/$service_pid/task" | wc -l; }
resident() { awk '/^Rss(Anon|File)/ {n += $2} END {print n}' "/proc/$service_pid/status"; } # KiB; pages of the guest are the guest's
# cpu PID prints the CPU time of each of its threads so far; cpu_since PID FILE: the us since that
# was written to FILE.
cpu() { awk '{print FILENAME, $1}' /proc/"$1"/task/*/schedstat; }
cpu_since() { [ -s "$2" ] && [ -d "/proc/$1" ] && cpu "$1" | awk 'NR == FNR {was[$1] = $2; next} {t += $2 - was[$1]} END {printf "%d\n", t / 1000}' "$2" -; }

# --- the guest
# ---------------------------------------------------------------------------------------------------------

prepare() {
  mkdir -p "$BUILD/life"
  build_life "$BUILD/life/life" life gpu
  build_life "$BUILD/life/hostile" hostile
  build_life "$BUILD/life/lends" lends gpu
  guest_image "$kernel" "$tmp/initrd" "$BUILD/life/life" "$BUILD/life/hostile" "$BUILD/life/lends" || die "the guest image cannot be made"
}

# boot starts the VM; it does not wait.
boot() {
  local args=(-accel tcg,thread=multi -cpu "$tcg_cpu")
  [ "$accel" != kvm ] || args=(-accel kvm -cpu host)
  "$qemu" "${args[@]}" -smp 2 -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on -machine q35,memory-backend=mem \
    -nodefaults -display none "${channel[@]}" -kernel "$BUILD/kernels/$kernel/vmlinuz" -initrd "$tmp/initrd" \
    -append "$guest_append causeway.tag=gpu0" \
    -chardev "socket,id=gpu0,path=$tmp/vm.sock" -device vhost-user-fs-pci,chardev=gpu0,tag=gpu0,queue-size=1024 \
    </dev/null >>"$BUILD/logs/sessions-qemu.log" 2>&1 9>&- 3>&- 4>&- &
  qemu_pid=$!
}

# spawn NAME MODE starts a program in the guest's background and sets NAME to its worker (0: none),
# pid to its pid there.
spawn() {
  printf -v "$1" 0
  send "&./life $2"
  await '@ready *' && pid=${line#@ready } && printf -v "$1" '%s' "$(worker_of "$pid")" && [ -d "/proc/${!1}" ]
}

# ends HOW MODE LIMIT WANT: one program of the guest ends; its process and its worker must be gone
# in LIMIT ms, in one of three times: others may have the CPUs.
ends() {
  local how=$1 mode=$2 want=$4 worker taken process want_got most
  for _ in 1 2 3; do
    taken=
    send "./life end $how $mode"
    await '@kill *' || { false; row "$how, $mode" "it did not start"; return; }
    worker=$(worker_of "${line#@kill }")
    [ -n "$worker" ] && taken=$(gone_after "$worker" "$at")
    await '@gone *'
    read -r _ process want_got <<<"$line"
    await '@end *'
    true; in_time "${process:-none}" "$3" && in_time "${taken:-none}" "$3" && break
  done
  true; in_time "${process:-none}" "$3" && in_time "${taken:-none}" "$3" && [ "$want_got" = "$want" ]
  row "$how while $5" "process gone in ${process:-?} ms, worker in ${taken:-?} ms (limit $most)"
}

# --- the checks
# --------------------------------------------------------------------------------------------------------

deaths() {
  local when mode most_death
  for mode in idle loop long copy; do
    case $mode in idle) when="it is idle" ;; copy) when="it copies by extents" ;; loop) when="it launches in a loop" ;; long) when="a long kernel runs" ;; esac
    most_death=$death
    # On a host that is short of CPU a program whose GPU is at work may be silent for 4 s more, and
    # a worker owe its last answer for 1.5 s.
    [ $mode != long ] || [ "$(allowed 100)" -le 120 ] || most_death=$((death + 5500))
    ends exit $mode $quick 0 "$when"
    ends crash $mode $most_death 11 "$when"
    ends 9 $mode $most_death 9 "$when"
  done
}

families() {
  local most
  guest ./life fork; row "fork without exec, fork and exec: the parent goes on" ""
  send ./life orphan
  await '@kill *'
  local worker; worker=$(worker_of "${line#@kill }")
  local taken; taken=$(gone_after "${worker:-0}" "$at")
  await '@end *'
  [ -n "$worker" ] && in_time "$taken" $quick; row "a program ends while its forked child lives on" "worker gone in $taken ms (limit $most)"
  guest ./life threads 8; row "8 threads in one process" ""
}

# One program lends more of the guest's memory than a constant once let it; another begins beside
# it; what is beyond the VM's queue is refused to both; and when it is killed all of it is there for
# the next.
lending() {
  local first worker taken most result
  send '&./lends 272 450'
  await '@ready *' 60; first=${line#@ready } worker=$(worker_of "${line#@ready }")
  [ -n "$worker" ] && grep -q "guest_pid=$first .*error=.*may reach no more of this VM's memory" "$device_log"
  row "the GPU writes 272 MiB of pinned memory, all of it right; 450 more are refused" ""
  guest './life once'; row "a second program beside it" ""
  guest "kill -9 $first"
  taken=$(gone_after "${worker:-0}" "$at"); true; in_time "$taken" $death; row "kill -9 of the first" "worker gone in $taken ms (limit $most)"
  send '&./lends 300 0'
  await '@ready *' 60; send "&kill ${line#@ready }"
  await '@lends *' 60; result=$line
  [[ $result =~ ^@lends\ ([0-9]+)\ 0\ ([0-9]+)$ ]]; row "the next has 300 MiB, all results right" "rounds, wrong, longest pause in ms: ${result#@lends }"
}

# A session that checks its results is stopped for 5 s, and lives through the death of other
# workers.
stop_and_continue() {
  local w victim waiter good parks most
  spawn good pinned; row "a program works with pinned memory" "worker $good"
  local steady=$pid
  guest "sleep 0.5; kill -STOP $steady"
  local since=$(ms)
  guest './life as 1000 once'; row "an unprivileged user of the guest (uid 1000)" ""
  guest 'n=0; for i in 1 2 3 4; do ./life once & p="$p $!"; done; for i in $p; do wait $i && n=$((n+1)); done; [ $n = 4 ]'
  row "4 processes at once" ""
  while [ $(($(ms) - since)) -lt 5000 ]; do nap 0.05; done
  [ -d "/proc/$good" ] && guest "kill -CONT $steady"
  row "SIGSTOP for 5 s: the worker waits" ""
  spawn victim loop
  kill -9 "$victim"; since=$(ms)
  await '@error *' 5
  [[ $line == '@error 719 '* ]]; in_time $((at - since)) $quick
  row "kill -9 of a worker: its program gets error 719" "after $((at - since)) ms (limit $most)${line:+, $line}"
  spawn waiter long
  kill -9 "$waiter"; since=$(ms)
  await '@error *' 5
  [[ $line == '@error 719 '* ]]; in_time $((at - since)) $((quick + 1000))
  row "the same while it waits for a kernel" "after $((at - since)) ms (limit $most)"
  send "&kill $steady"
  await '@pinned *'; w=$line
  [[ $w =~ ^@pinned\ ([0-9]+)\ 0\ ([0-9]+)$ ]] && [ "${BASH_REMATCH[1]}" -gt 10 ] && [ "${BASH_REMATCH[2]}" -ge 4500 ]
  row "the stopped program went on, all results right" "rounds, wrong, longest pause in ms: ${w#@pinned }"
  parks=$(grep -c "loans are back.* guest_pid=$steady\b" "$device_log")
  [ "$parks" -ge 1 ]; row "its session was parked and resumed" "$parks times"
}

# ask METHOD PATH [BODY] says something to the device process.
ask() {
  python3 -c 'import socket, sys
s, (_, path, method, what, body) = socket.socket(socket.AF_UNIX), sys.argv
s.connect(path)
s.sendall(("%s /v1/%s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (method, what, len(body), body)).encode())
sys.exit(" 200 " not in s.recv(99).decode())' "$tmp/device.ctl" "$1" "$2" "${3-}"
}

# suspended WORKER: its session has left the GPU, which it is asked for.
suspended() { ask POST suspend; [ ! -d "/proc/$1" ]; }

# lower BYTES changes the vGPU's memory limit.
lower() { ask PUT limits "{\"memory\": $1, \"sessions\": 128}"; }

# Sessions leave the GPU and come back: one in the middle of its work, again and again, and one that
# does nothing.
suspension() {
  local busy idler result times
  spawn busy pinned; local working=$pid
  for times in {1..100}; do # a refusal says that it works just then
    ask POST suspend; nap 0.15
    [ "$times" -lt 10 ] || [ -d "/proc/$busy" ] || [ "$(resumed $working)" -lt 2 ] || break
  done
  [ -z "$(workers | tr ' ' '\n' | grep -x "$busy")" ]; row "a program that works is suspended: its worker is gone" ""
  spawn idler idle; local idle=$pid
  until_true 10 suspended "$idler"
  row "and one that does nothing" ""
  times=$(resumed $idle)
  nap 2.5; [ "$(resumed $idle)" = "$times" ]; row "nothing wakes it" ""
  send "&kill $working"
  await '@pinned *'; result=$line
  times=$(resumed $working)
  [[ $result =~ ^@pinned\ ([0-9]+)\ 0\ ([0-9]+)$ ]] && [ "${BASH_REMATCH[1]}" -gt 10 ] && [ "$times" -ge 2 ]
  row "the working one came back by itself, all results right" "$times times; rounds, wrong, longest pause in ms: ${result#@pinned }"
  mkdir "$tmp/kept"
  "$CAUSEWAY" suspend "${tmp##*/}/device" --to "$tmp/kept" --run-dir "${tmp%/*}" >"$tmp/suspended" && grep -q "1 programs suspended; .* in $tmp/kept" "$tmp/suspended"
  row "into a file, which has no name" "$(keep cat "$tmp/suspended")"
  [ -z "$(ls -A "$tmp/kept")" ]; row "its folder is as empty as before" ""
  guest "kill $idle; sleep 0.3; ./life once"; no_workers_after "$(ms)" >/dev/null; [ -z "$(workers)" ]; row "the suspended one ends, and leaves nothing" ""
}

# A program that checks all it computes goes to another software GPU and back while it works, and
# the vGPU's new programs open where it is.
relocation() {
  local busy moved=0 gpu result
  spawn busy pinned; local working=$pid
  for gpu in soft/1 soft/0 soft/1; do
    until_true 20 moves_to "$gpu" && moved=$((moved + 1))
  done
  guest ./life once; row "a new program on the other GPU" ""
  send "&kill $working"
  await '@pinned *'; result=$line
  [[ $result =~ ^@pinned\ ([0-9]+)\ 0\ ([0-9]+)$ ]] && [ $moved = 3 ] && [ "$(grep -c '1 programs moved' "$tmp/moves")" = 3 ]
  row "a program that works moves between two GPUs, all results right" "$moved times; rounds, wrong, longest pause in ms: ${result#@pinned }"
  ! "$CAUSEWAY" move "${tmp##*/}/device" --gpu 99 --run-dir "${tmp%/*}" >"$tmp/refused" 2>&1 && grep -q 'soft/7' "$tmp/refused"; row "one that is not there is refused" ""
}

moves_to() { "$CAUSEWAY" move "${tmp##*/}/device" --gpu "$1" --run-dir "${tmp%/*}" >>"$tmp/moves" 2>&1; }

# A program that asked for it is told each time that the vGPU's limit falls below what it has
# allocated, and can free memory then.
budget() {
  local w over=() mib since
  no_workers_after "$(ms)" >/dev/null
  spawn w budget
  for mib in 64 60 48 47; do
    lower $((mib << 20)); since=$(ms)
    case $mib in 60 | 47) await '@over *' 5; over+=("${line#@over }" "$((at - since)) ms,") ;; esac
  done
  [ "${over[0]-}:${over[2]-}" = "$((4 << 20)) 48:$((1 << 20)) 32" ]
  row "the memory limit falls: a program is told, and frees" "bytes over, MiB left: ${over[*]}"
  lower $((1 << 30)); guest "kill $pid && wait $pid"; row "and ends in order" ""
}

# idle_cost sets dev, wrk and us: microseconds of CPU that ten seconds of an idle session take.
idle_cost() {
  local worker process
  send "&./life idlecpu 10"
  await '@ready *'; process=${line#@ready } worker=$(worker_of "${line#@ready }")
  await '@idle'; cpu "$service_pid" >"$tmp/device.cpu"; cpu "$worker" >"$tmp/worker.cpu"
  await '@idlecpu *'; dev=$(cpu_since "$service_pid" "$tmp/device.cpu") wrk=$(cpu_since "$worker" "$tmp/worker.cpu") us=${line#@idlecpu }
  guest "kill $process; wait $process"
}

costs() {
  local dev wrk us f0 f1 t0 t1 start
  local guest_most=10000 again most # of a real CPU
  [ "$accel" != tcg ] || guest_most=100000
  idle_cost
  # The same work is dearer beside others, who take the CPUs' caches; and to a guest an emulated CPU
  # that was not run was busy.
  for again in 2 3 4; do at_most "$dev" 10000 && at_most "$wrk" 10000 && at_most "$us" $guest_most || idle_cost; done
  true; in_time "$dev" 10000; row "10 s with an idle session: device process" "$dev us of CPU (limit $most us; 10000 are 0.1 %)"
  true; in_time "$wrk" 10000; row "10 s with an idle session: worker" "$wrk us of CPU (limit $most us)"
  # Where four and more wait for each CPU, most of what the guest counts is time in which it was not
  # run.
  if [ "$accel" = tcg ] && [ "$(allowed 1)" -ge 4 ]; then most='none: the machine is busy'; else true; in_time "$us" $guest_most; fi
  row "10 s with an idle session: the program in the guest" "$us us of CPU, $accel (limit $most)"
  guest ./life cycle 5
  no_workers_after "$(ms)" >/dev/null
  f0=$(fds) t0=$(threads) start=$(ms)
  limit=300 guest ./life cycle 200; row "200 sessions, one after the other" "$(($(keep ms) - start)) ms"
  no_workers_after "$(ms)" >/dev/null
  until_true 5 no_more_fds; t1=$(threads)
  [ "$f1" -le "$f0" ] && [ -z "$(workers)" ]; row "no descriptor or worker is left" "descriptors $f0 -> $f1, threads $t0 -> $t1"
}

no_more_fds() { f1=$(fds); [ "$f1" -le "$f0" ]; }

hostility() {
  local before; before=$(resident)
  limit=60 guest ./hostile /run/causeway "$RANDOM"; row "a hostile program: errors, or its own session lost" ""
  kill -0 "$service_pid"; row "the device process is up" "resident $before KiB -> $(keep resident) KiB"
  guest ./life once; row "it serves a good program" ""
  at_most "$(no_workers_after "$(ms)")" 20000; row "no worker is left" ""
  # It gives back what many sessions left within a second or so of the last one's end.
  local tries=300
  until at_most "$(resident)" 40960 || [ $((tries -= 1)) = 0 ]; do nap 0.1; done
  at_most "$(resident)" 40960; row "device process under 40 MiB" "$(keep resident) KiB resident after all of this"
}

ends_of_vm() {
  local a b c since taken most
  spawn a idle
  spawn b loop
  [ -d "/proc/$a" ] && [ -d "/proc/$b" ]; row "two sessions are open when the guest reboots" ""
  send 'echo b >/proc/sysrq-trigger'; since=$(ms)
  taken=$(no_workers_after "$since")
  true; in_time "$taken" 2000; row "reboot of the guest: workers gone" "$taken ms (limit $most)"
  guest_up; row "the guest is back, the same device process" "$(($(keep ms) - since)) ms"
  guest ./life once; row "and runs a program" ""
  spawn a idle
  spawn b loop
  spawn c long
  [ -d "/proc/$a" ] && [ -d "/proc/$b" ] && [ -d "/proc/$c" ]; row "three sessions are open when QEMU is killed" ""
  kill -9 "$qemu_pid"; since=$(ms)
  taken=$(no_workers_after "$since")
  true; in_time "$taken" 2000; row "kill -9 of QEMU: workers gone" "$taken ms (limit $most)"
  wait "$qemu_pid" 2>/dev/null
  boot
  guest_up; row "a new VM on the same device process" ""
  guest ./life once; row "and runs a program" ""
  send 'poweroff -f'
  at_most "$(gone_after "$qemu_pid" "$(ms)")" 59000; row "power-off" ""
  qemu_pid=
}

# keeper_of PID prints the keeper of a device process: both have its memory mapped. Other stages'
# devices have theirs.
keeper_of() {
  local inode p
  inode=$(awk '/memfd:causeway-keeper/ {print $5; exit}' "/proc/$1/maps")
  [ -n "$inode" ] || return
  for p in /proc/[0-9]*; do
    [[ $(tr '\0' ' ' <"$p/cmdline") == *' keeper ' ]] && [ "$(awk '/memfd:causeway-keeper/ {print $5; exit}' "$p/maps")" = "$inode" ] && echo "${p#/proc/}"
  done 2>/dev/null
}

# The device process is killed while programs run: they get errors, the guest can let go, and the
# keeper goes with QEMU.
device_dies() {
  local a b since first took keeper most
  boot
  guest_up; row "a VM whose device process will die" ""
  spawn a loop
  spawn b long
  keeper=$(keeper_of "$service_pid")
  [ -d "/proc/$a" ] && [ -d "/proc/$b" ] && [ -n "$keeper" ]; row "two programs run, the device has a keeper" ""
  kill -9 "$service_pid"; since=$(ms)
  wait "$service_pid" 2>/dev/null; service_pid=
  await '@error *' 5; first=$line
  await '@error *' 5
  [[ $first == '@error 719 '* && $line == '@error 719 '* ]]; in_time $((at - since)) $((quick + 1000))
  row "kill -9 of the device process: both get error 719" "after $((at - since)) ms (limit $most)"
  local rc=0
  since=$(ms); limit=20 guest './life once' || rc=$?
  lap; [ $rc != 0 ] && [ $rc != 124 ]; in_time "$took" 5000
  row "a program that starts then gets an error" "after ${took:-?} ms (limit $most)"
  guest 'for i in $(seq 600); do umount /run/causeway 2>/dev/null && break; usleep 100000; done; ! grep -q " /run/causeway " /proc/mounts'; row "the guest lets go of the mount" ""
  kill -9 "$qemu_pid"; wait "$qemu_pid" 2>/dev/null; qemu_pid=
  [ -n "$keeper" ] && until_true 5 ended "$keeper"; row "the keeper ends with QEMU" ""
}

here() { "$CAUSEWAY" run --gpu soft -- "$@"; }

# run_checks: the same under `causeway run`, without a VM.
run_checks() {
  local life=$BUILD/life/life rc=0 how mode p q since out most
  local -A whom=([INT]=' to the process group')
  here sh -c "$life once && exit 7"; [ $? = 7 ]; row "run: exit status 7" ""
  for how in TERM INT; do
    rm -f "$tmp/out" # a child opens its output when it runs: what the one before wrote must be gone by then
    # Job control gives the program a process group of its own; a background shell's children would
    # ignore SIGINT.
    set -m; env --default-signal=INT "$CAUSEWAY" run --gpu soft -- "$life" idle >"$tmp/out" </dev/null & p=$!
    { nap 200; kill -9 -- -$p; } 2>/dev/null & q=$!; set +m
    until_true 20 grep -qs @ready "$tmp/out"
    since=$(ms)
    if [ $how = INT ]; then kill -INT -- -$p; else kill -TERM $p; fi
    wait $p 2>/dev/null; rc=$?
    kill -9 $q; wait $q 2>/dev/null
    took=$(($(ms) - since))
    [ $rc = $((128 + $(kill -l $how))) ] && ! kill -0 -- -$p 2>/dev/null; in_time $took 1500
    row "run: ended by SIG$how${whom[$how]:-}" "status $rc after $took ms (limit $most)"
  done
  head -c 1000000 /dev/urandom >"$tmp/data"
  here sh -c "$life once && cat" <"$tmp/data" | cmp - "$tmp/data"; row "run: 1 MB from stdin to stdout" ""
  here "$life" threads 4 & p=$!
  here "$life" threads 4 & q=$!
  wait $p && wait $q; row "run: two programs at once" ""
  for mode in idle loop long; do
    for how in exit crash 9; do
      out=$("$CAUSEWAY" run -v --gpu soft -- "$life" end $how $mode 2>"$tmp/log" | sed -n 's/^@gone //p')
      p=$(sed -n 's/.*worker started.* pid=\([0-9]*\).*/\1/p' "$tmp/log")
      # On a busy host it is some moments before what has ended is reaped.
      [ -n "$p" ] && until_true 10 [ ! -d "/proc/$p" ]; in_time "${out% *}" 2000
      row "run: $how while ${mode/long/waiting}" "process gone in ${out% *} ms, no worker left"
    done
  done
}

prepare
start_device "$tmp/vm.sock" "$device_log" --gpu soft --memory 1GiB --sessions 128 --control "$tmp/device.ctl" -v
: >"$BUILD/logs/sessions-qemu.log"
at_most "$(resident)" 40960; row "device process under 40 MiB" "$(keep resident) KiB resident before the VM"
boot
run_checks
guest_up; row "the VM is up" "$SECONDS s"
deaths
families
lending
stop_and_continue
suspension
relocation
budget
costs
hostility
ends_of_vm
device_dies
calm_kernels
echo "sessions: $passed passed, $failed failed in $SECONDS s"
[ $failed = 0 ]
