#!/usr/bin/env bash
# Fuzzes every target for hours, in turns, when the machine has nothing better to do, and keeps
# account.
#
#   scripts/fuzz.sh [--turn SECONDS] [--hours N] [--ledger FILE]   one target after the other
#   scripts/fuzz.sh --minutes N [--jobs N] [--ledger FILE]         all of them, spread over --jobs
#       CPUs (all), --minutes in all
#   scripts/fuzz.sh --take DIR                                     what --minutes left on another
#       machine in $OUT goes into this one's account
#   scripts/fuzz.sh --table [--ledger FILE]                        only prints the account: CPU
#       minutes, executions and findings of each target
#
# Each turn takes the target that has had the fewest, and the least CPU time of these, so far by the
# ledger (default docs/fuzz-ledger, which is to be committed), for --turn seconds (300) at the
# lowest priority, from the committed seeds and what earlier turns found. --hours (24) is the CPU
# time to reach in all; the ledger is kept, so a run that is interrupted goes on where it was. A
# turn that finds an input that fails says so, keeps it in the package's testdata/fuzz, and that
# target is left out from then on.
# With --minutes each target of this module has one turn or, where there are CPUs for it, those with
# the least CPU time so far another, as long as the time allows: the minutes are those of all of it,
# compilation included. Nothing of it goes to the ledger, but by --take, which adds up what the
# ledger has and refuses what it has taken. What it found lies in $OUT then (default
# build/fuzz/out): fuzz.txt is the account of this run, fuzz-ledger its lines, fuzz-found.tar.xz
# failing inputs and what they printed, fuzz-corpus.tar.xz the inputs that reached something new.
# --targets PATTERN: only those whose package and name match.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/stages.sh"
cd "$ROOT" || exit 1

turn=300 hours=24 ledger=$ROOT/docs/fuzz-ledger only=. mode=turns minutes= jobs=$(nproc) from=
while [ $# -gt 0 ]; do
  case $1 in
    --turn) turn=$2; shift 2 ;;
    --hours) hours=$2; shift 2 ;;
    --ledger) ledger=$2; shift 2 ;;
    --minutes) mode=spread minutes=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --take) mode=take from=$2; shift 2 ;;
    --targets) only=$2; shift 2 ;;
    --table) mode=table; shift ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
mkdir -p "$BUILD/fuzz" "$(dirname "$ledger")"
touch "$ledger"
cache=$(go env GOCACHE)/fuzz
targets=$BUILD/fuzz/targets

# A line of the ledger is a turn, or several: package, target, CPU seconds, executions, findings.
# Those that begin with # say where they are from.
account() { # LEDGER
  awk '!/^#/ { cpu[$1 " " $2] += $3; runs[$1 " " $2] += $4; bad[$1 " " $2] += $5; all += $3; inputs += $4; found += $5 }
    END { for (t in cpu) printf "%-70s %8.1f min %14d inputs %3d found\n", t, cpu[t] / 60, runs[t], bad[t] | "sort"
      close("sort"); printf "%d targets, %.2f CPU hours, %d inputs, %d findings\n", length(cpu), all / 3600, inputs, found }' "$1"
}

# add_up has the ledger one line for each target.
add_up() {
  { grep '^#' "$ledger"; awk '!/^#/ { t = $1 " " $2; cpu[t] += $3; runs[t] += $4; bad[t] += $5 } END { for (t in cpu) printf "%s %.1f %d %d\n", t, cpu[t], runs[t], bad[t] | "sort" }' "$ledger"; } >"$ledger.new"
  mv "$ledger.new" "$ledger"
}

# programs MODULE... makes the programs of these modules' targets.
programs() {
  # shellcheck disable=SC2034 # stages.sh reads it
  fuzz_only=$only
  stage_fuzzbuild "$@" || die "the fuzz targets do not build"
  fuzz_targets | awk -v only="$only" '$2 " " $3 ~ only' >"$targets"
  [ -s "$targets" ] || die "there is no such target"
}

# take_all DIR: the account of another machine's run, its inputs and its findings.
take_all() {
  local sum; [ -s "$1/fuzz-ledger" ] || die "$1 holds no run's account"
  sum=$(cksum <"$1/fuzz-ledger")
  ! grep -qF "# $sum:" "$ledger" || die "the account in $1 is in the ledger already"
  mkdir -p "$cache"
  [ ! -f "$1/fuzz-corpus.tar.xz" ] || tar xJf "$1/fuzz-corpus.tar.xz" -C "$cache" || die "the inputs in $1 are damaged"
  echo "# $sum: $(date -u +%F), $(grep '^# ' "$1/fuzz.txt" | cut -c3-), $(account "$1/fuzz-ledger" | tail -1)" >>"$ledger"
  cat "$1/fuzz-ledger" >>"$ledger"
  add_up
  [ ! -f "$1/fuzz-found.tar.xz" ] || { tar xJf "$1/fuzz-found.tar.xz" -C "$ROOT" && say "failing inputs: $(tar tJf "$1/fuzz-found.tar.xz" | grep testdata)"; }
  account "$ledger"
}

