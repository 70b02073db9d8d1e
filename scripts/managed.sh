#!/usr/bin/env bash
# Managed memory on one GPU by each way that a program can have it, more of it than there is room
# for included.
#
#   scripts/managed.sh [--gpu N|soft] [--seconds N] [--jobs N] [--stress] [--variant V] [--measure
#   "PIECE..."] [--logs FOLDER] [WAY...]
#
# WAY is one of local (causeway run), host (the same where what the GPU has no room for lies as in a
# VM), strict (with --sandbox strict), tcp (causeway serve-plain), lease (a GPU server's causewayd
# and a host's, over TLS on loopback); all by default. Each has the programs managed* and
# oversubscribe of guest/tests, which compare their bytes, and managedrandom for N seconds (20), two
# beside them and one of twice the memory that there is room for. With memory limits of 8 GiB (1 GiB
# on the software GPU). --measure: then the pieces of scripts/bench/managed.sh, local and leased,
# natively too. peers is a way more, for --gpu N,M or soft:2: one vGPU of both GPUs, whose kernels,
# copies and prefetches use managed memory in turns with the processor for N seconds. --stress: no
# programs, only the random writers, each way N seconds in all, with new seeds; what has not ended
# four minutes later has failed. --jobs: how many write at a time (2). Several may run at a time,
# each with --logs of its own (build/logs/managed). Exit status 1: a program failed.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"
. "$ROOT/scripts/lib/lease.sh"
cd "$ROOT" || exit 1

gpu=auto seconds=20 variant=13.0-static measure= stress= jobs=2 logs=$BUILD/logs/managed ways=()
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --variant) variant=$2; shift 2 ;;
    --measure) measure=$2; shift 2 ;;
    --stress) stress=1; shift ;;
    --jobs) jobs=$2; shift 2 ;;
    --logs) logs=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) ways+=("$1"); shift ;;
  esac
