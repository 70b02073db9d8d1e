#!/usr/bin/env bash
# Runs a Python program of scripts/compat in a VM with a vGPU; the guest sees this machine's Python
# tree, read-only.
#
#   scripts/compat/vm/run.sh [--gpu N] [--mem SIZE] [--timeout S] [--thp MODE] PROGRAM.py [ARG...]
#
# Under TCG importing torch takes minutes. Native output is compared if NATIVE names a file with it.
set -euo pipefail
. "$(dirname "$0")/../../lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
gpu=0 mem=10G limit=560 thp=
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --mem) mem=$2; shift 2 ;;
    --timeout) limit=$2; shift 2 ;;
    --thp) thp=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || die "nothing to run: see $0 --help"
program=$1; shift
[ -x "$BUILD/bin/causeway-share" ] || CGO_ENABLED=0 go build -trimpath -o "$BUILD/bin/causeway-share" "$ROOT/scripts/compat/share"

dir=$(mktemp -d)
share_pid=
finish() {
  [ -z "$share_pid" ] || kill "$share_pid" 2>/dev/null || true
  stop_service
  rm -rf "$dir"
}
trap finish EXIT

# What Python needs of this machine, links such as /lib -> usr/lib included.
python=$(python3 -c 'import sys; print(sys.executable)')
mapfile -t prefixes < <("$python" -c 'import sys; print(sys.prefix); print(sys.base_prefix)' | sort -u | grep -vx /usr)
paths=()
for p in /bin /lib /lib64 /usr/bin /usr/lib /usr/lib64 /etc/ld.so.cache /etc/passwd "${prefixes[@]}" ${SHARE_MORE:-}; do [ ! -e "$p" ] || paths+=("$p"); done
"$BUILD/bin/causeway-share" --socket "$dir/share.sock" --empty proc --empty sys --empty dev --empty tmp --empty app --empty run/causeway \
  "${paths[@]}" 2>"$dir/share.log" &
share_pid=$!
start_device "$dir/vm.sock" "$dir/device.log" --gpu "$gpu"
for _ in $(seq 300); do [ -S "$dir/share.sock" ] && break; kill -0 "$share_pid" 2>/dev/null || break; sleep 0.1; done
[ -S "$dir/share.sock" ] || { cat "$dir/share.log" >&2; die "the share did not start"; }
say "$(tail -1 "$dir/share.log")"

files=(--file "$ROOT/scripts/compat/vm/inside.sh:/app/inside.sh" --file "$program:/app/$(basename "$program")")
for f in "$ROOT"/scripts/compat/lib/*.py; do files+=(--file "$f:/app/lib/$(basename "$f")"); done
rc=0
"$ROOT/scripts/vm.sh" --socket "$dir/vm.sock" --share "$dir/share.sock" --mem "$mem" --smp 4 --timeout "$limit" "${files[@]}" \
  -- env "THP=$thp" sh /app/inside.sh "$python" "/app/$(basename "$program")" "$@" || rc=$?
[ "$rc" = 0 ] || { tail -n 3 "$dir/share.log" "$dir/device.log" >&2; }
exit $rc