# one_turn SECONDS LEDGER DIR PACKAGE TARGET: the status is 1 for a finding, 2 if it did not run. An
# output that ends with a finding is kept. It ends at the deadline, if there is one.
factor=4 spare=300 deadline=0 # of the clock for a turn on a machine that has other things to do
one_turn() {
  local seconds=$1 to=$2 dir=$3 pkg=$4 t=$5 log=$BUILD/fuzz/${4//\//_}.$5.$BASHPID.turn cpu execs bad=0 most=$(($1 * factor + spare)) left=$((deadline - $(date +%s)))
  if [ "$deadline" != 0 ]; then
    [ $left -ge 3 ] || { say "$pkg $t: no time is left"; return 0; }
    seconds=$((seconds < left ? seconds : left)) most=$((left + spare))
  fi
  # What the children of that shell used of the CPUs, as "1m2.345s 0m1.234s".
  (cd "$dir" && timeout -k 10 $most nice -n 19 "$BUILD/fuzz/${pkg//\//_}.test" -test.paniconexit0 -test.run '^$' -test.fuzz "^$t\$" -test.fuzztime "${seconds}s" -test.parallel 1 \
    -test.fuzzminimizetime 100x -test.fuzzcachedir "$cache/$pkg" -test.timeout ${most}s >"$log" 2>&1; times >"$log.time")
  cpu=$(awk -F'[ms ]+' 'NR == 2 { printf "%.1f", $1 * 60 + $2 + $3 * 60 + $4 }' "$log.time")
  execs=$(grep -o 'execs: [0-9]*' "$log" | tail -1 | cut -d' ' -f2)
  # The end of the time itself, on a loaded machine, is none.
  if grep -q 'Failing input' "$log"; then bad=1; say "$pkg $t: $(grep -m1 'Failing input' "$log")"; cp "$log" "$BUILD/fuzz/$t.log"; fi
  echo "$pkg $t ${cpu:-0} ${execs:-0} $bad" >>"$to"
  say "$pkg $t: ${cpu:-0} s of CPU, ${execs:-0} inputs"
  # On a busy machine a turn may get no CPU time at all.
  if ! grep -q '^fuzz: elapsed' "$log"; then cat "$log" >&2; say "$pkg $t did not run"; bad=2; fi
  rm -f "$log" "$log.time"
  return $bad
}

# next prints the target with the fewest turns, and the least CPU time of these, that has no
# finding, unless the whole account is full.
next() {
  awk -v full=$((hours * 3600)) 'FILENAME == ARGV[1] { if (/^#/) next; cpu[$1 " " $2] += $3; turns[$1 " " $2]++; bad[$1 " " $2] += $5; all += $3; next }
    { t = $2 " " $3 }
    all < full && !bad[t] && (best == "" || turns[t] < few || turns[t] == few && cpu[t] < least) { best = $0; few = turns[t]; least = cpu[t] } END { print best }' "$ledger" "$targets"
}

take_turns() {
  local found=0 rc dir pkg t
  trap 'account "$ledger"; exit 130' INT TERM
  while read -r dir pkg t < <(next) && [ -n "$t" ]; do
    rc=0; one_turn "$turn" "$ledger" "$dir" "$pkg" "$t" || rc=$?
    case $rc in 1) found=1 ;; 2) die "$pkg $t did not run" ;; esac
    say "$(account "$ledger" | tail -1)"
  done
  account "$ledger"
  return $found
}

# least prints the targets, those first that have the least CPU time by the ledger.
least() {
  awk 'FILENAME == ARGV[1] { if (!/^#/) cpu[$1 " " $2] += $3; next } { print cpu[$2 " " $3] + 0, $0 }' "$ledger" "$targets" | sort -s -n -k 1,1 | cut -d ' ' -f 2-
}

# spread gives every target a turn within the minutes, as many beside each other as there are CPUs;
# CPUs that would have nothing to do in the last round take those again that have had the least. At
# the end some seconds are for what is to come back.
spread() {
  local n rounds seconds out=${OUT:-$BUILD/fuzz/out} own began=$BUILD/fuzz/began
  n=$(wc -l <"$targets") rounds=$(((n + jobs - 1) / jobs)) factor=1 spare=10 deadline=$(($(date +%s) - SECONDS + minutes * 60 - 20))
  seconds=$(((minutes * 60 - 20 - SECONDS) / rounds))
  [ $seconds -ge 3 ] || die "$minutes minutes do not suffice for $n targets on $jobs CPUs, after $SECONDS s of compilation"
  mkdir -p "$out" "$cache"; own=$out/fuzz-ledger
  : >"$own"; touch "$began"; sleep 0.01
  say "$n targets on $jobs CPUs, $((rounds * jobs)) turns of $seconds s"
  export -f one_turn say; export BUILD cache factor spare deadline
  { cat "$targets"; while least; do :; done 2>/dev/null; } | head -n $((rounds * jobs)) |
    xargs -P "$jobs" -L 1 bash -c 'one_turn "$@"; exit 0' - "$seconds" "$own" 2>&1 | tee "$BUILD/fuzz/said" >&2
  (cd "$cache" && find . -path '*/Fuzz*/*' -type f -newer "$began" -print0 | tar c --null -T - | xz -T0 -3 >"$out/fuzz-corpus.tar.xz")
  find . -path './build' -prune -o -path '*/testdata/fuzz/*' -type f -newer "$began" -print >"$BUILD/fuzz/new"
  { echo "# $(git rev-parse --short=8 HEAD 2>/dev/null || echo "${COMMIT:-a commit that is not known}") on $jobs CPUs"; account "$own"; grep -E 'Failing input|did not run' "$BUILD/fuzz/said"; } | tee "$out/fuzz.txt"
  [ ! -s "$BUILD/fuzz/new" ] || tar cJf "$out/fuzz-found.tar.xz" -T "$BUILD/fuzz/new" --transform 's|^.*/build/|build/|' $(find "$BUILD/fuzz" -name 'Fuzz*.log' -newer "$began")
  ! grep -qE 'Failing input|did not run' "$BUILD/fuzz/said"
}

case $mode in
  table) grep '^#' "$ledger"; account "$ledger" ;;
  take) take_all "$from" ;;
  spread) programs .; spread ;;
  turns) programs . host/fleet; take_turns ;;
esac
