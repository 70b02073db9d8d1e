#!/usr/bin/env bash
# A program on another host's GPU whose link is cut: two network namespaces for two hosts, a pair of
# veths for the link. Wants root; ends with 77 without.
#
#   scripts/relay-lost.sh [--mode MODE]     a mode of guest/tests/rounds (default: streams)
#
# A connection that is reset, a host whose address changes, a link that is gone for 10 s lose
# nothing: the program goes on with right results. A link that stays away ends the program with an
# error, and the workers at both ends, within 25 s (15 s until TCP gives up, and what a busy machine
# adds).
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/wire.sh"

mode=streams
while [ $# -gt 0 ]; do
  case $1 in
    --mode) mode=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1" ;;
  esac
done
program=$BUILD/tests/13.0-static/rounds
[ -x "$program" ] || die "no $program: run scripts/build-tests.sh rounds"
tmp=$(mktemp -d); pids=()
cleanup() {
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
  for p in "${pids[@]}"; do wait "$p" 2>/dev/null || true; done
  rm -rf "$tmp"
}
on_exit cleanup

wire_up || { say "no network namespaces here: skipped"; exit 77; }
serve_there "$tmp/lease" "$tmp/server.log"
stay_at "$here" "$CAUSEWAY" run -v --relay "$tmp/lease" -- "$program" "$mode" >"$tmp/out" 2>"$tmp/err" & run=$!; pids+=("$run")

rounds() { awk '$1 == "@round" {n = $2} END {print n + 0}' "$tmp/out"; }
# past N SECONDS: the program comes beyond its round N.
past() { for _ in $(seq $(($2 * 10))); do [ "$(rounds)" -gt "$1" ] && return; kill -0 "$run" 2>/dev/null || return 1; sleep 0.1; done; return 1; }
fail() { say "FAILED: $*"; tail -n 5 "$tmp/out" "$tmp/err" "$tmp/server.log" >&2; exit 1; }

past 3 30 || fail "the program does not begin"
# goes_on WHAT: the program does, with right results, over another connection than before.
goes_on() {
  past $(($(rounds) + 5)) 30 || fail "the program does not go on after $1"
  awk '$1 == "@round" && $3 != 0 {bad = 1} END {exit bad}' "$tmp/out" || fail "wrong results after $1"
}
connections() { grep -c 'is lost: the session asks for another' "$tmp/err" || true; } # the server's log has those for copies, too, when they begin

if [ -z "$(cut "$here")" ]; then
  goes_on "a reset"
  for ns in "$there" "$here" "$there"; do cut "$ns"; goes_on "a reset"; done
  [ "$(connections)" -ge 4 ] || fail "4 resets, and $(connections) other connections"
  say "connections that were reset: the program goes on over others, $(connections) of them, none of its results wrong"
else
  say "this kernel or ss resets no connection: not tried"
fi

was=$(connections)
at "$here" ip address add 192.0.2.3/24 dev wirea; at "$here" ip address del 192.0.2.1/24 dev wirea; at "$here" ip address add 192.0.2.3/24 dev wirea 2>/dev/null || true
goes_on "its host's address changed"
[ "$(connections)" -gt "$was" ] || fail "the connection is the one of before although the address changed"
say "another address of the program's host: it goes on over another connection"

before=$(rounds)
at "$here" ip link set wirea down; sleep 10; at "$here" ip link set wirea up
past $((before + 5)) 30 || fail "the program does not go on after 10 s without a link"
awk '$1 == "@round" && $3 != 0 {bad = 1} END {exit bad}' "$tmp/out" || fail "wrong results after 10 s without a link"
say "10 s without a link: $(($(rounds) - before)) rounds since, none wrong"

start=$(date +%s.%N)
at "$here" ip link set wirea down
for _ in $(seq 250); do kill -0 "$run" 2>/dev/null || break; sleep 0.1; done
kill -0 "$run" 2>/dev/null && fail "the program goes on without its server"
took=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN {printf "%.1f", b - a}')
wait "$run" && fail "the program that lost its server ended with success"
grep -q 'gpu server 192.0.2.2:7745' "$tmp/err" || fail "nobody says which server was lost"
for _ in $(seq 250); do grep -qE 'worker (failed|ended)' "$tmp/server.log" && break; sleep 0.1; done
grep -qE 'worker (failed|ended)' "$tmp/server.log" || fail "the server's worker goes on"
say "a link that stays away: the program ended after $took s: $(grep -m1 -o 'gpu server .*' "$tmp/err")"
say "relay-lost: passed"
