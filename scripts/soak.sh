#!/usr/bin/env bash
# Runs sessions of every kind beside each other for a long time, kills every process there is, and
# looks at what is left.
#
#   scripts/soak.sh [--minutes N] [--gpu soft|N|UUID] [--jobs N] [--rest SECONDS] [--seed N] [--logs
#   DIR] [--keep]
#
# CUDA programs run under `causeway run` and over TCP (`causeway serve-plain`), and guests'
# processes on vGPUs of a causewayd of its own, whose front end is a test of host/device instead of
# a VM. Meanwhile programs, workers, device processes, the scheduler and causewayd are killed, vGPUs
# are made, attached, given other limits under load, detached and deleted; one lives from the
# beginning to the end. What was not killed must have the right results. When it ends, or is
# interrupted, everything must be where it was after the first round: descriptors and memory of the
# services, processes, files, and the GPU's memory. One line for each check; the status is 0 if all
# hold.
# Of a program that has not ended in its time, overrun/ in the logs keeps what it, its workers and
# its service were at, and the goroutines of its workers; whether it ended by itself in half that
# time again tells slow from hung. Either is wrong.
#
# --minutes (default 120) is how long, --jobs (2) how many programs at a time of each kind, --rest
# (0) how long each waits before the next, for a machine that others use, --seed (1) picks what
# happens; --keep leaves the logs, and --logs packs them into DIR if something failed. What
# memory.txt beside the logs has of each service, once a minute: seconds, process, KiB of its own (a
# heap and stacks), KiB of files (its program's pages). Needs what `scripts/build-tests.sh` builds,
# Go (or the pack of scripts/h200.sh) and python3. Three minutes prove that it works; a leak of a
# descriptor an hour needs hours.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/stacks.sh"

minutes=120 gpu=soft jobs=2 rest=0 seed=1 keep= logs=
while [ $# -gt 0 ]; do
  case $1 in
    --minutes) minutes=$2; shift 2 ;;
    --gpu) gpu=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --rest) rest=$2; shift 2 ;;
    --seed) seed=$2; shift 2 ;;
    --logs) logs=$2; shift 2 ;;
    --keep) keep=1; shift ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
causeway=$BUILD/bin/causeway
[ -x "$causeway" ] || die "build/bin/causeway is missing: run make build"
variant=$(find "$BUILD/tests/" -maxdepth 1 -name '*-static' 2>/dev/null | sort | tail -1)
[ -n "$variant" ] || die "no test programs under build/tests: run scripts/build-tests.sh"
programs=()
for p in vectoradd matmul copies asynccopy streams events pinned modules graphnodes histogram textures reduce loading managedpages oversubscribe; do
  [ $p != oversubscribe ] || [ "$gpu" = soft ] || continue # it takes what a GPU has left, which others want
  [ -x "$variant/$p" ] && [ -f "$ROOT/guest/tests/expected/$p.txt" ] && programs+=("$p")
