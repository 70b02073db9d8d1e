#!/usr/bin/env bash
# What confining workers does to a real GPU's driver: which programs run in each mode, what mode
# strict would deny them, what it costs.
#
#   scripts/sandbox.sh [--gpu SEL] [--variant V] [--rounds N] [PROGRAM...]
#
# --gpu soft tries the script itself where there is no GPU. Exit status 1: mode on, the default,
# breaks a program. What strict breaks, and what audit saw, is printed to be judged: lines "strict
# would deny" are what the policy (host/sandbox/paths.go, calls_amd64.go) lacks. Takes less than 90
# s on a machine with 16 processors. CAUSEWAY names another binary; TAKEOVER one built with -tags
# takeover.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
cd "$ROOT" || exit 1

gpu=auto variant= rounds=7 programs=()
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --variant) variant=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1" ;;
    *) programs+=("$1"); shift ;;
  esac
done
causeway=${CAUSEWAY:-$BUILD/bin/causeway}
takeover=${TAKEOVER:-$BUILD/bin/causeway-takeover}
[ -x "$causeway" ] || die "$causeway is missing: run make build"
[ -n "$variant" ] || variant=$(cd "$BUILD/tests" 2>/dev/null && ls -d -- *-static 2>/dev/null | sort -V | tail -1)
[ -n "$variant" ] && [ -d "$BUILD/tests/$variant" ] || die "no test programs: run scripts/build-tests.sh"
# One for each way that the driver is known to reach for files, threads, other processes and
# compilers.
[ ${#programs[@]} -gt 0 ] || programs=(vectoradd driverapi loading library dynpar printf managed vmm pools graphnodes hostfunc threads fork procs twoproc events textures nvml)
out=$BUILD/logs/sandbox
rm -rf "$out"; mkdir -p "$out"

# attempt MODE PROGRAM: one word, how it ended.
attempt() {
  local rc=0
  timeout -k 2 12 "$causeway" run --gpu "$gpu" --lib "$BUILD/lib" --sandbox "$1" -- "$BUILD/tests/$variant/$2" >"$out/$2.$1.out" 2>"$out/$2.$1.err" || rc=$?
  case $rc in
    0) echo ok ;;
    77) echo skipped ;;
    124) echo "too-slow" ;;
    *) if grep -q 'sandbox strict: this host lacks' "$out/$2.$1.err"; then echo refused; else echo "status-$rc"; fi ;;
  esac
}

failed=0
printf '%-14s %-10s %-10s %-10s %-10s %s\n' program off audit on strict denials
for p in "${programs[@]}"; do
  [ -x "$BUILD/tests/$variant/$p" ] || { printf '%-14s missing\n' "$p"; continue; }
  row=()
  for mode in off audit on strict; do row+=("$(attempt "$mode" "$p")"); done
  n=$(grep -c 'strict would deny' "$out/$p.audit.err")
  printf '%-14s %-10s %-10s %-10s %-10s %s\n' "$p" "${row[@]}" "$n"
  [ "${row[0]}" = "${row[2]}" ] || failed=1
done

echo
echo "what this host lacks:"
sed -n 's/.*sandbox: workers do without what this host lacks" //p' "$out"/*.on.err | sort -u | grep . || echo "  nothing"
echo "what strict would deny (times, call):"
sed -n 's/.*sandbox: strict would deny" call="\{0,1\}//p' "$out"/*.audit.err | sed -e 's/"$//' -e 's/[0-9]\{4,\}/N/g' -e 's/0x[0-9a-f]\{5,\}/ADDR/g' | sort | uniq -c | sort -rn | head -60 | grep . || echo "  nothing"
echo "what failed in strict and not in off:"
for p in "${programs[@]}"; do
  [ -f "$out/$p.strict.err" ] && grep -vE 'level=(WARN|INFO)' "$out/$p.strict.err" | tail -2 | sed "s/^/  $p: /"
done | head -30 | grep . || echo "  nothing"

# Median milliseconds of the shortest program from its start to its end.
cost() {
  local i t=() a b
  for ((i = 0; i < rounds; i++)); do
    a=$(date +%s%N)
    "$causeway" run --gpu "$gpu" --lib "$BUILD/lib" --sandbox "$1" -- "$BUILD/tests/$variant/vectoradd" >/dev/null 2>&1
    b=$(date +%s%N)
    t+=($(((b - a) / 10000)))
  done
  printf '%s\n' "${t[@]}" | sort -n | sed -n "$(((rounds + 1) / 2))p" | sed 's/\(..\)$/.\1/'
}
echo
echo "vectoradd, start to end, median of $rounds, ms: off $(cost off), on $(cost on), off $(cost off), on $(cost on)"

# The attack on the worker of a real GPU: what gets through in mode on is listed.
if [ -x "$takeover" ]; then
  target='{"VHost":"/run/causeway/none","Control":"/run/causeway/none","Daemon":"/run/causeway/causewayd.sock","Scheduler":"/run/causeway/scheduler.sock","Abstract":"none","TCP":"127.0.0.1:22","UDP":"127.0.0.1:53","Parent":1,"Worker":1,"Memory":1,"Address":4096,"Namespace":"/proc/1/ns/uts"}'
  for mode in off on strict; do
    CAUSEWAY_TAKEOVER=$target timeout 60 "$takeover" run --gpu "$gpu" --lib "$BUILD/lib" --warm 0 --sandbox "$mode" -- "$BUILD/tests/$variant/vectoradd" >"$out/takeover.$mode" 2>&1
    echo "takeover, $mode: $(grep -c '^takeover: ' "$out/takeover.$mode") attempts, through: $(sed -n 's/^takeover: {"Name":"\([^"]*\)","Through":true.*/\1/p' "$out/takeover.$mode" | paste -sd';' | cut -c1-600)"
  done
fi
exit $failed
