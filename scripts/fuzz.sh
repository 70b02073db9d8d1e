#!/usr/bin/env bash
# Fuzzes every target for hours, in turns, when the machine has nothing better to do, and keeps account.
#
#   scripts/fuzz.sh [--turn SECONDS] [--hours N] [--ledger FILE] [--table]
#
# Each turn takes the target that has had the fewest, and the least CPU time of these, so far by the ledger (default build/fuzz/ledger), for --turn seconds (300) at
# the lowest priority, from the committed seeds and what earlier turns found. --hours (24) is the CPU time to reach in all; the ledger is kept, so a run that
# is interrupted goes on where it was. A turn that finds an input that fails says so, keeps it in the package's testdata/fuzz, and that
# target is left out from then on. --table only prints the account: CPU minutes, executions and findings of each target.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/stages.sh"
cd "$ROOT" || exit 1

turn=300 hours=24 ledger=$BUILD/fuzz/ledger table=
while [ $# -gt 0 ]; do
  case $1 in
    --turn) turn=$2; shift 2 ;;
    --hours) hours=$2; shift 2 ;;
    --ledger) ledger=$2; shift 2 ;;
    --table) table=1; shift ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
mkdir -p "$BUILD/fuzz" "$(dirname "$ledger")"
touch "$ledger"
jobs=$(nproc)

# A line of the ledger is one turn: package, target, CPU seconds, executions, findings.
account() {
  awk '{ cpu[$1 " " $2] += $3; runs[$1 " " $2] += $4; bad[$1 " " $2] += $5; all += $3; inputs += $4; found += $5 }
    END { for (t in cpu) printf "%-70s %8.1f min %14d inputs %3d found\n", t, cpu[t] / 60, runs[t], bad[t] | "sort"
      close("sort"); printf "%d targets, %.2f CPU hours, %d inputs, %d findings\n", length(cpu), all / 3600, inputs, found }' "$ledger"
}
if [ -n "$table" ]; then account; exit; fi

stage_fuzzbuild . host/fleet || die "the fuzz targets do not build"
targets=$BUILD/fuzz/targets
fuzz_targets >"$targets"

# next prints the target with the fewest turns, and the least CPU time of these, that has no finding, unless the whole account is full.
next() {
  awk -v full=$((hours * 3600)) 'FILENAME == ARGV[1] { cpu[$1 " " $2] += $3; turns[$1 " " $2]++; bad[$1 " " $2] += $5; all += $3; next }
    { t = $2 " " $3 }
    all < full && !bad[t] && (best == "" || turns[t] < few || turns[t] == few && cpu[t] < least) { best = $0; few = turns[t]; least = cpu[t] } END { print best }' "$ledger" "$targets"
}

trap 'account; exit 130' INT TERM
found=0
while read -r dir pkg t < <(next) && [ -n "$t" ]; do
  log=$BUILD/fuzz/turn.log
  # What the children of that shell used of the CPUs, as "1m2.345s 0m1.234s".
  (cd "$dir" && nice -n 19 "$BUILD/fuzz/${pkg//\//_}.test" -test.paniconexit0 -test.run '^$' -test.fuzz "^$t\$" -test.fuzztime "${turn}s" -test.parallel 1 \
    -test.fuzzminimizetime 100x -test.fuzzcachedir "$(go env GOCACHE)/fuzz/$pkg" -test.timeout $((turn * 4 + 300))s >"$log" 2>&1; times >"$log.time")
  cpu=$(awk -F'[ms ]+' 'NR == 2 { printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$log.time") bad=0
  execs=$(grep -o 'execs: [0-9]*' "$log" | tail -1 | cut -d' ' -f2)
  # The end of the time itself, on a loaded machine, is none.
  if grep -q 'Failing input' "$log"; then bad=1 found=1; say "$pkg $t: $(grep -m1 'Failing input' "$log")"; cp "$log" "$BUILD/fuzz/$t.log"; fi
  echo "$pkg $t ${cpu:-0} ${execs:-0} $bad" >>"$ledger"
  say "$pkg $t: ${cpu:-0} s of CPU, ${execs:-0} inputs; $(account | tail -1)"
  # On a busy machine a turn may get no CPU time at all.
  grep -q '^fuzz: elapsed' "$log" || { cat "$log" >&2; die "$pkg $t did not run"; }
done
account
exit $found
