#!/usr/bin/env bash
# Shows three vGPUs on a GPU that has memory for two of them: causewayd promises more than there is
# (placement.overcommit), and suspends what is idle for what needs room.
#
#   scripts/overcommit.sh [--kernel SERIES] [--accel tcg|kvm] [--seconds S]
#
# Three programs of a VM (guest/tests/life hoard), each on a vGPU of its own, write and check nearly
# all of their memory for S seconds. Each line is a check with what was measured. The status is 0 if
# every check passed.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"

kernel=6.12 accel=tcg seconds=8
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    --accel) accel=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
needs_vm "$kernel"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-overcommit.XXXXXX")
mkdir -p "$BUILD/logs"
console_log=$BUILD/logs/overcommit-console.log
run=$tmp/run
export CAUSEWAY_RUN_DIR=$run
qemu_pid=
finish() {
  for n in 0 1 2; do "$CAUSEWAY" delete vm1/gpu$n --force >/dev/null 2>&1; done
  cp "$tmp/daemon.log" "$BUILD/logs/overcommit-daemon.log" 2>/dev/null
  cp -r "$run/log" "$BUILD/logs/overcommit-devices" 2>/dev/null
  end_below "$tmp"
  end_vm
}
on_exit finish

# What the vGPUs are, in MiB: three of limit on a GPU of memory, and what a program holds.
limit=80 memory=128 part=56

start() {
  printf '[placement]\novercommit = 2.0\nsoftware_memory = "%dMiB"\n[devices]\nverbose = true\nsocket_owner = ""\n[scheduler]\nenabled = false\n' $memory >"$tmp/causewayd.toml"
  mkdir -p "$run"
  "$CAUSEWAY" daemon --config "$tmp/causewayd.toml" --run-dir "$run" >"$tmp/daemon.log" 2>&1 &
  service_pid=$!
  until_true 10 test -S "$run/causewayd.sock" || die "causewayd does not start: $(tail -3 "$tmp/daemon.log")"
}

boot() {
  local args=(-accel tcg,thread=multi -cpu "$tcg_cpu") n
  [ "$accel" != kvm ] || args=(-accel kvm -cpu host)
  for n in 0 1 2; do
    args+=(-chardev "socket,id=gpu$n,path=$run/vm1/gpu$n.sock" -device "vhost-user-fs-pci,chardev=gpu$n,tag=gpu$n,queue-size=1024")
  done
  "$qemu" "${args[@]}" -smp 2 -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on -machine q35,memory-backend=mem \
    -nodefaults -display none "${channel[@]}" -kernel "$BUILD/kernels/$kernel/vmlinuz" -initrd "$tmp/initrd" \
    -append "$guest_append causeway.tag=gpu0" \
    </dev/null >"$BUILD/logs/overcommit-qemu.log" 2>&1 9>&- 3>&- 4>&- &
  qemu_pid=$!
}

# swaps FIELD prints the sum of a counter over the vGPUs.
swaps() {
  "$CAUSEWAY" ps --json | python3 -c 'import json, sys
print(sum((v.get("status") or {}).get("swaps", {}).get(sys.argv[1], 0) for v in json.load(sys.stdin)))' "$1"
}

build_life "$tmp/life" life gpu
guest_image "$kernel" "$tmp/initrd" "$tmp/life" || die "the guest image cannot be made"
guest_channel "$tmp"
start
ok=0
for n in 0 1 2; do "$CAUSEWAY" create vm1/gpu$n --gpu soft --memory ${limit}MiB >>"$tmp/create" 2>&1 || ok=1; done
[ $ok = 0 ]; row "three vGPUs of $limit MiB on a GPU of $memory MiB" ""
! "$CAUSEWAY" create vm2 --gpu soft --memory ${limit}MiB >"$tmp/refused" 2>&1 && grep -q 'no room' "$tmp/refused"; row "a fourth is more than overcommit = 2.0 promises" ""
boot
guest_up; row "the VM is up" "$SECONDS s"
guest 'for n in 1 2; do mkdir -p /mnt/gpu$n && mount -t virtiofs gpu$n /mnt/gpu$n || exit 1; done'; row "it has mounted all three" ""

pids=()
for place in /run/causeway /mnt/gpu1 /mnt/gpu2; do
  send "&CAUSEWAY=$place LD_LIBRARY_PATH=$place/lib ./life hoard $part"
  await '@ready *' 60 && pids+=("${line#@ready }")
done
[ ${#pids[@]} = 3 ]; row "three programs of $part MiB each have begun" ""
nap "$seconds"
swapped() { out=$(swaps out) in=$(swaps in); [ "${out:-0}" -ge 2 ] && [ "${in:-0}" -ge 2 ]; }
until_true 30 swapped; row "sessions left the GPU for others, and came back" "$out times, $in times"
good=0 detail=
for pid in "${pids[@]}"; do
  send "&kill $pid"
  await '@hoard *' 60
  [[ $line =~ ^@hoard\ ([0-9]+)\ 0\ ([0-9]+)$ ]] && [ "${BASH_REMATCH[1]}" -ge 8 ] && good=$((good + 1))
  detail+="${line#@hoard }; "
done
[ $good = 3 ]; row "all came to work, and every result was right" "rounds, wrong, longest round in ms: ${detail%; }"
said=$("$CAUSEWAY" inspect vm1/gpu0) && grep -q 'swapped .*sessions out' <<<"$said"; row "causeway inspect says so" ""
# empty: no memory of a session is on the GPU, or away from it.
empty() {
  [ "$("$CAUSEWAY" ps --json | python3 -c 'import json, sys
print(sum((v.get("status") or {}).get("memory", 0) + (v.get("status") or {}).get("away", 0) for v in json.load(sys.stdin)))')" = 0 ]
}
until_true 10 empty; row "nothing is left when they have ended" ""
calm_kernels
echo "overcommit: $passed passed, $failed failed in $SECONDS s"
[ "$failed" = 0 ]
