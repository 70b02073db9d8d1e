#!/usr/bin/env bash
# Provokes faults that docs/OPERATIONS.md tells operators of, and compares what a CUDA program sees
# with what it says there.
#
#   scripts/errors.sh          some seconds; no VM
#   scripts/errors.sh --vm     what a VM's programs see, in a VM of its own (emulated)
#
# The program is guest/tests/vectoradd, by the runtime. The status is 0 if every row is as it should
# be.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"

vm=
case ${1-} in
  '') ;;
  --vm) vm=1 ;;
  -h | --help) header; exit ;;
  *) die "unknown option $1: see $0 --help" ;;
esac
program=$BUILD/tests/13.0-static/vectoradd
[ -x "$program" ] || die "${program#"$ROOT"/} is missing: run scripts/build-tests.sh"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-errors.XXXXXX")
qemu_pid=
on_exit end_vm
mkfifo "$tmp/nap"; exec 9<>"$tmp/nap"

# sees CODE FILE WHAT [TEXT]: a program's output ends with that CUDA error (0: it passed), and its
# log has that text.
sees() {
  local got said
  said=$(grep -m1 '^causeway: ' "$2" | cut -c1-150)
  if grep -q '^PASSED' "$2"; then got=0; else got=$(sed -n 's/.*): \([0-9]*\) cuda[A-Z].*/\1/p' "$2" | tail -1); fi
  [ "$got" = "$1" ] && { [ -z "${4-}" ] || grep -qF "$4" "$2"; }
  row "$3" "CUDA error ${got:-none}, want $1: $said" || sed 's/^/        | /' "$2"
}

here() { LD_LIBRARY_PATH=$BUILD/lib "$@" >"$tmp/out" 2>&1; }
on_host() {
  if grep -q 'libcuda\.so\.1' <<<"$(ldconfig -p)"; then
    say "this machine has a libcuda.so.1 of its own: what a program without one sees is left out"
  else
    env -u LD_LIBRARY_PATH "$program" >"$tmp/out" 2>&1
    sees 35 "$tmp/out" "no libcuda.so.1 is found"
  fi
  here env -u CAUSEWAY "$program"
  sees 100 "$tmp/out" "nothing is mounted at /run/causeway" "mount -t virtiofs"
  here env CAUSEWAY=unix:/nowhere "$program"
  sees 100 "$tmp/out" "CAUSEWAY leads nowhere" "cannot reach a worker"
  "$CAUSEWAY" run --gpu soft --memory 1MiB -- "$program" >"$tmp/out" 2>&1
  sees 2 "$tmp/out" "more memory than the limit"
  "$CAUSEWAY" run --gpu soft -- "$program" >"$tmp/out" 2>&1
  sees 0 "$tmp/out" "all is well"
  if [ "$(id -u)" = 0 ]; then
    # Copies that user may read, wherever this checkout is.
    chmod 755 "$tmp" && install -Dt "$tmp/lib" "$BUILD/lib/libcuda.so.1" && install -t "$tmp" "$program"
    "$CAUSEWAY" run --gpu soft --lib "$tmp/lib" -- setpriv --reuid 65534 --clear-groups "$tmp/vectoradd" >"$tmp/out" 2>&1
    sees 100 "$tmp/out" "this user may not open the session" "Permission denied"
  fi
}

# killed kills the worker of a program that launches for ever.
killed() {
  local run worker what
  mkfifo "$tmp/never" # a byte would end it
  "$CAUSEWAY" run -v --gpu soft -- "$tmp/life" loop <>"$tmp/never" >"$tmp/out" 2>"$tmp/log" & run=$!
  until_true 20 grep -q '^@ready' "$tmp/out"
  worker=$(sed -n 's/.*worker started.* pid=\([0-9]*\).*/\1/p' "$tmp/log")
  kill -9 "$worker"
  wait "$run"
  what=$(sed -n 's/^@error/CUDA error/p' "$tmp/out")
  [[ $what == 'CUDA error 719 '* ]] && grep -q 'every further CUDA call fails' "$tmp/log"
  row "the worker of a program that runs is killed" "$what ms" || cat "$tmp/out" "$tmp/log"
}

