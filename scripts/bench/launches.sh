#!/usr/bin/env bash
# Measures launches, waits, a graph's replay and the start of processes, natively and through
# Causeway in one run: name, value, unit, native value, ratio, goal. CPU times are per launch;
# _cpu_worker is the worker's.
#
#   scripts/bench/launches.sh [--gpu N|soft] [--starts N]
#
# Without a GPU of the machine's own there is no native column. start_: a worker waits ready;
# cold_start_: none does.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"

gpu=auto starts=5
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --starts) starts=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
probe=$BUILD/bin/launches causeway=$BUILD/bin/causeway
[ -x "$causeway" ] || die "build/bin/causeway is missing: run make build"
! have gcc || gcc -O2 -std=gnu11 -Wall -Wextra -pthread "$ROOT/scripts/bench/probe/launches.c" -o "$probe" -ldl
[ -x "$probe" ] || die "the benchmark is not built: install gcc"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-launches.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# modes PREFIX...: what does not start processes
modes() { for m in calls through graph; do "$@" "$probe" "$m"; done; }

: >"$tmp/native"
if [ "$gpu" != soft ] && "$probe" first >/dev/null 2>&1; then
  { modes env; "$probe" start "$starts" 100; } >"$tmp/native"
  sed -n 's/^start_/cold_start_/p' "$tmp/native" >>"$tmp/native"
fi
modes "$causeway" run --gpu "$gpu" -- >"$tmp/causeway"
"$causeway" run --gpu "$gpu" --warm 0 -- "$probe" start "$starts" 100 | sed 's/^start_/cold_start_/' >>"$tmp/causeway"
"$causeway" run --gpu "$gpu" --warm 1 -- "$probe" start "$starts" 1500 >>"$tmp/causeway" # a worker is made ready a second after one was taken

awk '
  /^#/ { next }
  FILENAME == ARGV[1] { native[$1] = $2; next }
  BEGIN { goal["sync_idle"] = "native + 1 us"; goal["launch_call"] = 0.15; goal["launch_sync"] = 1.1; goal["graph_500_replay"] = 1.01
          goal["launches_1_stream"] = goal["launches_1_thread_4_streams"] = goal["launches_4_threads"] = goal["launches_8_threads"] = 1.0
          goal["start_first"] = "1.0, aim 0.5"
          printf "%-42s %10s %-4s %10s %7s  %s\n", "name", "value", "unit", "native", "ratio", "goal" }
  { n = native[$1]
    printf "%-42s %10.3f %-4s %10s %7s  %s\n", $1, $2, $3, n ? sprintf("%.3f", n) : "-", n ? sprintf("%.2f", $2 / n) : "-", goal[$1] }
' "$tmp/native" "$tmp/causeway"
