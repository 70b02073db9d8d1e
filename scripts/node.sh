#!/usr/bin/env bash
# A node without VMs: causewayd places vGPUs on this machine's GPU, drains it, survives being
# killed, and tells its metrics.
#
#   scripts/node.sh [--gpu any|soft|N|UUID|MODEL] [--causeway PROGRAM] [--fault COMMAND]
#
# --gpu is what the vGPUs ask for (default soft). --fault is a CUDA program that faults on a real
# GPU, for example "build/tests/.../faults oob": the driver then reports an XID that must be told
# and not drain. Prints one line for each check; the status is not 0 if one failed. Takes some
# seconds; needs python3.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

gpu=soft causeway=$BUILD/bin/causeway fault=
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --causeway) causeway=$2; shift 2 ;;
    --fault) fault=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
[ -x "$causeway" ] || die "$causeway is missing: run make build"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/cw-node.XXXXXX")
export CAUSEWAY_RUN_DIR=$tmp/run
daemon= failed=0

# json FILE EXPRESSION prints what a Python expression makes of x, the file's JSON.
json() { python3 -c 'import json,sys; x=json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$@"; }

# ask PATH prints causewayd's answer.
ask() { python3 "$ROOT/scripts/lib/get.py" "$CAUSEWAY_RUN_DIR/causewayd.sock" "/v1/$1" 2>/dev/null || true; }

start_daemon() {
  "$causeway" daemon --run-dir "$CAUSEWAY_RUN_DIR" --config "$tmp/causewayd.toml" 2>>"$tmp/causewayd.log" &
  daemon=$!
  for _ in $(seq 300); do
    ask version | grep -q "\"pid\":$daemon," && return
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.1
  done
  tail -5 "$tmp/causewayd.log" >&2
  die "causewayd does not answer"
}

cleanup() {
  for vm in a b c; do "$causeway" delete "$vm" >/dev/null 2>&1 || true; done
  local scheduler=
  [ ! -f "$CAUSEWAY_RUN_DIR/scheduler.json" ] || scheduler=$(json "$CAUSEWAY_RUN_DIR/scheduler.json" 'x["pid"]')
  for p in $daemon $scheduler; do kill "$p" 2>/dev/null || true; done
  wait
  end_below "$tmp"
  rm -rf "$tmp"
}
on_exit cleanup

# check NAME VALUE COMMAND...: the command says whether it is as it should be.
check() {
  local name=$1 value=$2 verdict=ok; shift 2
  "$@" >/dev/null 2>&1 || { verdict=FAILED; failed=1; }
  printf '%-52s %-28s %s\n' "$name" "$value" "$verdict"
}

# refused STATUS WORDS COMMAND...: the command must fail with this status and say these words.
refused() {
  local want=$1 words=$2 got=0 said; shift 2
  said=$("$@" 2>&1) || got=$?
  [ "$got" = "$want" ] && [[ $said == *"$words"* ]]
}

printf '[devices]\nsocket_owner = "0"\nlog = "file"\n[health]\ninterval = "1s"\n' >"$tmp/causewayd.toml"
start_daemon
"$causeway" gpus --json >"$tmp/gpus"
begin=$(date +%s%N)
"$causeway" create a --gpu "$gpu" --memory 1GiB >/dev/null
check "vGPU ready" "$((($(date +%s%N) - begin) / 1000000)) ms" true
mine="[g for g in x if g[\"id\"] == \"$(json "$CAUSEWAY_RUN_DIR/a/gpu0.json" 'x["gpu"]')\"][0]"
check "placed on" "$(json "$tmp/gpus" "$mine[\"name\"]")" true
index=$(json "$tmp/gpus" "\"soft\" if $mine[\"backend\"] == \"soft\" else $mine[\"index\"]")
check "more memory than there is" "" refused 5 "do not fit" "$causeway" create b --gpu "$gpu" --memory 999GiB
check "a model that is not there" "" refused 4 "no GPU" "$causeway" create b --gpu RIVA128
"$causeway" gpus drain "$index" >/dev/null
check "drained: no new vGPU" "" refused 5 "drained" "$causeway" create b --gpu "$index"
"$causeway" gpus resume "$index" >/dev/null
check "resumed" "" "$causeway" create b --gpu "$index" --memory 1GiB
ask ../metrics >"$tmp/metrics"
names="causeway_gpu_memory_bytes causeway_vgpu_launches_total causeway_scheduler_up"
[ "$index" = soft ] || names="$names causeway_gpu_power_watts causeway_gpu_temperature_celsius causeway_gpu_memory_used_bytes"
for name in $names; do
  check "metric $name" "$(grep -m1 "^$name" "$tmp/metrics" | sed 's/.* //')" grep -q "^$name" "$tmp/metrics"
done
pid=$(json "$CAUSEWAY_RUN_DIR/a/gpu0.json" 'x["pid"]')
kill -9 "$daemon"; wait "$daemon" 2>/dev/null || true
check "the vGPU outlives causewayd" "" kill -0 "$pid"
start_daemon
check "and is found again" "" grep -q "vGPU found.*a/gpu0.*pid=$pid" "$tmp/causewayd.log"
check "limits change while it runs" "" "$causeway" limits a --memory 768MiB --share 300
"$causeway" create a >/dev/null
check "made again without options it keeps them" "$("$causeway" ps a --format '{{.Memory}}, share {{.Share}}')" \
  test "$("$causeway" ps a --format '{{.Memory}} {{.Share}}')" = "768 MiB 300"
check "a size without a unit" "" refused 1 "write 4GiB" "$causeway" limits a --memory 4
check "a profile" "$("$causeway" limits a --profile eighth --json | tr -d ' \n')" test "$("$causeway" ps a --format '{{.Share}}')" = 12
unheld() { python3 "$ROOT/scripts/lib/get.py" "$CAUSEWAY_RUN_DIR/a/gpu0.ctl" /v1/status | grep -q '"unheld"'; }
kill -STOP "$daemon"; kill -9 "$(json "$CAUSEWAY_RUN_DIR/scheduler.json" 'x["pid"]')"; sleep 0.3
check "without a scheduler it says what does not hold" "" unheld
kill -CONT "$daemon"; sleep 4
check "causewayd starts another, and it holds" "" eval '! unheld'
if [ -n "$fault" ] && [ "$index" != soft ]; then
  bash -c "$fault" >/dev/null 2>&1 || true
  sleep 3
  check "the driver's XIDs are told" "" grep -q "a GPU reports" "$tmp/causewayd.log"
  check "and drain nothing" "" "$causeway" create c --gpu "$index" --memory 1GiB
fi
"$causeway" delete a >/dev/null
check "ended with its vGPU" "" eval "! readlink /proc/$pid/exe"
exit "$failed"
