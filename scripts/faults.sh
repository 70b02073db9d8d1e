#!/usr/bin/env bash
# Compares what programs see after faults: each case of guest/tests/faults.cu natively and through Causeway.
#
#   scripts/faults.sh [options] [CASE...]
#
#   --program PATH     the test program (default build/tests/13.0-static/faults)
#   --native CMD       prefix of the native run; "none": compare with the table that a real driver left (--table)
#   --runner CMD       prefix of the run through Causeway (default "build/bin/causeway run --gpu 0 --")
#   --table DIR        native outputs, one file a case (default guest/tests/faults); with --record they are written
#   --may-differ "C..." cases that are listed but do not count (what the software GPU does not do)
#   --timeout SECONDS  for each case (default 30)
#
# It prints "case native causeway" lines: the first code after the fault, or how the process ended, and "same" or the number of
# lines that differ; the differing lines follow with --verbose. Exit status 0: nothing differs.
set -euo pipefail
cd "$(dirname "$0")/.."

program=build/tests/13.0-static/faults native= runner='build/bin/causeway run --gpu 0 --' table=guest/tests/faults
record= verbose= limit=30 may_differ= cases=()
while [ $# -gt 0 ]; do
  case $1 in
    --program) program=$2; shift 2 ;;
    --native) native=$2; shift 2 ;;
    --runner) runner=$2; shift 2 ;;
    --table) table=$2; shift 2 ;;
    --record) record=1; shift ;;
    --verbose) verbose=1; shift ;;
    --timeout) limit=$2; shift 2 ;;
    --may-differ) may_differ=$2; shift 2 ;;
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit ;;
    -*) echo "unknown option $1" >&2; exit 2 ;;
    *) cases+=("$1"); shift ;;
  esac
done
if [ ${#cases[@]} = 0 ]; then # shellcheck disable=SC2086
  mapfile -t cases < <(${native:+$runner} "$program" | grep -vx -e infinite -e steady -e orphan); fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# run PREFIX CASE OUT: standard output, how it ended, and the words of an assertion on standard error.
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
# first FILE: the code of the first wait, or the last line.
first() { sed -n 's/^cudaDeviceSynchronize(): //p' "$1" | head -1 | grep . || tail -1 "$1" | tr ' ' '_'; }

bad=0
printf '%-20s %-10s %-10s %s\n' case native causeway result
for c in "${cases[@]}"; do
  n=$work/$c.native k=$work/$c.causeway
  if [ "$native" = none ]; then cp "$table/$c.txt" "$n"; else run "$native" "$c" "$n"; fi
  if [ -n "$record" ]; then mkdir -p "$table"; cp "$n" "$table/$c.txt"; fi
  run "$runner" "$c" "$k"
  lines=$(diff "$n" "$k" | grep -c '^[<>]' || true)
  if [ "$lines" = 0 ]; then
    result=same
  elif grep -q '^end: SEGV\|^end: ABRT' "$n"; then
    result="native crashes" # an error instead is better, and allowed
  elif [[ " $may_differ " == *" $c "* ]]; then
    result="$lines lines differ (declared)"
  else
    result="$lines lines differ" bad=1
  fi
  printf '%-20s %-10s %-10s %s\n' "$c" "$(first "$n")" "$(first "$k")" "$result"
  if [ -n "$verbose" ] && [ "$lines" != 0 ]; then diff "$n" "$k" | grep '^[<>]' || true; fi
done
exit $bad
