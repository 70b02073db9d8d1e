#!/usr/bin/env bash
# Compares what programs see after faults: each case of guest/tests/faults.cu natively and through
# Causeway.
#
#   scripts/faults.sh [options] [CASE...]
#
#   --program PATH      the test program (default build/tests/13.0-static/faults)
#   --native CMD        prefix of the native run; "table": compare with what a real driver printed,
#                       kept in --table
#   --runner CMD        prefix of the run through Causeway (default "build/bin/causeway run --gpu 0
#                       --")
#   --table DIR         native outputs, one file a case (default guest/tests/faults); --record
#                       writes them
#   --until TEXT        compare up to the line that begins with TEXT
#   --may-differ "C..." cases that are listed but do not count: what this GPU cannot do
#   --life              also: a neighbour that must notice nothing, a killed program, a killed
#                       worker, and what is left behind
#   --timeout SECONDS   for each case (default 120);  --verbose: show the lines that differ
#
# Prints "case native causeway result" lines: the code of the first wait after the fault (or how the
# process ended), and "same" or how many lines differ. Exit status 0: nothing differs that counts.
set -euo pipefail
cd "$(dirname "$0")/.."

program=build/tests/13.0-static/faults native= runner='build/bin/causeway run --gpu 0 --' table=guest/tests/faults
record= verbose= limit=120 until= life= cases=()
# A real driver takes the memory of a destroyed context for one still, and fails a call later:
# undefined, and not imitated.
may_differ=destroyed_context
while [ $# -gt 0 ]; do
  case $1 in
    --program) program=$2; shift 2 ;;
    --native) native=$2; shift 2 ;;
    --runner) runner=$2; shift 2 ;;
    --table) table=$2; shift 2 ;;
    --until) until=$2; shift 2 ;;
    --may-differ) may_differ+=" $2"; shift 2 ;;
    --timeout) limit=$2; shift 2 ;;
    --record) record=1; shift ;;
    --verbose) verbose=1; shift ;;
    --life) life=1; shift ;;
    -h | --help) sed -n '1d; /^#/!q; s/^# \{0,1\}//p' "$0"; exit ;;
    -*) echo "unknown option $1" >&2; exit 2 ;;
    *) cases+=("$1"); shift ;;
  esac
