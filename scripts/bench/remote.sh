#!/usr/bin/env bash
# What a GPU of another machine costs: a GPU server's causewayd, a host's with a lease of it, and programs under `causeway run --remote`, all of this machine, over loopback, with
# TLS. Prints name, value, unit; remote_ through all of that, local_ on the same GPU through a local worker, native_ on the bare driver if there is one.
#
#   scripts/bench/remote.sh [--gpu N|soft] [--copy MIB] [--torch] [--only PATTERN]
#
#   --copy   the largest copy (default: 64)
#   --torch  PyTorch's training step and decoding too, against native (programs of scripts/compat/speed that match PATTERN)
#
# Needs no root and no network but loopback. With --torch: python3 with PyTorch, and build/bin/causeway-speed.
set -uo pipefail
. "$(dirname "$0")/../lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"
cd "$ROOT" || exit 1

gpu=soft copy=64 torch= only='train.py|decode.py'
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --copy) copy=$2; shift 2 ;;
    --torch) torch=1; shift ;;
    --only) only=$2; shift 2 ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
probe=$BUILD/bin/bench
[ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
! have gcc || gcc -O2 -std=gnu11 -pthread scripts/bench/probe/bench.c -o "$probe" -ldl || exit 1
! have go || CGO_ENABLED=0 go build -trimpath -o "$BUILD/bin/causeway-streams" ./scripts/bench/streams || exit 1
[ -x "$BUILD/bin/causeway-streams" ] || die "build/bin/causeway-streams is missing: build it where there is Go"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-bench.XXXXXX") pids=()
mkfifo "$tmp/never"; exec 9<>"$tmp/never" # for nap
cleanup() {
  "$CAUSEWAY" delete vm1 --run-dir "$tmp/hosta" >/dev/null 2>&1
  local p f
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null && wait "$p" 2>/dev/null; done
  for f in "$tmp"/*/scheduler.json; do [ ! -f "$f" ] || kill "$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$f")" 2>/dev/null; done
  rm -rf "$tmp"
}
on_exit cleanup

port=$((20000 + $$ % 20000))
ca() { "$CAUSEWAY" ca "$1" --dir "$tmp/pki" "${@:2}" >/dev/null || die "no certificates"; }
ca init; ca issue gpu1 127.0.0.1; ca issue hosta
software=; [ "$gpu" != soft ] || software="software_memory = '4GiB'"
for h in gpu1 hosta; do
  mkdir -p "$tmp/$h/pki"
  cp "$tmp/pki/ca.pem" "$tmp/pki/revoked" "$tmp/$h/pki/" && cp "$tmp/pki/$h.pem" "$tmp/$h/pki/host.pem" && cp "$tmp/pki/$h-key.pem" "$tmp/$h/pki/host-key.pem" || exit 1
  printf '%s\n' "run_dir = '$tmp/$h'" "state_dir = '$tmp/$h/state'" "log_dir = '$tmp/$h/log'" '[devices]' "log = 'file'" "socket_owner = '$(id -u)'" '[placement]' "$software" \
    '[migration]' "ca = '$tmp/$h/pki/ca.pem'" "certificate = '$tmp/$h/pki/host.pem'" "key = '$tmp/$h/pki/host-key.pem'" >"$tmp/$h.toml"
done
printf '%s\n' '[remote]' "servers = ['127.0.0.1:$port']" >>"$tmp/hosta.toml"
answers() { [ -S "$tmp/$1/causewayd.sock" ] && "$CAUSEWAY" ps --run-dir "$tmp/$1" >/dev/null 2>&1; }
"$CAUSEWAY" serve --listen "127.0.0.1:$port" --config "$tmp/gpu1.toml" 9>&- >"$tmp/gpu1.log" 2>&1 & pids+=("$!")
"$CAUSEWAY" daemon --config "$tmp/hosta.toml" 9>&- >"$tmp/hosta.log" 2>&1 & pids+=("$!")
for h in gpu1 hosta; do until_true 60 answers $h || { tail -n 5 "$tmp/$h.log" >&2; die "no causewayd of $h"; }; done
wish=(); [ "$gpu" != soft ] || wish=(--gpu soft) # else any: a real one comes first
"$CAUSEWAY" create vm1 --remote any "${wish[@]}" --run-dir "$tmp/hosta" >"$tmp/created" 2>&1 || { cat "$tmp/created" >&2; tail -n 5 "$tmp/gpu1.log" >&2; die "no lease"; }
echo "# $(head -n 1 "$tmp/created")"

export CAUSEWAY_RUN_DIR=$tmp/hosta
through_remote=("$CAUSEWAY" run --remote vm1 --) through_local=("$CAUSEWAY" run --gpu "$gpu" --)
failed=0
# measured PREFIX COMMAND...: its lines, with names that say how.
measured() { local prefix=$1; shift; "$@" 2>"$tmp/err" | sed -n "s/^\([a-z][a-z0-9_]* \)/${prefix}_\1/p" || { tail -n 3 "$tmp/err" >&2; failed=1; }; }

"$BUILD/bin/causeway-streams" --copy "$copy" || failed=1
for mode in calls "copies $((copy << 20))"; do
  # shellcheck disable=SC2086 # mode is words
  {
    [ "$gpu" = soft ] || measured native "$probe" $mode
    measured local "${through_local[@]}" "$probe" $mode
    measured remote "${through_remote[@]}" "$probe" $mode
  }
done
if [ -n "$torch" ]; then
  "$BUILD/bin/causeway-speed" --remote vm1 --only "$only" --rounds "${ROUNDS:-3}" || failed=1
fi
exit $failed
