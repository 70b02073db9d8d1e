#!/usr/bin/env bash
# Shows that every query of the dashboard returns data: a real Prometheus reads a real causewayd
# whose vGPUs three VMs use.
#
#   scripts/grafana/check.sh [--seconds S] [--gpu soft|N] [--accel auto|kvm|tcg] [--causeway
#   PROGRAM] [--image FILE] [--keep]
#
# Needs prometheus (Debian's package), QEMU, a guest kernel and the test programs (scripts/setup.sh
# all, scripts/build-tests.sh). Prints each query with its number of series and a value; the status
# is 0 if every one had data. --seconds is how long the VMs compute (default 30). --image has
# chromium draw Prometheus' page of some of the queries to a PNG. --keep leaves everything running
# until Enter.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"

seconds=30 gpu=soft accel=auto causeway=$BUILD/bin/causeway image= keep=
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift 2 ;;
    --gpu) gpu=$2; shift 2 ;;
    --accel) accel=$2; shift 2 ;;
    --causeway) causeway=$2; shift 2 ;;
    --image) image=$2; shift 2 ;;
    --keep) keep=1; shift ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
have prometheus || die "prometheus is missing: apt install prometheus"
have python3 || die "python3 is missing"
[ -x "$causeway" ] || die "$causeway is missing: run make build"
tests=$BUILD/tests/13.0-static
[ -x "$tests/vectoradd" ] || die "the test programs are missing: run scripts/build-tests.sh"
gcc -O2 -std=gnu11 "$ROOT/scripts/bench/probe/share.c" -o "$BUILD/bin/share" -ldl

tmp=$(mktemp -d "${TMPDIR:-/tmp}/cwg.XXXXXX")
run=$tmp/run metrics=${METRICS_PORT:-19435} web=${PROMETHEUS_PORT:-19090}
pids=() up=
cw() { "$causeway" "$@" --run-dir "$run"; }
cleanup() {
  local p
  for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
  [ -z "$up" ] || kill "$up" 2>/dev/null || true
  wait
  # What causewayd started outlives it: these have sockets below this folder.
  for p in $(ps -eo pid=,args= | awk -v run="$run/" 'index($0, "--socket " run) {print $1}'); do kill "$p" 2>/dev/null || true; done
  rm -rf "$tmp"
}
on_exit cleanup

# until_ok SECONDS COMMAND... waits for a command to succeed.
until_ok() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || return 1; sleep 0.3; done
}

printf '[metrics]\nlisten = "127.0.0.1:%s"\n' "$metrics" >"$tmp/causewayd.toml"
"$causeway" daemon --config "$tmp/causewayd.toml" --run-dir "$run" >"$tmp/daemon.log" 2>&1 &
up=$!
until_ok 20 cw ps || { cat "$tmp/daemon.log" >&2; die "causewayd does not answer"; }
cw create big --gpu "$gpu" --memory 512MiB --share 300 --json >/dev/null
cw create small --gpu "$gpu" --memory 256MiB --share 100 --json >/dev/null
cw create capped --gpu "$gpu" --memory 256MiB --share 100 --cap 25% --json >/dev/null

sed "s|/usr/share/causeway/prometheus|$ROOT/scripts/prometheus|; s|127.0.0.1:9435|127.0.0.1:$metrics|; s/10s/1s/" "$ROOT/scripts/prometheus/prometheus.yml" >"$tmp/prometheus.yml"
prometheus --config.file="$tmp/prometheus.yml" --storage.tsdb.path="$tmp/data" --web.listen-address="127.0.0.1:$web" >"$tmp/prometheus.log" 2>&1 &
pids+=($!)

# Long kernels: emulated guests that share the machine's cores with the software GPU still keep it
# busy.
turns=3000; [ "$gpu" != soft ] || turns=400000
say "three VMs compute"
for v in big small capped; do
  "$ROOT/scripts/vm.sh" --quiet --accel "$accel" --smp 1 --mem 512M --timeout 600 --socket "$run/$v/gpu0.sock" --file "$BUILD/bin/share" \
    --file "$tests/vectoradd" -- sh -c "/app/share load $turns 4 0 99999999999 & while :; do /app/vectoradd; sleep 1; done" >"$tmp/$v.log" 2>&1 &
  pids+=($!)
done
computing() { [ "$(cw ps --json | grep -c '"guest_pid"')" -ge 3 ]; }
until_ok 240 computing || { cw ps -a; tail -n 3 "$tmp"/*.log; die "the VMs do not compute"; }
sleep "$seconds"
cw ps -a
cw top --once
python3 "$ROOT/scripts/grafana/query.py" "http://127.0.0.1:$web" "$ROOT/scripts/grafana/causeway.json" --gpu "$gpu" && status=0 || status=$?
if [ -n "$image" ]; then
  url=http://127.0.0.1:$web/graph? n=0
  for q in '100 * rate(causeway_vgpu_busy_seconds_total[10s])' '100 * rate(causeway_vgpu_wait_seconds_total[10s])' 'rate(causeway_vgpu_launches_total[10s])'; do
    url+="g$n.tab=0&g$n.range_input=1m&g$n.expr=$(python3 -c 'import sys, urllib.parse; print(urllib.parse.quote(sys.argv[1]))' "$q")&" n=$((n + 1))
  done
  timeout 60 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1000,2200 --virtual-time-budget=8000 \
    --screenshot="$image" "$url" >"$tmp/chromium.log" 2>&1 || { tail -n 3 "$tmp/chromium.log" >&2; die "no picture"; }
fi
if [ -n "$keep" ]; then
  say "Prometheus is at http://127.0.0.1:$web, causewayd's run directory is $run: Enter ends"
  read -r
fi
exit $status