# lost kills the worker of a program that is about to read managed memory that lies at the GPU:
# there is no right value any more.
lost() {
  local run worker rc=0
  mkfifo "$tmp/go"
  "$CAUSEWAY" run -v --gpu soft -- "$(dirname "$program")/managedends" lost <>"$tmp/go" >"$tmp/out" 2>"$tmp/log" & run=$!
  until_true 20 grep -q '^ready' "$tmp/out"
  worker=$(sed -n 's/.*worker started.* pid=\([0-9]*\).*/\1/p' "$tmp/log")
  kill -9 "$worker"
  while kill -0 "$worker" 2>/dev/null; do sleep 0.05; done
  echo >"$tmp/go"
  wait "$run" || rc=$?
  if [ "$(id -u)" = 0 ]; then
    [ "$rc" = 139 ] && grep -q 'ends with SIGSEGV: the session with the GPU has ended' "$tmp/log"
  else # perhaps of the kind that stays in the process
    [ "$rc" = 139 ] || grep -q '^read right' "$tmp/out"
  fi
  row "managed memory of a worker that was killed" "status $rc" || cat "$tmp/out" "$tmp/log"
}

# debugged: gdb stops a program whose managed memory kernels had, reads and changes words of it, and
# steps over an access to what is at the GPU. While a kernel may have it gdb is told that it cannot
# be had; it is never told an old word.
debugged() {
  local args=() command rc=0
  if ! have gdb; then echo "skipped: managed memory in gdb: no gdb"; return; fi
  while read -r command; do args+=(-ex "$command"); done <<'GDB'
set pagination off
set confirm off
set debuginfod enabled off
break stopped
break *first_word
run
print *(unsigned *)($rdi + 40)
set var *(unsigned *)($rdi + 40) = 1000
continue
print *(unsigned *)($rdi + 80)
set var *(unsigned *)($rdi + 120) = 5
continue
print *(unsigned *)($rdi + 80)
continue
stepi
print $eax
continue
print *(unsigned *)($rdi + 4 * 1000000)
continue
GDB
  timeout -k 5 120 "$CAUSEWAY" run --gpu soft -- gdb -q -nx -batch "${args[@]}" --args "$(dirname "$program")/managedouter" debugged </dev/null >"$tmp/out" 2>&1 || rc=$?
  command=$(grep -E '^\$[0-9]+ = |^Cannot access|^PASSED' "$tmp/out" | sed 's/^\$[0-9]* = //' | paste -sd,)
  [[ $rc = 0 && $command =~ ^10,40,('Cannot access memory at address '0x[0-9a-f]+|80),160,4000000,PASSED$ ]]
  row "gdb reads, changes and steps over managed memory" "$command" || sed 's/^/        | /' "$tmp/out"
}

# begin_there ADDRESS:PORT: `run` is a program on that server, with its bytes there. What one before
# it had may be about to be free: it is tried again.
begin_there() {
  for _ in $(seq 30); do
    : >"$tmp/out"
    CAUSEWAY=tcp://$1 LD_LIBRARY_PATH=$BUILD/lib "$(dirname "$program")/managedends" lost 52 <>"$tmp/line" >"$tmp/out" 2>"$tmp/log" & run=$!
    until_true 15 ready_or_ended "$run"
    grep -q '^ready 1' "$tmp/out" && return
    wait "$run"; sleep 1
  done
  return 1
}
ready_or_ended() { grep -q '^ready' "$tmp/out" || ended "$1"; }

# over_there: more managed memory than a GPU server's vGPU has room for, of two programs of which
# one loses its worker and the other is killed; what they had of the server's memory is there for a
# third, whose bytes are right.
over_there() {
  local at run worker what rc; at=$(own_loopback):7745
  start_serve "$at" "$tmp/serve.log" -v --gpu soft --memory 32MiB --host-memory 64MiB # 32 MiB for each program, 64 for all
  mkfifo "$tmp/line"
  for what in worker program none; do
    rc=0
    begin_there "$at" || { false; row "a program with more managed memory than the server's GPU has" "$(keep tail -n 1 "$tmp/out")"; cat "$tmp/log" "$tmp/serve.log"; return; }
    case $what in
      worker) worker=$(sed -n 's/.*session opens.* worker=\([0-9]*\).*/\1/p' "$tmp/serve.log" | tail -n 1) # others are started ahead
        kill -9 "$worker"; until_true 15 ended "$worker" ;;
      program) kill -9 "$run" ;;
    esac
    [ $what = program ] || echo >"$tmp/line"
    wait "$run" || rc=$?
    case $what in
      worker) [ "$rc" = 139 ] && grep -q 'ends with SIGSEGV' "$tmp/log" ;;
      program) [ "$rc" = 137 ] ;;
      none) [ "$rc" = 0 ] && grep -q '^read right' "$tmp/out" ;;
    esac
    row "more managed memory than a GPU server has room for, killed: $what" "status $rc" || cat "$tmp/out" "$tmp/log" "$tmp/serve.log"
  done
  stop_service
}

