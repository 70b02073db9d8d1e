#!/usr/bin/env bash
# Runs nvidia-smi with hosts that say known things, and compares what it prints, and its status,
# with expected/.
#
#   run.sh PROGRAM HOST LIB [--write]     --write: writes expected/ anew; look at the difference
#                                         before it is committed
#
# A line of cases: NAME, the kind of host (host.c), the status, the arguments. scripts/nvidia-smi.sh
# compares with NVIDIA's program.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
smi=$1 host=$2 write=${4:-}
export LD_LIBRARY_PATH=$3 LC_ALL=C TZ=UTC ASAN_OPTIONS=detect_leaks=0
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# What differs from run to run: times, and the CPUs of this machine.
masked() {
  sed -E -e 's/(Sun|Mon|Tue|Wed|Thu|Fri|Sat) [A-Z][a-z]{2} [ 0-9]{2} [0-9:]{8} [0-9]{4}/DATE/' \
    -e 's,[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9:]{8}\.[0-9]{3},DATE,' -e 's/^ 20[0-9]{6}    [0-9:]{8}/ YYYYMMDD    HH:MM:SS/' \
    -e '/^GPU[0-9]/s/\t[0-9N/A,-]+\t[0-9N/A,-]+\t\tN\/A$/\tCPUS/'
}

# fields QUERY: every property that it knows.
fields() { "$smi" "--help-$1" | sed -n 's/^"\([^"]*\)".*/\1/p' | paste -sd,; }

failed=0 passed=0
while read -r name kind status args; do
  [ -n "$name" ] && [ "${name#\#}" = "$name" ] || continue
  eval "set -- $args"
  timeout 120 "$host" "$kind" "$smi" "$@" </dev/null >"$out/raw" 2>"$out/err"
  rc=$?
  masked <"$out/raw" >"$out/$name"
  if grep -q 'Sanitizer\|runtime error' "$out/err"; then
    rc=sanitizer
  fi
  [ -z "$write" ] || cp "$out/$name" "$here/expected/$name"
  : >"$out/diff"
  if [ "$rc" = "$status" ] && diff -u "$here/expected/$name" "$out/$name" >"$out/diff"; then
    passed=$((passed + 1))
    continue
  fi
  failed=$((failed + 1))
  echo "FAILED: $name: nvidia-smi $args: status $rc, expected $status"
  head -40 "$out/diff"
  head -20 "$out/err"
done <"$here/cases"
# What is expected of no case guards nothing.
for f in "$here"/expected/*; do
  grep -q "^${f##*/} " "$here/cases" || { failed=$((failed + 1)); echo "FAILED: expected/${f##*/} belongs to no case"; }
done
echo "$(basename "$smi"): $passed passed, $failed failed"
[ $failed = 0 ]
