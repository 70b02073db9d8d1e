#!/usr/bin/env bash
# Compares another build of Causeway with this one: launches, waits, graphs, starts and copies, each
# several times in turn, and the medians.
#
#   scripts/bench/compare.sh [--gpu N|soft] [--rounds N] [--before DIR]
#
# DIR (default build/before) holds the other build's bin/causeway and lib; scripts/h200.sh pack
# takes it along. Prints name, unit, before, after and after/before, where 1.00 is no change; of
# what is said in GB/s or in calls per second more is better, of the rest less is.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"

gpu=auto rounds=5 before=$BUILD/before
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --before) before=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
[ -x "$before/bin/causeway" ] || die "$before/bin/causeway is missing: build the other commit and copy its build/bin/causeway and build/lib there"
for p in launches bench; do
  ! have gcc || gcc -O2 -std=gnu11 -Wall -Wextra -pthread "$ROOT/scripts/bench/probe/$p.c" -o "$BUILD/bin/$p" -ldl
  [ -x "$BUILD/bin/$p" ] || die "the benchmark is not built: install gcc"
done
! have go || go build -trimpath -o "$BUILD/bin/causeway-bench" "$ROOT/scripts/bench"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-compare.XXXXXX")
on_exit 'rm -rf "$tmp"'

# measure CAUSEWAY prints name, value and unit of everything.
measure() {
  local m
  for m in calls through graph; do "$1" run --gpu "$gpu" -- "$BUILD/bin/launches" "$m"; done
  "$1" run --gpu "$gpu" --warm 0 -- "$BUILD/bin/launches" start 3 100 | sed 's/^start_/cold_start_/'
  "$BUILD/bin/causeway-bench" --causeway "$1" --bench "$BUILD/bin/bench" --gpu "$gpu" --native no --idle 0
}

for ((i = 1; i <= rounds; i++)); do
  say "round $i of $rounds"
  for side in before after; do
    which=$BUILD/bin/causeway
    [ $side = after ] || which=$before/bin/causeway
    measure "$which" | awk -v side=$side '!/^#/ && $2 ~ /^[0-9.]+$/ {print side, $1, $2, $3}' >>"$tmp/all"
  done
done
sort -k1,2 -k3,3g "$tmp/all" | awk '
  {key = $1 " " $2; v[key, ++n[key]] = $3; unit[$2] = $4}
  END {for (k in n) {split(k, p, " "); m = int((n[k] + 1) / 2); median[k] = n[k] % 2 ? v[k, m] : (v[k, m] + v[k, m + 1]) / 2}
       for (name in unit) {b = median["before " name]; a = median["after " name]; if (b > 0) printf "%-44s %-6s %12.3f %12.3f %6.2f\n", name, unit[name], b, a, a / b}}' |
  sort | { printf '%-44s %-6s %12s %12s %6s\n' name unit before after ratio; cat; }
