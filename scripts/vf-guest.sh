#!/usr/bin/env bash
# A guest whose libcuda.so.1 is the RDMA end of its sessions itself (docs/VF.md), without hardware:
# a VM with soft RoCE in the place of a virtual function, its vGPU's host, which is this machine,
# and a GPU server in another VM with soft RoCE. Shows that CUDA programs run, and that what they
# send and get does not go by this machine.
#
#   scripts/vf-guest.sh [--phases "P..."] [--kernel SERIES] [PROGRAM...]
#
#   --phases    programs, fallbacks: no rdma-core, no port; and what happens to a link while a
#               program computes:
#               lossy: all packets of 6 s are lost, flap: it goes down for some seconds, lost, down:
#               for good (default: all)
#   PROGRAM     of guest/tests (default: a few)
#
# The status is 0 if every check passed. It needs the rdma part of scripts/setup.sh, and takes
# minutes: nothing is emulated fast. What was said is in build/logs/vf-guest.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/rdma.sh"

all="programs fallbacks lossy flap lost down" phases=
if [ "${1:-}" = --phases ]; then
  [ $# -gt 1 ] || die "--phases takes a list"
  phases=$2; shift 2
fi
for p in ${phases:=$all}; do [[ " $all " = *" $p "* ]] || die "no phase $p: there are $all"; done
rdma_options 12 "vectoradd copies uploads pageable" "$@"
rdma_programs
rdma_setup "$kernel"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-vf-guest.XXXXXX")
logs=$BUILD/logs/vf-guest server= device=
rm -rf "$logs"; mkdir -p "$logs"
on_exit '[ -z "$server" ] || kill "$server" 2>/dev/null || true; [ -z "$device" ] || kill "$device" 2>/dev/null || true; wait; rm -rf "$tmp"'
# The guest ends when it has said nothing for ten minutes: an emulated one beside other work takes
# what it takes.
vm=("$ROOT/scripts/vm.sh" --kernel "$kernel-full" --mem 768M "${rdma_guest[@]}")
until_true() { # SECONDS COMMAND...
  local n=$(($1 * 5)); shift
  until "$@"; do n=$((n - 1)); [ $n -gt 0 ] || return 1; sleep 0.2; done
}

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${vm[@]}" --timeout 7200 --forward "$port:7745" --nic "server:$tmp/wire" --file "$CAUSEWAY" --file "$ROOT/images/vf-guest-server" -- sh /app/rdma-up first sh /app/vf-guest-server >"$logs/server" 2>&1 &
server=$!
until_true 600 grep -qs '^@lease ' "$logs/server" || { cat "$logs/server"; die "the GPU server's VM does not come up"; }
# To this machine the server is a port of the loopback.
sed -n 's/^@lease //p' "$logs/server" | tr -d '\r' | base64 -d | sed "s/10\.9\.0\.1:7745/127.0.0.1:$port/g" >"$tmp/lease"
chmod 600 "$tmp/lease"

"$CAUSEWAY" device --socket "$tmp/gpu" --control "$tmp/control" --relay "$tmp/lease" --guest-rdma --sandbox off --lib "$BUILD/lib" -v >"$logs/device" 2>&1 &
device=$!
until_true 60 test -S "$tmp/gpu" || { cat "$logs/device"; die "the device does not come up"; }
files+=(--file "$ROOT/images/vf-guest-client")
rc=0
"${vm[@]}" --stall 600 --socket "$tmp/gpu" --nic "client:$tmp/wire" "${files[@]}" -- sh /app/rdma-up client sh /app/vf-guest-client "$phases" "${programs[@]}" | tee "$logs/client" || rc=$?

# What the relays passed on: words beside RDMA, a few hundred bytes a session.
least=0 cut=0 # so many sessions went by RDMA at least; and so many links are cut for good
for p in $phases; do
  case $p in
    programs) least=$((least + ${#programs[@]})) ;;
    fallbacks) ;;
    lost | down) least=$((least + 1)) cut=$((cut + 1)) ;;
    *) least=$((least + 1)) ;;
  esac
done
fail() { say "FAILED $*"; rc=1; }
# Each other connection that is looked for costs an offer and a reason each way.
read -r sessions most bad < <(awk '
  { worker = ""; for (i = 1; i <= NF; i++) if ($i ~ /^worker=/) worker = $i }
  /asks for another/ { asked[worker]++ }
  /own RDMA session has ended/ {
    bytes = 0; for (i = 1; i <= NF; i++) if (sub(/^bytes_to_(server|guest)=/, "", $i)) bytes += $i
    n++; if (bytes > most) most = bytes
    if (bytes == 0 || bytes > 1024 + 512 * asked[worker]) bad++
  }
  END { print n + 0, most + 0, bad + 0 }' "$logs/device")
if [ "$sessions" -ge $least ] && [ "$bad" = 0 ]; then
  say "ok $sessions sessions went by the guest's adapter: of none did more than $most bytes go by this machine"
else
  fail "$sessions sessions went by the guest's adapter, up to $most bytes of one by this machine, more of $bad than it takes"
fi
# Sessions end with the links that the guest cuts for good (if the program has not ended first), and
# may on a busy machine for a connection that timed out; for nothing else.
lost=$(grep '^causeway: worker [0-9]*: ' "$logs/device" | grep -v 'timed out\|timeout\|deadline exceeded\|TLS: \(unexpected \)\?EOF\|does not answer' || true)
other=$(grep -v 'is lost, and there was no other: ' <<<"$lost" || true)
if [ -n "$other" ] || [ "$(grep -c . <<<"$lost")" -gt $cut ]; then fail "sessions were lost by something else than $cut links that were cut:"; printf '%s\n' "$lost"; fi
[ "$rc" = 0 ] || { tail -n 40 "$logs/device" >&2; tail -n 40 "$logs/server" >&2; }
exit "$rc"