done
[ ${#ways[@]} -gt 0 ] || ways=(local host strict tcp lease)
limit=8GiB factor=16
# A GPU's driver maps the host's pages in blocks of 32 MiB.
[[ $gpu != soft* ]] || { limit=1GiB factor=1; export CAUSEWAY_MANAGED_PIECE=2; }
programs=()
for f in "$BUILD/tests/$variant"/managed*; do [ ! -x "$f" ] || programs+=("$(basename "$f")"); done
[ ${#programs[@]} -gt 0 ] || die "no test programs: run scripts/build-tests.sh"
rm -rf "$logs"; mkdir -p "$logs"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-managed.XXXXXX")
mkfifo "$tmp/never"; exec 9<>"$tmp/never" # for nap
cleanup() {
  stop_service
  lease_end "$tmp"
  rm -rf "$tmp"
}
on_exit cleanup

passed=0 failed=0

# random WAY COUNT SECONDS FACTOR RUNNER...: random writers of managed memory, each with a seed of
# its own; writers are their processes.
writers=()
random() {
  local way=$1 count=$2 time=$3 factor=$4 seed; shift 4
  writers=()
  for ((seed = 1; seed <= count; seed++)); do
    timeout -k 10 $((time + 60 * slack)) "$@" "$BUILD/tests/$variant/managedrandom" "$time" $((seed * 100000 + $$ % 100000)) "$factor" >"$logs/$way-random$seed" 2>&1 9>&- & writers+=("$!")
  done
}
# random_end WAY NAME
random_end() {
  local seed
  for ((seed = 1; seed <= ${#writers[@]}; seed++)); do
    wait "${writers[seed - 1]}"
    row "$1: $2" "$(keep grep -h rounds "$logs/$1-random$seed")" || tail -n 5 "$logs/$1-random$seed"
  done
}

# run_programs WAY PROGRAMS -- RUNNER...
run_programs() {
  local way=$1 list=$2 start=$SECONDS; shift 3
  # shellcheck disable=SC2086 # a list
  scripts/run-tests.sh --label "$way" --logs "$logs/$way-${list%% *}" --variants "$variant" --may-skip managedpeers --runner "$*" $list >"$logs/$way.txt" 2>&1 9>&-
  row "$way: $list" "$(keep tail -n 1 "$logs/$way.txt"), $((SECONDS - start)) s" || { sed -n '/^---/,$p' "$logs/$way.txt"; grep -h '^#' "$logs/$way-${list%% *}/$variant"/*.out | tail -n 40; }
}

# through WAY RUNNER...: the programs, and random writers beside them; then with less room than they
# want.
through() {
  local way=$1 time=$seconds; shift
  [ -z "$stress" ] || time=$(((seconds + 1) / 2))
  random "$way" "$jobs" "$time" 0 "$@"
  [ -n "$stress" ] || run_programs "$way" "${programs[*]}" -- "$@"
  random_end "$way" 'random writers on both sides'
  [ -n "$stress" ] || run_programs "$way" oversubscribe -- "$@"
  nap 3 # a session that a server ends has its memory for a moment more
  random "$way-over" 1 "$time" "$factor" "$@"
  random_end "$way-over" 'the same of twice the room'
}

way_local() { through local "$CAUSEWAY" run --gpu "$gpu" --memory "$limit" --; }
way_host() { through host env CAUSEWAY_MANAGED_BEYOND=host "$CAUSEWAY" run --gpu "$gpu" --memory "$limit" --; }
way_strict() { through strict "$CAUSEWAY" run --gpu "$gpu" --memory "$limit" --sandbox strict --; }
# A round takes the software GPU milliseconds and a real one less, so a run of the program has so
# many that it takes seconds.
way_peers() {
  local end=$((SECONDS + seconds)) seed=$(($$ % 100000)) runs=0 rounds=3000 rc=0
  [[ $gpu != soft* ]] || rounds=300
  while [ "$SECONDS" -lt "$end" ] && [ $rc = 0 ]; do
    runs=$((runs + 1)) seed=$((seed + 1))
    timeout -k 10 $((180 * slack)) "$CAUSEWAY" run --gpu "$gpu" --memory "$limit" -- "$BUILD/tests/$variant/managedpeers" "$rounds" "$seed" >"$logs/peers-$runs" 2>&1 9>&-
    rc=$?
  done
  [ $rc = 0 ]
  row "peers: two GPUs and the CPU take turns" "$runs runs of $rounds rounds" || tail -n 5 "$logs/peers-$runs"
}
way_tcp() {
  local at; at=$(own_loopback):7745
  start_serve "$at" "$logs/serve.log" --gpu "$gpu" --memory "$limit"
  through tcp env CAUSEWAY="tcp://$at" LD_LIBRARY_PATH="$BUILD/lib"
  stop_service
}
# The lease stays for what is measured.
way_lease() {
  local port=$((20000 + $$ % 20000))
  [ ${#lease_pids[@]} -gt 0 ] || lease_begin "$tmp" "$port" "$port" "$gpu" '' --memory "$limit"
  [ "${1:-}" = only ] || through lease "$CAUSEWAY" run --remote vm1 --
}

if [ "$gpu" != soft ] && [ -x "$BUILD/bin/onhost" ]; then "$BUILD/bin/onhost" | sed 's/^/# the driver: /'; fi
for way in "${ways[@]}"; do
  declare -F "way_$way" >/dev/null || die "unknown way $way: see $0 --help"
  say "$way"
  "way_$way"
done
if [ -n "$measure" ]; then
  way_lease only
  # shellcheck disable=SC2086 # they are words
  scripts/bench/managed.sh --gpu "$gpu" --rounds 1 --memory "$limit" --remote vm1 $measure || row "measured" ""
fi
grep -h 'level=ERROR' "$logs"/*.log "$tmp"/*/log/*.log 2>/dev/null | head -5
echo "managed: $passed passed, $failed failed"
[ "$failed" = 0 ]
