#!/usr/bin/env bash
# What a GPU of another machine costs: a GPU server's causewayd, a host's with a lease of it, and
# programs under `causeway run --remote`, all of this machine, over loopback, with TLS. Prints name,
# value, unit; remote_ through all of that, local_ on the same GPU through a local worker, native_
# on the bare driver if there is one; tls_ what the link itself does. Then what is promised: the
# smallest call against 1.15 of TLS's ping-pong and the local call, copies against as many bytes
# over TLS alone and against iperf3's rate in the clear if that is installed, each of this run; and
# what relay and server's worker take for it.
#
#   scripts/bench/remote.sh [--gpu N|soft] [--copy MIB] [--connections N] [--delay US] [--no-calls]
#   [--torch] [--only PATTERN] [--causeway FILE]
#
#   --copy   the largest copy (default: 64)
#   --connections  remote.copy_connections at both (default: causewayd's)
#   --delay  a link that takes so many microseconds more each way (probe/delay.c, which keeps two
#            processors busy); what it came to is the line link_added
#   --no-calls  programs alone
#   --torch  PyTorch's training step and decoding too, against native (programs of
#            scripts/compat/speed that match PATTERN)
#   --causeway  another build's program, beside its lib
#
# Needs no root and no network but loopback. With --torch: python3 with PyTorch, and
# build/bin/causeway-speed.
set -uo pipefail
. "$(dirname "$0")/../lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"
. "$ROOT/scripts/lib/lease.sh"
cd "$ROOT" || exit 1

gpu=soft copy=64 connections= delay= calls=1 torch= only='train.py|decode.py'
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --copy) copy=$2; shift 2 ;;
    --connections) connections="copy_connections = $2"; shift 2 ;;
    --delay) delay=$2; shift 2 ;;
    --no-calls) calls=; shift ;;
    --torch) torch=1; shift ;;
    --causeway) CAUSEWAY=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    -h | --help) header; exit ;;
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
  lease_end "$tmp"
  local p
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null && wait "$p" 2>/dev/null; done
  rm -rf "$tmp"
}
on_exit cleanup

port=$((20000 + $$ % 20000)) reached=
# link TO starts the link to a port of this machine: $reached is where it begins.
link() {
  [ -x "$BUILD/bin/delay" ] || gcc -O2 -std=gnu11 -pthread scripts/bench/probe/delay.c -o "$BUILD/bin/delay" || die "build/bin/delay is missing: build it where there is gcc"
  reached=$(($1 + 20000))
  "$BUILD/bin/delay" $reached "$1" "$delay" 9>&- & pids+=("$!")
}
trips() { sed -n 's/^tcp_round_trip \([0-9.]*\) us/\1/p'; }
streams=("$BUILD/bin/causeway-streams")
if [ -n "$delay" ]; then
  direct=$("${streams[@]}" --copy 1 | trips)
  link $((port + 1))
  streams+=(--listen "127.0.0.1:$((port + 1))" --through "127.0.0.1:$reached")
  added=$("${streams[@]}" --copy 1 --rounds 2000 | trips)
  awk -v a="$direct" -v b="$added" 'BEGIN { printf "link_added %.1f us each way\n", (b - a) / 2 }'
  link "$port"
fi
lease_begin "$tmp" "$port" "${reached:-$port}" "$gpu" "$connections"
echo "# $(head -n 1 "$tmp/created")"

through_remote=("$CAUSEWAY" run --remote vm1 --) through_local=("$CAUSEWAY" run --gpu "$gpu" --)
failed=0
figures=$tmp/figures
# measured PREFIX COMMAND...: its lines, with names that say how.
measured() { local prefix=$1; shift; "$@" 2>"$tmp/err" | sed -n "s/^\([a-z][a-z0-9_]* \)/${prefix}_\1/p" | tee -a "$figures" || { tail -n 3 "$tmp/err" >&2; failed=1; }; }

