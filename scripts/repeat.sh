#!/usr/bin/env bash
# Runs stages of scripts/test.sh again and again, and counts: a stage that fails once in twenty runs
# is not to be trusted.
#
#   scripts/repeat.sh [--load N] RUNS STAGE...
#
# --load N starts N busy loops beside it. Says each run's outcome, then a row for each stage: runs,
# failures, the shortest and the longest time. Of a run that failed its log is kept,
# build/logs/repeat/STAGE-RUN.log, and what its scripts logged, in the folder STAGE-RUN beside it.
# The status is 0 if none did.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"

load=0 loops=()
case ${1:-} in
  -h | --help) header; exit ;;
  --load) load=$2; shift 2 ;;
esac
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] && [ $# -ge 2 ] || die "usage: $0 [--load N] RUNS STAGE..."
runs=$1; shift
logs=$BUILD/logs/repeat
mkdir -p "$logs"
trap '[ ${#loops[@]} = 0 ] || kill "${loops[@]}" 2>/dev/null' EXIT
trap 'exit 130' INT TERM
for ((i = 0; i < load; i++)); do (while :; do :; done) & loops+=($!); done

rows=() bad=0
for stage in "$@"; do
  failed=0 shortest= longest=0
  for ((run = 1; run <= runs; run++)); do
    start=$SECONDS log=$logs/$stage-$run.log
    if "$ROOT/scripts/test.sh" "$stage" >"$log" 2>&1; then rm -f "$log"
    else
      failed=$((failed + 1)) bad=1
      mkdir -p "$logs/$stage-$run"
      find "$BUILD/logs" -mindepth 1 -maxdepth 1 ! -name repeat -newermt "@$(($(date +%s) - SECONDS + start))" -exec cp -a {} "$logs/$stage-$run/" \;
      [ ! -f "$BUILD/logs/$stage.log" ] || cp "$BUILD/logs/$stage.log" "$log"
      say "$stage, run $run: FAILED: $(grep -m1 -E '^(FAILED|error:|---)' "$log")"
    fi
    took=$((SECONDS - start))
    [ "$took" -lt "${shortest:-999999}" ] && shortest=$took
    [ "$took" -gt "$longest" ] && longest=$took
    say "$stage: $run of $runs, $failed failed, $took s"
  done
  rows+=("$(printf '%-10s %4d runs %4d failed   %d to %d s' "$stage" "$runs" "$failed" "$shortest" "$longest")")
done
printf '%s\n' "${rows[@]}"
exit $bad