build_life "$tmp/life" life gpu
# in_guest COMMAND... runs it in the guest; what it prints is in $tmp/out.
in_guest() {
  guest "$*" >"$tmp/said"
  local rc=$?
  sed 's/^        | //' "$tmp/said" >"$tmp/out"
  return $rc
}

# in_vm: the rows about guests. The device has room for one CUDA process, and for less memory than
# the program wants.
in_vm() {
  local kernel=6.12 lib=/tmp/lib since
  # shellcheck disable=SC2034 # guest_channel truncates it
  console_log=$tmp/console.log
  guest_channel "$tmp"
  guest_image $kernel "$tmp/initrd" "$tmp/life" "$program" || die "the guest image cannot be made"
  start_device "$tmp/vm.sock" "$tmp/device.log" --gpu soft --memory 1MiB --sessions 1
  qemu-system-x86_64 -accel tcg,thread=multi -cpu "$tcg_cpu" -smp 2 -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on -machine q35,memory-backend=mem \
    -nodefaults -display none "${channel[@]}" -kernel "$BUILD/kernels/$kernel/vmlinuz" -initrd "$tmp/initrd" \
    -append "$guest_append causeway.tag=gpu0" \
    -chardev "socket,id=gpu0,path=$tmp/vm.sock" -device vhost-user-fs-pci,chardev=gpu0,tag=gpu0,queue-size=1024 \
    </dev/null >"$tmp/qemu.log" 2>&1 9>&- 3>&- 4>&- &
  qemu_pid=$!
  guest_up; row "a VM is up" "$SECONDS s" || return
  in_guest 'mkdir -p /mnt; mount -t virtiofs gpu7 /mnt'; grep -qiE 'no such device|wrong fs type|invalid argument' "$tmp/out"
  row "a tag that no device has cannot be mounted" "$(keep head -1 "$tmp/out")"
  in_guest 'env -u LD_LIBRARY_PATH ./vectoradd'
  sees 35 "$tmp/out" "no libcuda.so.1 is found"
  in_guest ./vectoradd
  sees 2 "$tmp/out" "more memory than the limit"
  send '&./life idle'
  await '@ready *'; local idle=${line#@ready }
  in_guest ./vectoradd
  sees 999 "$tmp/out" "more CUDA processes than the limit" "as many CUDA processes as it may"
  in_guest "kill $idle; wait; mkdir $lib && cp /run/causeway/lib/libcuda.so.1 $lib; ./life once"
  row "a program runs when there is room" "" || cat "$tmp/out"
  in_guest "umount /run/causeway; LD_LIBRARY_PATH=$lib ./vectoradd; mount -t virtiofs gpu0 /run/causeway"
  sees 100 "$tmp/out" "nothing is mounted at /run/causeway" "mount -t virtiofs"
  send '&./life loop'
  await '@ready *'
  kill -9 "$service_pid"; since=$(ms)
  wait "$service_pid" 2>/dev/null; service_pid=
  await '@error *' 10; [[ $line == '@error 719 '* ]]
  row "the device process dies: a program that runs gets error 719" "after $((at - since)) ms"
  in_guest 'ls /run/causeway'; grep -q 'Transport endpoint is not connected' "$tmp/out"; row "the mount says that nobody is there" ""
  in_guest ./vectoradd
  sees 35 "$tmp/out" "a program that starts then finds no library"
  in_guest "LD_LIBRARY_PATH=$lib ./vectoradd"
  sees 100 "$tmp/out" "or, with a copy of it, no vGPU" "the vGPU's process on the host has ended"
  in_guest 'for i in $(seq 600); do umount /run/causeway && break; usleep 100000; done 2>/dev/null; ! grep -q " /run/causeway " /proc/mounts'; row "and the guest lets go of the mount" ""
}

if [ -n "$vm" ]; then
  in_vm
else
  on_host
  killed
  lost
  debugged
  [ "$(id -u)" != 0 ] || over_there # userfaultfd may be refused to others
fi
echo "errors: $passed passed, $failed failed in $SECONDS s"
[ $failed = 0 ]
