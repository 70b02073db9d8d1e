#!/usr/bin/env bash
# A guest whose libcuda.so.1 is the RDMA end of its sessions itself (docs/VF.md), without hardware: a VM with soft RoCE in the place of a virtual function, its vGPU's host, which is this machine, and a GPU server in
# another VM with soft RoCE. Shows that CUDA programs run, and that what they send and get does not go by this machine.
#
#   scripts/vf-guest.sh [--kernel SERIES] [PROGRAM...]
#
# PROGRAMs are of guest/tests (default: a few). The status is 0 if every check passed. It needs the rdma part of scripts/setup.sh, and takes minutes: nothing is emulated fast.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

kernel=6.12 programs=()
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) programs+=("$1"); shift ;;
  esac
done
[ ${#programs[@]} -gt 0 ] || programs=(vectoradd copies uploads pageable)
"$ROOT/scripts/setup.sh" rdma "$kernel" 2>&1 | { grep -v ': ready$' || true; } >&2
CAUSEWAY=$BUILD/bin/causeway variant=13.0-static tests=$BUILD/tests
[ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
[ -d "$tests/$variant" ] || die "no test programs: run scripts/build-tests.sh"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-vf-guest.XXXXXX")
server= device=
on_exit '[ -z "$server" ] || kill "$server" 2>/dev/null || true; [ -z "$device" ] || kill "$device" 2>/dev/null || true; wait; rm -rf "$tmp"'
vm=("$ROOT/scripts/vm.sh" --kernel "$kernel-full" --mem 768M --timeout 1500 --file "$ROOT/images/rdma-up" --file "$BUILD/rdma/bin:/usr/bin" --file "$BUILD/rdma/lib:/usr/lib/x86_64-linux-gnu"
  --file "$BUILD/rdma/etc/libibverbs.d:/etc/libibverbs.d")
until_true() { # SECONDS COMMAND...
  local n=$(($1 * 5)); shift
  until "$@"; do n=$((n - 1)); [ $n -gt 0 ] || return 1; sleep 0.2; done
}

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${vm[@]}" --forward "$port:7745" --nic "server:$tmp/wire" --file "$CAUSEWAY" --file "$ROOT/images/vf-guest-server" -- sh /app/rdma-up first sh /app/vf-guest-server >"$tmp/server" 2>&1 &
server=$!
until_true 400 grep -q '^@lease ' "$tmp/server" || { cat "$tmp/server"; die "the GPU server's VM does not come up"; }
# To this machine the server is a port of the loopback.
sed -n 's/^@lease //p' "$tmp/server" | tr -d '\r' | base64 -d | sed "s/10\.9\.0\.1:7745/127.0.0.1:$port/g" >"$tmp/lease"
chmod 600 "$tmp/lease"

"$CAUSEWAY" device --socket "$tmp/gpu" --control "$tmp/control" --relay "$tmp/lease" --guest-rdma --sandbox off --lib "$BUILD/lib" -v >"$tmp/device" 2>&1 &
device=$!
until_true 60 test -S "$tmp/gpu" || { cat "$tmp/device"; die "the device does not come up"; }
files=(--file "$ROOT/images/vf-guest-client" --file "$tests/$variant/rounds:/app/tests/rounds")
for p in "${programs[@]}"; do
  files+=(--file "$tests/$variant/$p:/app/tests/$p" --file "$ROOT/guest/tests/expected/$p.txt:/app/expected/$p.txt")
done
rc=0
"${vm[@]}" --socket "$tmp/gpu" --nic "client:$tmp/wire" "${files[@]}" -- sh /app/rdma-up client sh /app/vf-guest-client "${programs[@]}" || rc=$?

# What the relays passed on: words beside RDMA, a few hundred bytes a session.
fail() { say "FAILED $*"; rc=1; }
sessions=$(grep -c 'own RDMA session has ended' "$tmp/device" || true)
most=$(sed -n 's/.*own RDMA session has ended.* said_to_server=\([0-9]*\) said_to_guest=\([0-9]*\).*/\1 \2/p' "$tmp/device" | awk '{ n = $1 + $2; if (n > most) most = n } END { print most + 0 }')
if [ "$sessions" -ge "${#programs[@]}" ] && [ "$most" -gt 0 ] && [ "$most" -le 1024 ]; then
  say "ok $sessions sessions went by the guest's adapter: of none did more than $most bytes go by this machine"
else
  fail "$sessions sessions went by the guest's adapter, up to $most bytes of one by this machine"
fi
[ "$rc" = 0 ] || { tail -n 40 "$tmp/device" >&2; tail -n 40 "$tmp/server" >&2; }
exit "$rc"