# cost WHAT N: processor time of the relay and of the server's worker for N calls, or N bytes up or
# down, and their memory.
cost() {
  local line r s relay server per=1000000000 unit="s/GB"
  coproc PROG { exec "${through_remote[@]}" "$probe" steady "$1" "$2" 2>"$tmp/err"; }
  local pid=$PROG_PID in=${PROG[0]} out=${PROG[1]}
  until read -r line <&"$in" && [[ $line = steady_ready* ]]; do [ -n "$line" ] || { tail -n 3 "$tmp/err" >&2; failed=1; return; }; done
  relay=$(workers "$pid") server=$(for f in "$tmp"/gpu1/*/*.json; do workers "$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$f" | head -n 1)"; done)
  # shellcheck disable=SC2086 # they are lists
  r=$(cpu $relay) s=$(cpu $server)
  echo go >&"$out"
  read -r line <&"$in"
  [ "$1" != calls ] || { per=1000000 unit="s/million"; }
  # shellcheck disable=SC2086
  {
    over "remote_relay_cpu_$1" $(($(cpu $relay) - r)) "$2" $per "$unit"
    over "remote_worker_cpu_$1" $(($(cpu $server) - s)) "$2" $per "$unit"
    memory remote_relay_memory $relay
  }
  echo end >&"$out"
  wait "$pid"
}
# iperf is what iperf3, where it is installed, has go over loopback in the clear, in pieces as large
# as a relay's.
iperf() {
  have iperf3 && [ -z "$delay" ] || return 0
  iperf3 -s -1 -p $((port + 2)) 9>&- >/dev/null & local server=$!
  local n=50
  until iperf3 -c 127.0.0.1 -p $((port + 2)) -t 3 -l 128K -f g >"$tmp/iperf" 2>&1 || [ $n = 0 ]; do n=$((n - 1)); sleep 0.1; done
  kill $server 2>/dev/null
  awk '/receiver/ { for (i = 2; i <= NF; i++) if ($i ~ /bits\/sec/) printf "iperf3_stream %.3f GB/s\n", $(i - 1) / 8 }' "$tmp/iperf"
}
tree() { local p; for p in "$@"; do echo "$p"; tree $(cat /proc/"$p"/task/*/children 2>/dev/null); done; }
workers() { local p; for p in $(tree "$1"); do [[ $(tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null) != *" worker "* ]] || echo "$p"; done; }
cpu() { local p; for p in "$@"; do cat /proc/"$p"/task/*/schedstat 2>/dev/null; done | awk '{ n += $1 } END { printf "%d\n", n }'; }
over() { awk -v name="$1" -v ns="$2" -v n="$3" -v per="$4" -v unit="$5" 'BEGIN { printf "%s %.3f %s\n", name, ns / 1e9 / n * per, unit }'; }
memory() { local name=$1 p; shift; for p in "$@"; do cat "/proc/$p/smaps_rollup"; done 2>/dev/null | awk -v name="$name" '/^Rss:/ { r += $2 } /^Pss:/ { p += $2 } END { printf "%s %.1f MiB\n%s_shared_out %.1f MiB\n", name, r / 1024, name, p / 1024 }'; }

if [ -n "$calls" ]; then
  "${streams[@]}" --copy "$copy" | tee -a "$figures" || failed=1
  iperf | tee -a "$figures"
  for mode in calls "copies $((copy << 20))"; do
    # shellcheck disable=SC2086 # mode is words
    {
      [ "$gpu" = soft ] || measured native "$probe" $mode
      measured local "${through_local[@]}" "$probe" $mode
      measured remote "${through_remote[@]}" "$probe" $mode
    }
  done
  cost up $((copy << 22)); cost down $((copy << 22)); cost calls 20000
  awk -v link=tls -v words=TLS -v goal=0.95 -f scripts/bench/ratios.awk "$figures"
fi
if [ -n "$torch" ]; then
  "$BUILD/bin/causeway-speed" --remote vm1 --only "$only" --rounds "${ROUNDS:-3}" --weights "${WEIGHTS:-4}" || failed=1
fi
exit $failed
