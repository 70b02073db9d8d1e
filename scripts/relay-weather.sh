#!/usr/bin/env bash
# Programs on another host's GPU over links that lose, double and reorder packets, are slow or far:
# two network namespaces, and a link between them that does so (scripts/wire: not every kernel has
# netem). Wants root; ends with 77 without.
#
#   scripts/relay-weather.sh [PROGRAM...]     of guest/tests (default: a few)
#
# Each must end well with the right results over each link, and the link must have done what it
# should: one line for each, with the seconds that the programs took, and how many connections
# sessions lost (again). The status is 0 if all did.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/wire.sh"

case ${1:-} in -h | --help) header; exit ;; esac
variant=$BUILD/tests/13.0-static programs=("$@") failed=0
[ $# -gt 0 ] || programs=(vectoradd copies streams uploads)
for p in "${programs[@]}"; do [ -x "$variant/$p" ] || die "no $variant/$p: run scripts/build-tests.sh $p"; done
unshare --net true 2>/dev/null || { say "no network namespaces here: skipped"; exit 77; }

# over NAME COUNTED FLAG...: in a shell of its own, which ends all that it began. COUNTED: of what
# there must have been some (lost, overtaken, twice, full), or packets.
over() (
  name=$1 counted=$2 bad=0; shift 2
  tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-weather.XXXXXX"); pids=()
  cleanup() { for p in "${pids[@]}"; do kill "$p" 2>/dev/null; done; wait 2>/dev/null; rm -rf "$tmp"; }
  trap cleanup EXIT
  wire_up "$@"
  serve_there "$tmp/lease" "$tmp/server.log"
  again=0 began=$(date +%s.%N)
  for p in "${programs[@]}"; do
    if ! at "$here" timeout -k 5 300 "$CAUSEWAY" run --relay "$tmp/lease" -- "$variant/$p" >"$tmp/out" 2>"$tmp/err" </dev/null; then
      say "$p: $(tail -n 2 "$tmp/err" | tr '\n' ' ')"; bad=1
    elif ! diff -q <(grep -v '^#' "$tmp/out") <(grep -v '^#' "$(expected 13.0-static "$p")") >/dev/null; then
      say "$p: other results"; bad=1
    fi
    again=$((again + $(grep -c 'is lost: the session asks for another' "$tmp/err")))
  done
  took=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN {printf "%.1f", b - a}')
  kill -TERM "$wire"; wait "$wire" 2>/dev/null
  told=$(grep '^packets' "$tmp/wire.out") || { say "the link has ended: $(cat "$tmp/wire.out")"; bad=1; }
  awk -v what="$counted" '{for (i = 1; i < NF; i += 2) if ($i == what && $(i + 1) > 0) ok = 1} END {exit !ok}' <<<"$told" || { say "the link has $counted none"; bad=1; }
  printf '%-40s %6s s  %-66s %s\n' "$name" "$took" "$told again $again" "$([ $bad = 0 ] && echo ok || echo FAILED)"
  exit $bad
)
over "as it is" packets --delay 0s || failed=1
over "one packet in 100 lost" lost --loss 0.01 || failed=1
over "one in 20 lost, 5 ms" lost --loss 0.05 --delay 5ms || failed=1
over "one in 5 overtaken, one in 50 doubled" overtaken --reorder 0.2 --duplicate 0.02 --delay 1ms || failed=1
over "20 ms and up to 10 more" packets --delay 20ms --jitter 10ms || failed=1
over "100 Mbit/s, 32 KiB of queue" full --rate 12500000 --queue 32768 || failed=1
over "all of it" lost --loss 0.01 --reorder 0.05 --duplicate 0.01 --delay 5ms --jitter 3ms --rate 12500000 || failed=1
if [ $failed = 0 ]; then say "relay-weather: passed"; else say "relay-weather: FAILED"; fi
exit $failed
