#!/usr/bin/env bash
# Compares another build of Causeway with this one: launches, waits, graphs, starts and copies, each
# several times in turn, and the medians.
#
#   scripts/bench/compare.sh [--gpu N|soft] [--rounds N] [--before DIR] [--parts "PART..."]
#
# DIR (default build/before) holds the other build's bin/causeway and lib; scripts/h200.sh pack
# takes it along. Prints name, unit, before, after and after/before, where 1.00 is no change, and in
# how many of the rounds after was more, half of them if nothing has changed; of what is said in
# GB/s or in calls per second more is better, of the rest less is. The builds take turns in being
# the first of a round. PART: calls, through, graph, start, bench; all of these by default; remote
# is calls and copies by a lease with TLS over loopback (remote.sh; COPY: the largest in MiB, 16).
# What takes a microsecond differs by a tenth from process to process: 20 rounds of calls alone tell
# more than 4 of all.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"

gpu=auto rounds=5 before=$BUILD/before parts="calls through graph start bench"
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --before) before=$2; shift 2 ;;
    --parts) parts=$2; shift 2 ;;
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
  local part
  for part in $parts; do
    case $part in
      calls | through | graph) "$1" run --gpu "$gpu" -- "$BUILD/bin/launches" "$part" ;;
      start) "$1" run --gpu "$gpu" --warm 0 -- "$BUILD/bin/launches" start 3 100 | sed 's/^start_/cold_start_/' ;;
      bench) "$BUILD/bin/causeway-bench" --causeway "$1" --bench "$BUILD/bin/bench" --gpu "$gpu" --native no --idle 0 ;;
      remote) "$ROOT/scripts/bench/remote.sh" --gpu "$gpu" --copy "${COPY:-16}" --causeway "$1" ;;
      *) die "unknown part $part: see $0 --help" ;;
    esac
  done
}

for ((i = 1; i <= rounds; i++)); do
  say "round $i of $rounds"
  sides="before after"
  ((i % 2)) || sides="after before"
  for side in $sides; do
    which=$BUILD/bin/causeway
    [ $side = after ] || which=$before/bin/causeway
    measure "$which" | awk -v side="$side" -v round="$i" '!/^#/ && $2 ~ /^[0-9.]+$/ {print side, $1, $2, $3, round}' >>"$tmp/all"
  done
done
sort -k1,2 -k3,3g "$tmp/all" | awk '
  {key = $1 " " $2; v[key, ++n[key]] = $3; unit[$2] = $4; at[key, $5] = $3; if ($5 > rounds) rounds = $5}
  END {for (k in n) {split(k, p, " "); m = int((n[k] + 1) / 2); median[k] = n[k] % 2 ? v[k, m] : (v[k, m] + v[k, m + 1]) / 2}
       for (name in unit) {
         b = median["before " name]; a = median["after " name]
         if (b <= 0) continue
         more = 0
         for (i = 1; i <= rounds; i++) more += at["after " name, i] > at["before " name, i]
         printf "%-44s %-6s %12.3f %12.3f %6.2f %7s\n", name, unit[name], b, a, a / b, more "/" rounds
       }}' |
  sort | { printf '%-44s %-6s %12s %12s %6s %7s\n' name unit before after ratio rounds; cat; }
