#!/usr/bin/env bash
# The whole path in one go: installs what it needs, builds Causeway and two CUDA programs, boots a
# stock VM with a vGPU and runs both programs in it. Exits non-zero if anything fails.
#
#   scripts/demo.sh [--kernel SERIES] [--gpu auto|soft|N] [--accel auto|kvm|tcg]
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"

kernel=6.12 gpu=auto accel=auto
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    --gpu) gpu=$2; shift 2 ;;
    --accel) accel=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done

logs=$BUILD/logs/demo
mkdir -p "$logs"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-demo.XXXXXX")
trap 'stop_service; rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

say "1/4 what the demo needs: QEMU 10, Debian's $kernel cloud kernel, nvcc (later runs skip this)"
"$ROOT/scripts/setup.sh" demo
[ "$kernel" = 6.12 ] || "$ROOT/scripts/setup.sh" kernels "$kernel"
setup_done=$SECONDS

say "2/4 building Causeway and two CUDA programs"
make --no-print-directory -C "$ROOT" build >"$logs/build.log" 2>&1 || { tail -20 "$logs/build.log" >&2; die "the build failed: see $logs/build.log"; }
"$ROOT/scripts/build-tests.sh" --only 13.0-shared vectoradd matmul
programs=$BUILD/tests/13.0-shared

say "3/4 a vGPU: causeway device --gpu $gpu --memory 4GiB; GPUs of this machine:"
"$CAUSEWAY" gpus >&2 || true
start_device "$tmp/vm1.sock" "$logs/device.log" --gpu "$gpu" --memory 4GiB

cat >"$tmp/demo" <<'G'
mount | grep 'on /run/causeway '
echo "libcuda: $(ls -l /run/causeway/lib/libcuda.so.1 | awk '{print $NF, $5, "bytes"}')"
for p in vectoradd matmul; do
  echo "@demo begin $p"
  /app/$p; rc=$?
  echo "@demo end $p $rc"
  [ $rc = 0 ] || bad=1
done
exit ${bad:-0}
G
say "4/4 booting a stock VM and running both programs in it"
rc=0
"$ROOT/scripts/vm.sh" --kernel "$kernel" --accel "$accel" --socket "$tmp/vm1.sock" --timeout 150 \
  --file "$programs/vectoradd" --file "$programs/matmul" --file "$(ls "$programs"/libcudart.so.*)" \
  --file "$tmp/demo:/app/demo" -- sh /app/demo 2>&1 | tee "$logs/guest.log" || rc=${PIPESTATUS[0]}
stop_service

# One line per program, from what it printed itself.
echo
awk '
  /^@demo begin/ {p = $3; device = time = bytes = "?"; check = "FAILED"}
  p && /^# device: / {device = $0; sub(/^# device: /, "", device); sub(/, compute.*/, "", device)}
  p && /^# time: / {time = $3 " " $4; sub(/,/, "", time); bytes = $NF}
  p && /^PASSED$/ {check = "passed"}
  /^@demo end/ {
    if ($4 != 0) {check = "FAILED (exit " $4 ")"; bad = 1}
    where = tolower(device) ~ /soft|causeway/ ? "the software GPU" : device == "?" ? "no GPU" : "a real GPU"
    printf "%-10s device: %s | check: %s | time: %s | bytes moved: %s | ran on %s\n", p, device, check, time, bytes, where
    seen++; p = ""}
  END {exit bad || seen != 2}' "$logs/guest.log" || rc=1
if [ "$rc" != 0 ]; then
  grep -E 'level=(ERROR|WARN)|^causeway:' "$logs/device.log" | tail -5 >&2 || true
  die "the demo failed: see $logs"
fi
say "done: $((SECONDS - setup_done)) s after the downloads"
