#!/usr/bin/env bash
# Where the time of copies by a lease goes: what the goroutines of the relay and of the server's
# worker do when, and who wakes whom.
#
#   scripts/bench/trace.sh [--gpu N|soft] [--way up|down|calls] [--piece BYTES] [--times N]
#   [--out FOLDER]
#
# A GPU server's causewayd, a host's with a lease, and a program that makes N (100) copies of so
# many bytes (1 MiB), or calls, all of this machine, over loopback, with TLS. The folder (default
# build/trace) has worker-PID.trace of each worker, the relay's is the one that roles.txt says, for
# `go tool trace -d=parsed FILE` and `go tool trace FILE`; took.txt is what a copy took meanwhile.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"
. "$ROOT/scripts/lib/lease.sh"
cd "$ROOT"

gpu=soft way=up piece=$((1 << 20)) times=100 out=$BUILD/trace
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --way) way=$2; shift 2 ;;
    --piece) piece=$2; shift 2 ;;
    --times) times=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
probe=$BUILD/bin/bench
! have gcc || gcc -O2 -std=gnu11 -pthread scripts/bench/probe/bench.c -o "$probe" -ldl
mkdir -p "$out"
rm -f "$out"/worker-*.trace "$out/roles.txt"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-trace.XXXXXX")
mkfifo "$tmp/never"; exec 9<>"$tmp/never" # for nap
traces=$(mktemp -d "${TMPDIR:-/tmp}/causeway-traces.XXXXXX") # for users of workers' own
chmod 1777 "$traces"
cleanup() { lease_end "$tmp"; rm -rf "$tmp" "$traces"; }
on_exit cleanup

export CAUSEWAY_TRACE=$traces
lease_begin "$tmp" $((20000 + $$ % 20000)) $((20000 + $$ % 20000)) "$gpu" "[isolation]
sandbox = 'off'
[devices.environment]
CAUSEWAY_TRACE = '$traces'" # in a sandbox a worker's folder is another's
n=$((times * piece))
[ "$way" != calls ] || n=$times
printf '\n\n' | "$CAUSEWAY" run --remote vm1 --sandbox off -- "$probe" steady "$way" "$n" "$piece" | tee "$out/took.txt"
lease_end "$tmp" # which ends the workers, and so their traces
mv "$traces"/*.trace "$out/" || die "no worker has left a trace"
for f in "$out"/worker-*.trace; do
  [ -s "$f" ] || continue
  # What only one of them does is its role's name.
  if grep -qa 'remote/relay.(\*Session)' "$f"; then role=relay; elif grep -qa 'remote/tcp.(\*Carrier)' "$f"; then role=server; else role=other; fi
  echo "$(basename "$f") $role $(stat -c %s "$f")"
done | tee "$out/roles.txt"