done
work=$(mktemp -d)
export FAULTS_STOP=$work/stop
trap 'touch "$FAULTS_STOP"; wait; rm -rf "$work"' EXIT
# shellcheck disable=SC2086
[ ${#cases[@]} -gt 0 ] || mapfile -t cases < <($runner "$program" | grep -vx -e infinite -e stuck -e steady -e orphan)

# run PREFIX CASE OUT: standard output, how the process ended, and the words of assertions on
# standard error.
run() {
  local rc=0
  # The prefix is a command line: it is split on purpose.
  # shellcheck disable=SC2086
  timeout -k 2 "$limit" $1 "$program" "$2" >"$3" 2>"$3.err" </dev/null || rc=$?
  [ $rc -lt 128 ] || rc=$(kill -l $((rc - 128)) 2>/dev/null || echo $rc)
  echo "end: $rc" >>"$3"
  grep -o 'Assertion.*' "$3.err" | sort | uniq -c | sed 's/^ */stderr: /' >>"$3" || true
  sed -i '/^#/d' "$3"
}
# first FILE: the code of the first wait, else how the process ended.
first() { sed -n 's/^cudaDeviceSynchronize(): //p' "$1" | grep -m1 . || tail -1 "$1" | tr -d ' '; }
shown() { if [ -n "$until" ]; then sed "/^$until/,\$d" "$1"; else cat "$1"; fi; }
memory() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | tr '\n' ' ' || true; }
workers() { pgrep -f 'causeway worker' | sort || true; }
# until_true SECONDS COMMAND...: polls, four times as long: others may have the machine.
until_true() {
  local end=$((SECONDS + 4 * $1)); shift
  until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.1; done
}
bad=0
row() { printf '%-20s %-10s %-10s %s\n' "$1" "$2" "$3" "$4"; }
# verdict NAME CONDITION...: a line of the second table.
verdict() {
  local name=$1; shift
  if "$@"; then echo "$name: yes"; else echo "$name: NO"; bad=1; fi
}
gone() { ! kill -0 "$1" 2>/dev/null; }

if [ -n "$life" ]; then
  before=$(workers) used=$(memory)
  # shellcheck disable=SC2086
  $runner "$program" steady >"$work/steady" 2>&1 </dev/null & neighbour=$!
  until_true 20 grep -q steady "$work/steady" || { echo "the neighbour did not start:"; cat "$work/steady"; exit 1; }
fi

row case native causeway result
for c in "${cases[@]}"; do
  n=$work/$c.native k=$work/$c.causeway
  if [ "$native" = table ]; then cp "$table/$c.txt" "$n"; else run "$native" "$c" "$n"; fi
  if [ -n "$record" ]; then mkdir -p "$table"; cp "$n" "$table/$c.txt"; fi
  run "$runner" "$c" "$k"
  lines=$(diff <(shown "$n") <(shown "$k") | grep -c '^[<>]' || true)
  if [ "$lines" = 0 ]; then
    result=same
  elif grep -q '^end: SEGV\|^end: ABRT' "$n"; then
    result="native crashes" # an error instead is better, and allowed
  elif [[ " $may_differ " == *" $c "* ]]; then
    result="$lines lines differ (declared)"
  else
    result="$lines lines differ" bad=1
  fi
  row "$c" "$(first "$n")" "$(first "$k")" "$result"
  if [ "$lines" != 0 ] && { [ -n "$verbose" ] || [ "$result" = "$lines lines differ" ]; }; then
    { diff <(shown "$n") <(shown "$k") || true; } | sed -n 's/^[<>]/    &/p' | sed -n "1,${verbose:+100}8p"
  fi
done

if [ -n "$life" ]; then
  # Programs that are killed while their kernel runs for ever, or a host function does not return.
  for c in infinite stuck; do
    # shellcheck disable=SC2086
    $runner "$program" $c >"$work/$c" 2>&1 </dev/null & carrier=$!
    until_true 20 grep -q running "$work/$c" || { echo "$c did not begin:"; cat "$work/$c"; bad=1; }
    worker=$(pgrep -P $carrier -f 'causeway worker' | head -1 || true)
    kill -KILL "$(pgrep -P $carrier -f " $c\$" | head -1)" || { echo "$c does not run:"; cat "$work/$c"; bad=1; }
    verdict "killed program ($c): its worker leaves" until_true 5 gone "${worker:-0}"
    wait $carrier 2>/dev/null || true
  done
  # A program whose worker is killed.
  # shellcheck disable=SC2086
  $runner "$program" orphan >"$work/orphan" 2>&1 </dev/null & carrier=$!
  until_true 20 grep -q waiting "$work/orphan" || { echo "orphan did not begin:"; cat "$work/orphan"; bad=1; }
  kill -KILL "$(pgrep -P $carrier -f 'causeway worker' | head -1)" || { echo "orphan has no worker:"; cat "$work/orphan"; bad=1; }
  verdict 'killed worker: its program ends' until_true 10 gone $carrier
  wait $carrier 2>/dev/null || true
  echo "killed worker: calls return $(grep -o ': [0-9]*$' "$work/orphan" | sort | uniq -c | sort -rn | awk '{printf "%s%s x %s", s, $3, $1; s=", "}')"
  verdict 'killed worker: waits return 719' grep -q '^cudaDeviceSynchronize(): 719' "$work/orphan"
  touch "$FAULTS_STOP"
  wait $neighbour || bad=1
  verdict 'neighbour: every result right' grep -q '^steady: 0 wrong' "$work/steady"
  left() { [ "$(workers)" = "$before" ]; }
  verdict 'no worker is left' until_true 5 left
  back() { [ "$(memory)" = "$used" ]; }
  verdict "device memory is back (${used:-no GPU})" until_true 10 back
fi
exit $bad
