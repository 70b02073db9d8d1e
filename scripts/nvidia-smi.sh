#!/usr/bin/env bash
# Runs nvidia-smi, the driver's own, unmodified, and ours, with our libnvidia-ml.so.1 on the
# software GPU, while a program holds memory; then compares the two value by value, there and with a
# host that knows everything of its GPUs.
#
#   scripts/nvidia-smi.sh [NVIDIA-SMI]      default: build/nvidia-smi/nvidia-smi, from
#                                           scripts/setup.sh nvidia-smi
#   scripts/nvidia-smi.sh --gpu N           compares with the machine's own on a real GPU, under
#                                           causeway run and natively
#
# Without NVIDIA's program ours alone is tried, and the status is 77; with
# CAUSEWAY_REQUIRE_NVIDIA_SMI=1 that is a failure.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
gpu=
if [ "${1:-}" = --gpu ]; then
  gpu=$2
  set -- "$(command -v nvidia-smi || echo /usr/local/nvidia/bin/nvidia-smi)"
fi
theirs=${1:-$BUILD/nvidia-smi/nvidia-smi} ours=$BUILD/lib/bin/nvidia-smi
make --no-print-directory -s -C "$ROOT" libnvml tools && make --no-print-directory -s -C "$ROOT/guest/tools" OUT="$BUILD/lib" host || exit 1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# The program: 256 MiB of device memory by the driver API, until its standard input ends.
cat >"$out/hold.py" <<'PY'
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
for r in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
          cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(256 << 20))):
    assert r == 0, r
print(os.getpid(), flush=True)
sys.stdin.read()
PY
cat >"$out/inside.sh" <<'SH'
smi=$1 out=$2
coproc HOLD { python3 "$out/hold.py"; }
read -r pid <&"${HOLD[0]}" || exit 1
echo "$pid" >"$out/pid"
run() { local name=$1; shift; timeout 120 "$smi" "$@" >"$out/$name" 2>&1; echo $? >"$out/$name.rc"; }
run default
run list -L
run query -q
run csv --query-gpu=name,memory.total,memory.used,utilization.gpu,driver_version --format=csv,noheader
run apps --query-compute-apps=pid,used_memory --format=csv,noheader
run topo topo -m
run pmon pmon -c 1
run dmon dmon -c 1
eval "exec ${HOLD[1]}>&-"
wait
SH
failed=0 passed=0
# expect NAME PATTERN: the run succeeded and a line of it matches.
expect() {
  if [ "$(cat "$out/$1.rc" 2>/dev/null)" = 0 ] && grep -Eq -e "$2" "$out/$1"; then passed=$((passed + 1)); return; fi
  failed=$((failed + 1))
  echo "FAILED: $smi: $1 (status $(cat "$out/$1.rc")) shows no line like: $2"
  sed 's/^/  /' "$out/$1" | head -40
}

# try PROGRAM: what people type, while a program holds memory.
try() {
  local smi=$1 pid
  timeout 600 "$BUILD/bin/causeway" run --gpu soft --memory 2GiB -- bash "$out/inside.sh" "$smi" "$out" || { echo "FAILED: the program did not run"; exit 1; }
  pid=$(cat "$out/pid")
  expect default 'Driver Version: 580\.0\.0 +CUDA Version: 13\.'
  expect default 'Causeway Software GPU'
  expect default '256MiB / +2048MiB'
  expect default " $pid +C .*256MiB"
  expect list '^GPU 0: Causeway Software GPU \(UUID: GPU-[0-9a-f-]{36}\)'
  expect query "Process ID +: $pid"
  expect query 'Bus Id +: 0000CA50:00:00.0'
  expect csv '^Causeway Software GPU, 2048 MiB, 256 MiB, .*, 580\.0\.0'
  expect apps "^$pid, 256 MiB"
  expect topo '^GPU0.* X '
  expect pmon "^ +0 +$pid +C "
  expect dmon '^ +0 '
}

# compare WHAT COMMAND... [-- --native]: the two programs, run by a command, tell the same.
compare() {
  local what=$1 native=; shift
  if [ "${*: -1}" = --native ]; then
    native=--native
    set -- "${@:1:$#-2}"
  fi
  echo "compared with NVIDIA's, $what:"
  if timeout 600 "$@" python3 "$ROOT/scripts/lib/smi_compare.py" "$ours" "$theirs" $native; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

finish() {
  echo "nvidia-smi: $passed passed, $failed failed"
  [ $failed = 0 ] || exit 1
}

cat >"$out/held.sh" <<'SH'
coproc HOLD { python3 "$1/hold.py"; }
read -r _ <&"${HOLD[0]}" || exit 1
shift
"$@"
rc=$?
eval "exec ${HOLD[1]}>&-"
wait
exit $rc
SH

if [ -n "$gpu" ]; then
  [ -x "$theirs" ] || { echo "there is no nvidia-smi here"; exit 1; }
  compare "under causeway run --gpu $gpu" "$BUILD/bin/causeway" run --gpu "$gpu" --memory 8GiB -- bash "$out/held.sh" "$out"
  cp "$ours" "$out/nvidia-smi" # away from our library: it reads the machine's
  ours=$out/nvidia-smi
  compare "on the bare driver" bash "$out/held.sh" "$out" -- --native
  finish
  exit
fi
try "$ours"
[ -x "$theirs" ] || {
  say "NVIDIA's nvidia-smi is not tried: no $theirs; scripts/setup.sh nvidia-smi fetches it"
  finish
  [ "${CAUSEWAY_REQUIRE_NVIDIA_SMI:-}" = 1 ] && exit 1
  exit 77
}
try "$theirs"
compare "on two software GPUs" "$BUILD/bin/causeway" run --gpu soft:2 --memory 2GiB -- bash "$out/held.sh" "$out"
compare "with a host that knows everything" env LD_LIBRARY_PATH="$BUILD/lib" "$BUILD/obj/tools/host" full
finish