done
[ ${#programs[@]} -gt 2 ] || die "too few of the programs are under $variant"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-soak.XXXXXX")
export CAUSEWAY_RUN_DIR=$tmp/run
port= serve= daemon= lives= front= failed=0
allowed=120 # seconds, for one program
memory=1024 late=1 # MiB of a vGPU; a real GPU's context takes half of that, and its driver's start some of the first seconds of a program
[ "$gpu" = soft ] || memory=8192 late=3
mkdir -p "$tmp/counts" "$tmp/lanes"
if have go; then go test -c -o "$tmp/front" "$ROOT/host/device" 2>"$tmp/build.log" || { cat "$tmp/build.log" >&2; die "host/device does not build"; }
else cp "$BUILD/bin/causeway-limits" "$tmp/front" || die "no Go, and the pack of scripts/h200.sh is not here"; fi

# --- services
# ----------------------------------------------------------------------------------------------------------

start_serve() {
  port=$((20000 + RANDOM % 20000))
  "$causeway" serve-plain --listen "127.0.0.1:$port" --gpu "$gpu" --warm 0 >>"$tmp/serve.log" 2>&1 &
  serve=$!
  for _ in $(seq 200); do (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return; sleep 0.1; done
  die "causeway serve-plain does not answer: see $tmp/serve.log"
}
# serves PID: that causewayd answers.
serves() { python3 -c 'import json,socket,sys
s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect(sys.argv[1])
s.sendall(b"GET /v1/version HTTP/1.0\r\nHost: causeway\r\n\r\n")
said = s.makefile("rb").read().split(b"\r\n\r\n", 1)[1]
sys.exit(json.loads(said)["pid"] != int(sys.argv[2]))' "$CAUSEWAY_RUN_DIR/causewayd.sock" "$1" 2>/dev/null; }
start_daemon() {
  "$causeway" daemon --run-dir "$CAUSEWAY_RUN_DIR" --config "$tmp/causewayd.toml" >>"$tmp/causewayd.log" 2>&1 &
  daemon=$!
  for _ in $(seq 300); do
    serves "$daemon" && return
    sleep 0.1
  done
  die "causewayd does not answer: see $tmp/causewayd.log"
}
printf '[devices]\nsocket_owner = "0"\nlog = "file"\nwarm_workers = 0\n[health]\ninterval = "1s"\n' >"$tmp/causewayd.toml"

# tree PID... prints processes and all below them, the older ones first, by what /proc says of
# parents: not every kernel lists children.
tree() { [ $# = 0 ] || printf '%s\n' /proc/[0-9]*/stat | sort -t/ -k3n | xargs cat 2>/dev/null | awk -v of="$*" '{ p = $1; sub(/.*\) /, ""); below[$2] = below[$2] " " p; there[p] = 1 }
  function all(p, i, n, c) { print p; n = split(below[p], c, " "); for (i = 1; i <= n; i++) all(c[i]) }
  END { n = split(of, root, " "); for (i = 1; i <= n; i++) if (root[i] in there) all(root[i]) }'; }
below() { tree "$1" | sed 1d; }
# recorded FILE prints the process that a record names, unless that has ended: its number may be
# anybody's by then.
recorded() { python3 -c 'import json,sys
r = json.load(open(sys.argv[1]))
stat = open("/proc/%d/stat" % r["pid"]).read().rpartition(")")[2].split()
if int(stat[19]) == r["start"]: print(r["pid"])' "$1" 2>/dev/null; }
devices() { for f in "$CAUSEWAY_RUN_DIR"/*/*.json; do recorded "$f"; done; }
device() { recorded "$CAUSEWAY_RUN_DIR/$1/gpu0.json"; }
scheduler() { recorded "$CAUSEWAY_RUN_DIR/scheduler.json"; }

stop_all() {
  touch "$tmp/stop"
  wait "${lanes[@]}" 2>/dev/null
  end_lives
  for v in $("$causeway" ps -q 2>/dev/null); do "$causeway" delete "$v" >/dev/null 2>&1; done
}
cleanup() {
  [ "$BASHPID" = $$ ] || return # a subshell that is told to end early has this trap still
  touch "$tmp/stop"
  for p in $front $(devices) $(scheduler) $daemon $serve; do kill "$p" 2>/dev/null; done
  wait 2>/dev/null
  if [ -n "$logs" ] && [ "$failed" != 0 ]; then mkdir -p "$logs" && tar cJf "$logs/soak-logs.tar.xz" -C "$tmp" --exclude ./front .; fi
  if [ -n "$keep" ] || [ "$failed" != 0 ]; then say "logs are in $tmp"; else rm -rf "$tmp"; fi
}
trap cleanup EXIT
trap 'touch "$tmp/stop"' INT TERM

# --- what happens
# ------------------------------------------------------------------------------------------------------

# count NAME [N] adds one, or N; counted NAME prints how many.
count() { yes '' | head -n "${2:-1}" >>"$tmp/counts/$1"; }
counted() { if [ -f "$tmp/counts/$1" ]; then wc -l <"$tmp/counts/$1"; else echo 0; fi; }
bad() { count wrong; printf '%s\n' "$*" >>"$tmp/wrong.txt"; }

# watch NAME PID [SERVICE] follows a process to its end. Of one that has had its time it writes down
# what that, all below it, the service and all below that are at, and shortly before the end has the
# workers' runtime say what their goroutines are at, which ends them.
watch() {
  local pid=$2 service=${3:-} began=$SECONDS file who
  while [ "$SECONDS" -lt $((began + allowed)) ]; do kill -0 "$pid" 2>/dev/null || return; sleep 1; done
  mkdir -p "$tmp/overrun"
  file=$tmp/overrun/$1-$SECONDS
  bad "$1 has not ended after $allowed s: see overrun/${file##*/} in the logs"
  stacks $(tree "$pid") $(tree $service) >"$file" 2>&1
  while [ "$SECONDS" -lt $((began + allowed * 3 / 2 - 15)) ]; do
    kill -0 "$pid" 2>/dev/null || { echo "=== it ended by itself after $((SECONDS - began)) s" >>"$file"; return; }
    sleep 1
  done
  stacks $(tree "$pid") $(tree $service) >>"$file" 2>&1
  who=$(for p in $(below "$pid") ${service:+$(below "$service")}; do tr '\0' '\n' <"/proc/$p/cmdline" | grep -qx worker && echo "$p"; done 2>/dev/null)
  echo "=== it hangs: SIGQUIT to its workers, $who, and then to itself" >>"$file"
  [ -z "$service" ] || count tcp-workers-killed
  kill -QUIT $who 2>/dev/null
  sleep 5
  kill -QUIT "$pid" 2>/dev/null
  cp "$tmp/lanes"/*.err "$tmp/serve.log" "$tmp/overrun/" 2>/dev/null
}

# one LANE HOW PROGRAM FATE: runs a program by run or tcp. FATE: whole, or who is killed: program,
# worker, everything; or stopped for a while.
one() {
  local lane=$1 how=$2 program=$3 fate=$4 out=$tmp/lanes/$1 rc=0 pid victim= killed
  killed=$(counted tcp-workers-killed)
  if [ "$how" = run ]; then
    timeout -k 5 $((allowed * 3 / 2)) "$causeway" run --gpu "$gpu" -- "$variant/$program" >"$out.out" 2>"$out.err" </dev/null &
  else
    CAUSEWAY=tcp://127.0.0.1:$port LD_LIBRARY_PATH=$BUILD/lib timeout -k 5 $((allowed * 3 / 2)) "$variant/$program" >"$out.out" 2>"$out.err" </dev/null &
  fi
  pid=$!
  watch "$lane-$program-$fate" "$pid" "$([ "$how" = run ] || echo "$serve")" &
  if [ "$fate" != whole ]; then
    sleep "$((RANDOM % late)).$((RANDOM % 9))$((RANDOM % 10))"
    case $fate in
      program) victim=$(tree "$pid" | sed -n '2,$p' | tail -1) ;;
      everything) victim=$(tree "$pid" | sed -n '2,$p') ;;
      worker) if [ "$how" = run ]; then victim=$(tree "$pid" | sed -n '3,$p' | head -1); else count tcp-workers-killed; victim=$(tree "$serve" | sed -n '2,$p' | shuf -n 1); fi ;;
      stopped) victim=$(tree "$pid" | sed -n '2,$p'); kill -STOP $victim 2>/dev/null; sleep 2; kill -CONT $victim 2>/dev/null; victim= ;;
    esac
    [ -z "$victim" ] || kill -9 $victim 2>/dev/null
  fi
  { wait "$pid" || rc=$?; } 2>/dev/null # the shell would say of each that it was killed
  count "$how-$fate"
  [ "$rc" != 77 ] || { count "$how-not-possible"; return; }
  case $rc in 124 | 137) [ "$rc" = 137 ] && [ "$fate" != whole ] && [ "$fate" != stopped ] || bad "$program by $how, $fate: it hung, or was killed by nobody ($rc)" ;; esac
  # A worker of serve that was killed may have been anybody's.
  if [ "$rc" = 0 ]; then
    diff -q <(grep -v '^#' "$out.out") <(grep -v '^#' "$(expected "$(basename "$variant")" "$program")") >/dev/null || bad "$program by $how, $fate: other results"
  elif [ "$fate" = whole ] || [ "$fate" = stopped ]; then
    if [ "$how" = tcp ] && [ "$(counted tcp-workers-killed)" != "$killed" ]; then count tcp-beside; else bad "$program by $how, $fate: status $rc: $(tail -1 "$out.err")"; fi
  fi
}

# lane_programs N HOW
lane_programs() {
  RANDOM=$((seed * 100 + $1))
  local fates=(whole whole whole program worker everything stopped whole)
  while [ ! -e "$tmp/stop" ]; do
    local fate=${fates[RANDOM % ${#fates[@]}]}
    one "$2-$1" "$2" "${programs[RANDOM % ${#programs[@]}]}" "$fate"
    sleep "$rest"
  done
}

# kills changes when causewayd is about to be killed, and when the next one runs; between, its
# numbers differ.
kills() { echo "$(counted daemon-dies) $(counted daemon-killed)"; }
# lives_since KILLS: that causewayd was not killed since, nor about to be.
lives_since() { [ "$(kills)" = "$1" ] && [ "${1% *}" = "${1#* }" ]; }

# scheduler_away: the scheduler was killed a moment ago, and shares are refused until the next one
# runs.
scheduler_away() { [ -n "$(find "$tmp/counts/scheduler-killed" -newermt '20 seconds ago' 2>/dev/null)" ]; }

# lane_vgpu N: a vGPU's life, again and again: made, attached (a front end comes), limits that
# change under load, killed now and then, detached, deleted.
lane_vgpu() {
  RANDOM=$((seed * 100 + 50 + $1))
  local vm=soak$1 socket=$CAUSEWAY_RUN_DIR/soak$1/gpu0.sock front rc dies daemons
  while [ ! -e "$tmp/stop" ]; do
    sleep "$rest"
    dies= daemons=$(kills)
    if ! "$causeway" create "$vm" --gpu "$gpu" --memory ${memory}MiB --share $((50 + RANDOM % 100)) >"$tmp/lanes/$vm.out" 2>&1; then
      # causewayd answered just now, or its vGPU's process was killed by this lane and is told to be
      # on its way out.
      lives_since "$daemons" && ! grep -q 'has just ended' "$tmp/lanes/$vm.out" || { count create-again; sleep 0.5; continue; }
      ! scheduler_away || ! grep -q 'the scheduler of GPU time does not run' "$tmp/lanes/$vm.out" || { count create-without-scheduler; sleep 0.5; continue; }
      bad "create $vm: $(tail -1 "$tmp/lanes/$vm.out")"; sleep 1; continue
    fi
    count vgpu-made
    CAUSEWAY_FRONT_SOCKET=$socket CAUSEWAY_FRONT_SECONDS=8 CAUSEWAY_FRONT_PROGRAMS=$jobs timeout -s QUIT -k 5 $((allowed * 3 / 2)) "$tmp/front" -test.run '^TestFront$' >"$tmp/lanes/$vm.front" 2>&1 &
    front=$!
    watch "$vm-front" "$front" "$(device "$vm")" &
    for _ in 1 2 3 4; do
      sleep "1.$((RANDOM % 10))"
      "$causeway" limits "$vm" --memory $((memory * (70 + RANDOM % 80) / 100))MiB --share $((1 + RANDOM % 300)) --sessions $((8 + RANDOM % 50)) >>"$tmp/lanes/$vm.out" 2>&1 && count limits-changed
      case $((RANDOM % 12)) in
        0) kill -9 $(tree $(device "$vm") | sed -n '2,$p' | shuf -n 1) 2>/dev/null && { count vgpu-worker-killed; dies=1; } ;;
        1) kill -9 $(device "$vm") 2>/dev/null && { count device-killed; dies=1; } ;;
        2) kill -9 $(tree "$front") 2>/dev/null && { count front-killed; dies=1; } ;;
      esac
    done
    rc=0; { wait "$front" || rc=$?; } 2>/dev/null
    case $rc in 124 | 131 | 137) cp "$tmp/lanes/$vm.front" "$tmp/overrun/$vm-front-goroutines-$SECONDS" 2>/dev/null ;; esac
    count front-runs
    if [ "$rc" != 0 ] && [ -z "$dies" ]; then bad "front end of $vm: status $rc: $(grep -E 'front_test|panic' "$tmp/lanes/$vm.front" | head -3)"; fi
    for _ in $(seq 40); do
      "$causeway" delete "$vm" >>"$tmp/lanes/$vm.out" 2>&1 && break
      [ -e "$CAUSEWAY_RUN_DIR/$vm/gpu0.json" ] || break
      sleep 0.5
    done
    [ ! -e "$CAUSEWAY_RUN_DIR/$vm/gpu0.json" ] || bad "$vm could not be deleted: $(tail -1 "$tmp/lanes/$vm.out")"
  done
}

# begin_lives makes the vGPU that stays. Its programs come and go until the stop, with a moment
# between them in which there is none.
begin_lives() {
  "$causeway" create soaklives --gpu "$gpu" --memory ${memory}MiB >"$tmp/lanes/lives.out" 2>&1 || die "a vGPU cannot be made: $(cat "$tmp/lanes/lives.out")"
  lives=$(device soaklives)
  CAUSEWAY_FRONT_SOCKET=$CAUSEWAY_RUN_DIR/soaklives/gpu0.sock CAUSEWAY_FRONT_SECONDS=$((minutes * 60 + 600)) CAUSEWAY_FRONT_STOP=$tmp/stop CAUSEWAY_FRONT_REST=$((rest + 2)) \
    CAUSEWAY_FRONT_PROGRAMS=1 "$tmp/front" -test.run '^TestFront$' >"$tmp/lanes/lives.front" 2>&1 &
  front=$!
}

# end_lives: its programs, however often causewayd and the scheduler were killed meanwhile, must
# have ended well.
end_lives() {
  local rc=0
  watch lives-front "$front" "$lives" &
  kill -0 "$lives" 2>/dev/null || bad "the device process of the vGPU that stays is gone"
  wait "$front" || rc=$?
  [ "$rc" = 0 ] && grep -q 'gone false' "$tmp/lanes/lives.front" || bad "the front end that stays: status $rc: $(grep -E 'front_test|panic|^programs' "$tmp/lanes/lives.front" | head -3)"
  count lives-programs "$(sed -n 's/^programs \([0-9]*\).*/\1/p' "$tmp/lanes/lives.front")"
}

# --- what is left
# ------------------------------------------------------------------------------------------------------

# own PID: its memory without pages of files, of which a program has more the more of it has run.
own() { awk '/^RssAnon/ {print $2}' "/proc/$1/status" 2>/dev/null; }
# sample writes memory.txt's lines of a minute.
sample() {
  local s
  for s in serve daemon lives; do echo "$SECONDS $s ${!s} $(awk '/^Rss(Anon|File)/ {printf "%s ", $2}' "/proc/${!s}/status" 2>/dev/null)" >>"$tmp/memory.txt"; done
}

# measure_lives FILE: the same of the process of the vGPU that stays, between two of its programs.
measure_lives() {
  {
    echo "device-descriptors $(for _ in $(seq 100); do ls "/proc/$lives/fd" 2>/dev/null | wc -l; sleep 0.1; done | sort -n | head -1)"
    echo "device-memory-KiB $(own "$lives")"
  } >>"$1"
}

# measure FILE: what must come back, a name and a number in each line. Memory may grow by what a
# runtime keeps.
measure() {
  {
    for s in serve daemon; do
      local p=${!s}
      echo "$s-descriptors $(ls "/proc/$p/fd" 2>/dev/null | wc -l)"
      echo "$s-memory-KiB $(own "$p")"
      echo "$s-children $(below "$p" | wc -l)"
    done
    echo "device-processes $(devices | wc -l)"
    echo "files $(find "$CAUSEWAY_RUN_DIR" -type f -o -type s 2>/dev/null | grep -vc '/log/')"
    echo "shared-memory-files $(ls /dev/shm | grep -c causeway)"
    case $gpu in soft*) ;; *) echo "gpu-memory-MiB $(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i "$gpu" | head -1)" ;; esac
  } >"$1"
}

# settle waits until a service has nothing below it, at most 20 s.
settle() {
  for _ in $(seq 200); do [ -z "$(below "$serve")" ] && break; sleep 0.1; done
  sleep 3
}

check() { # NAME VALUE COMMAND...
  local name=$1 value=$2 verdict=ok; shift 2
  "$@" || { verdict=FAILED; failed=1; }
  printf '%-44s %-34s %s\n' "$name" "$value" "$verdict"
}

lanes=()
start_serve
start_daemon
say "one round of everything, after which it is measured"
for p in "${programs[@]}"; do one first run "$p" whole; one first tcp "$p" whole; done
"$causeway" create soak0 --gpu "$gpu" --memory ${memory}MiB >/dev/null 2>&1
CAUSEWAY_FRONT_SOCKET=$CAUSEWAY_RUN_DIR/soak0/gpu0.sock CAUSEWAY_FRONT_SECONDS=5 CAUSEWAY_FRONT_PROGRAMS=$jobs "$tmp/front" -test.run '^TestFront$' >"$tmp/lanes/first.front" 2>&1 ||
  bad "the first front end: $(grep front_test "$tmp/lanes/first.front" | head -3)"
"$causeway" delete soak0 >/dev/null 2>&1
settle
measure "$tmp/before"
begin_lives
sleep 8
measure_lives "$tmp/before"
say "$minutes minutes with ${#programs[@]} programs, $jobs at a time of each kind, on GPU $gpu"
for i in $(seq "$jobs"); do
  lane_programs "$i" run & lanes+=($!)
  lane_programs "$i" tcp & lanes+=($!)
done
for i in 1 2; do lane_vgpu "$i" & lanes+=($!); done
end=$((SECONDS + minutes * 60)) round=0
RANDOM=$((seed * 100 + 99))
while [ "$SECONDS" -lt "$end" ] && [ ! -e "$tmp/stop" ]; do
  sleep 5
  [ $((round++ % 12)) != 0 ] || sample
  if [ $((round % 8)) = 0 ]; then # causewayd is killed, and finds again what runs
    count daemon-dies
    kill -9 "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null
    start_daemon; count daemon-killed
  elif [ $((round % 8)) = 4 ] && [ -n "$(scheduler)" ]; then
    kill -9 "$(scheduler)" 2>/dev/null && count scheduler-killed
  fi
done
say "the end: what runs may finish"
measure_lives "$tmp/lives"
sample
stop_all
settle
measure "$tmp/after"
cat "$tmp/lives" >>"$tmp/after"

total=0
for f in "$tmp"/counts/*; do n=$(wc -l <"$f"); printf '  %-30s %d\n' "$(basename "$f")" "$n"; total=$((total + n)); done
check "something happened" "$total events" test "$total" -gt 10
check "results" "$(counted wrong) wrong" test ! -e "$tmp/wrong.txt"
[ ! -e "$tmp/wrong.txt" ] || sort "$tmp/wrong.txt" | uniq -c | sort -rn | head -20
while read -r name was; do
  now=$(awk -v n="$name" '$1 == n {print $2}' "$tmp/after")
  case $name in
    *-memory-KiB) check "$name" "$was, then $now" test "${now:-0}" -le $((was + was / 2 + 20480)) ;;
    *) check "$name" "$was, then $now" test "${now:--1}" -le "$was" ;;
  esac
done <"$tmp/before"
left=0
for f in /proc/[0-9]*/cmdline; do
  case $({ tr '\0' ' ' <"$f"; } 2>/dev/null) in *"$tmp/front"* | *"$CAUSEWAY_RUN_DIR/soak"*) left=$((left + 1)) ;; esac
done
check "processes of vGPUs that are left" "$left" test "$left" = 0
exit $failed
