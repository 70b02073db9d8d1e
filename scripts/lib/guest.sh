# A guest that does what the host's script tells it: sourced after common.sh.
# The script sets console_log, to which the kernel's console goes, and calls guest_channel. Commands
# and answers travel through a virtio-serial port, which holds back what the other side has not read
# yet: a 16550 drops it. Commands are numbered, and the guest says so if one is missing. Descriptors
# 3 and 4 are the port's ends, 9 a fifo that nobody writes.

nap() { read -r -t "$1" -u 9 || true; } # sleeps without a process
ms() { local t=${EPOCHREALTIME/./}; echo $((t / 1000)); }

# What scripts wait for they give so many times the seconds that they name, which are a machine's
# that does little else: who waits for what comes loses nothing, and on a machine with twenty others
# at work it comes later.
slack=4

# allowed MS prints the most that something with that limit may take now: as many times that as
# there are processes for each CPU.
allowed() { awk -v ms="$1" -v cpus="$(nproc)" '{l = $1 / cpus; printf "%d\n", ms * (l > 1 ? l : 1)}' /proc/loadavg; }

# end PID ends a child of this shell: by SIGTERM, after 20 s by SIGKILL.
end() {
  [ -n "$1" ] || return 0
  kill "$1" 2>/dev/null
  for _ in $(seq 400); do kill -0 "$1" 2>/dev/null || break; nap 0.05; done
  kill -9 "$1" 2>/dev/null
  wait "$1" 2>/dev/null
}

# end_vm is for on_exit, of a script with a VM (qemu_pid) and a device.
end_vm() {
  # shellcheck disable=SC2154 # the script's
  [ -z "$qemu_pid" ] || kill -9 "$qemu_pid" 2>/dev/null
  stop_service
  rm -rf "$tmp"
}

# until_true SECONDS COMMAND... tries it until it succeeds, for that long, with slack; its status.
until_true() {
  local end=$(($(ms) + $1 * slack * 1000)); shift
  until "$@"; do
    [ "$(ms)" -lt "$end" ] || return 1
    nap 0.05
  done
}

# ended PID: it has, whether or not somebody waited for it.
ended() { local stat; ! read -r stat 2>/dev/null <"/proc/$1/stat" || [[ ${stat##*) } == Z* ]]; }

# stuck PID says what a QEMU that does not end is at, and what its guest last said: its monitor is
# $tmp/monitor.
stuck() {
  local c t
  for c in 'info status' 'info cpus' 'info registers -a'; do timeout 10 python3 "$ROOT/scripts/lib/hmp.py" "$tmp/monitor" "$c" | grep -E 'VM status|CPU|RIP=' | sed 's/^/        | /'; done
  for t in "/proc/$1/task"/*; do printf '        | %s %s %s\n' "$(cat "$t/comm")" "$(awk '{print $3}' "$t/stat")" "$(cat "$t/wchan")"; done
  tail -n 20 "$console_log" | sed 's/^/        | /'
}

passed=0 failed=0
row() { # WHAT DETAIL, after a test whose status is $?, which it returns
  local rc=$?
  if [ $rc = 0 ]; then passed=$((passed + 1)); printf 'ok      %-62s %s\n' "$1" "$2"
  else failed=$((failed + 1)); printf 'FAILED  %-62s %s\n' "$1" "$2"; fi
  return $rc
}
# run_phases NAME... runs phase_NAME of each, and says how long it took.
run_phases() {
  local p began
  for p in "$@"; do
    declare -F "phase_$p" >/dev/null || die "no phase $p"
    began=$SECONDS
    "phase_$p"
    printf -- '--      %-62s %s\n' "$p" "$((SECONDS - began)) s"
  done
}
# keep runs a command in a detail of row, and leaves the status as it was: that of the last command
# substitution is what row would see.
keep() { local rc=$?; "$@"; return $rc; }
# lap sets took to the ms since $since, and leaves the status as it was: a detail of row must not
# run anything, which would change it.
lap() { local rc=$?; took=$(($(ms) - since)); return $rc; }
at_most() { [[ $1 =~ ^[0-9]+$ ]] && [ "$1" -le "$2" ]; }

# guest_channel DIR makes the channel's fifos, agent.out and agent.in, and sets channel: QEMU's
# arguments for it and for the console.
guest_channel() {
  mkfifo "$1/never" "$1/agent.in" "$1/agent.out"
  exec 9<>"$1/never" 3<>"$1/agent.out" 4<>"$1/agent.in"
  : >"$console_log"
  # shellcheck disable=SC2034 # whoever sources this boots the guest
  channel=(-chardev "file,id=console,path=$console_log,append=on" -serial chardev:console
    -device virtio-serial-pci,id=channel -chardev "pipe,id=agent,path=$1/agent" -device virtserialport,bus=channel.0,chardev=agent,name=agent)
}

# agent_script prints the guest's side, for busybox and bash: it runs in the folder that it lies in.
agent_script() {
  cat <<'RUN'
#!/bin/sh
cd "${0%/*}"
ulimit -c 0
until [ -n "$agent_port" ]; do # the port comes to be a moment after its driver
  for p in /sys/class/virtio-ports/*; do
    [ -e "$p/name" ] && read -r name <"$p/name" && [ "$name" = agent ] && [ -c "/dev/${p##*/}" ] && agent_port=/dev/${p##*/}
  done
  sleep 0.02
done
unset p name # commands have variables of their own
exec <>"$agent_port" >&0 2>&1
echo # what ran before may have left half a line
echo "@agent ready"
while read -r agent_nr agent_line; do
  [ "$agent_nr" = "${agent_next:-$agent_nr}" ] || echo "@lost commands from $agent_next to $((agent_nr - 1))"
  agent_next=$((agent_nr + 1))
  case $agent_line in
    '&'*) eval "${agent_line#&} &" ;;
    *) eval "$agent_line" </dev/null; echo "@end $agent_nr $?" ;;
  esac
done
RUN
}

# needs_vm KERNEL looks for what a VM of a script's own needs, and sets qemu.
# shellcheck disable=SC2034 # for the script
needs_vm() {
  qemu=${QEMU:-$(command -v qemu-system-x86_64 || true)}
  [ -n "$qemu" ] || die "qemu-system-x86_64 is missing: run scripts/setup.sh qemu"
  [ -f "$BUILD/kernels/$1/vmlinuz" ] || die "no kernel $1 under build/kernels: run scripts/setup.sh kernels"
  [ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
}

# build_life OUT SOURCE... makes a program of guest/tests/life.
build_life() {
  local out=$1 sources; shift
  sources=("${@/#/$ROOT/guest/tests/life/}"); sources=("${sources[@]/%/.c}")
  gcc -std=gnu11 -O2 -Wall -Wextra -Werror -I"$ROOT/guest/libcuda" -o "$out" "${sources[@]}" -ldl -lpthread || die "guest/tests/life does not build"
}

# guest_image KERNEL OUT FILE... packs the base image and an agent with files for /app.
guest_image() {
  local base=$BUILD/images/base-$1.cpio out=$2 kernel=$1 dir
  shift 2
  dir=$(mktemp -d)
  agent_script >"$dir/run"
  chmod 755 "$dir/run"
  if [ ! -f "$base" ] || [ -n "$(find "$ROOT/images/init" "$ROOT/images/build-initramfs.sh" -newer "$base" -print -quit)" ]; then
    "$ROOT/images/build-initramfs.sh" "$kernel" "$base"
  fi
  "$ROOT/images/build-initramfs.sh" --layer "$dir/layer" "$@" "$dir/run:/app/run" && cat "$base" "$dir/layer" >"$out"
  local rc=$?
  rm -rf "$dir"
  return $rc
}

# last_words says what the guest's kernel and the QEMUs said last: a QEMU that has ended tells why.
last_words() {
  local f
  for f in "$console_log" "${console_log%console.log}"qemu*.log; do
    [ ! -s "$f" ] || tail -n 5 "$f" | tr -d '\r' | sed "s,^,        | ${f##*/}: ,"
  done
}

# lost_timer: has the kernel of the guest that boots said that a timer of a CPU of its did not go
# off? QEMU's emulator loses one now and then (docs/RATIONALE.md, "What an emulated guest may
# lose"), and the guest stands: no device has a part in that, and none of ours is in use before the
# guest says that it is up.
lost_timer="QEMU's emulator lost a timer of the guest's, which does not boot"
boots_from= # where the console of the guest that boots begins; empty: none does
lost_timer() {
  [ -n "$boots_from" ] && tail -c "+$boots_from" "$console_log" | grep -aqE "rcu_preempt kthread timer wakeup didn't happen|Possible timer handling issue on cpu"
}
# unborn: has the guest that boots not come to its first process in the time in which fifty guests
# side by side have? Up to there only QEMU and the stock kernel have run: the driver of our device
# is a module which that process loads. Where its processors are tells whoever looks into it.
unborn="QEMU's emulator has not brought the guest's kernel to its first process within"
unborn_s=240 first_process='@causeway init' # what it says on the console; empty: another's image
unborn() {
  [ -n "$boots_from" ] && [ -n "$first_process" ] && [ $(($(ms) - boots_at)) -gt $((unborn_s * 1000)) ] && ! tail -c "+$boots_from" "$console_log" | grep -aqF "$first_process"
}
# processors prints where those of the guest are, if the script's QEMU has a monitor.
processors() { [ ! -S "$tmp/monitor" ] || timeout 20 python3 "$ROOT/scripts/lib/hmp.py" "$tmp/monitor" 'info registers -a'; }

partial= # of a line whose rest had not come when await gave up
# await PATTERN [SECONDS, with slack] reads what the guest says up to a line that matches; sets
# line, and at: when it came. If the script's QEMU has ended, there is nothing to wait for.
await() {
  local seconds=$((${2:-20} * slack)) end left rc; end=$(($(ms) + seconds * 1000))
  while :; do
    left=$((end - $(ms)))
    [ "$left" -gt 0 ] || { echo "        the guest did not say '$1' within $seconds s"; last_words; line= at=$(ms); return 1; }
    rc=0; IFS= read -r -t $((left < 2000 ? left / 1000 + 1 : 2)) line <&3 || rc=$?
    if [ $rc != 0 ] && [ -n "${qemu_pid:-}" ] && ended "$qemu_pid"; then echo "        QEMU has ended, and the guest did not say '$1'"; last_words; line= at=$(ms); return 1; fi
    if [ $rc != 0 ] && lost_timer; then echo "        $lost_timer"; last_words; line= at=$(ms); return 1; fi
    if [ $rc != 0 ] && unborn; then
      echo "        $unborn $unborn_s s"; last_words
      processors 2>&1 | tr -d '\r' | grep -aE '^CPU#|[RE]IP=' | sed 's/^/        | /'
      line= at=$(ms); return 1
    fi
    at=$(ms); line=$partial$line partial=
    [ $rc = 0 ] || { partial=$line; continue; }
    # shellcheck disable=SC2053
    [[ $line == $1 ]] && return 0
    case $line in
      '@lost '*) false; row "each command arrives" "${line#@}" ;;
      '' | @*) ;;
      *) printf '        | %s\n' "$line" ;;
    esac
  done
}
# guest_up waits until the guest has booted and listens. Without a guest that the emulator lost the
# rest of a script shows nothing, and each of its rows waits for what cannot come (seven minutes of
# sessions.sh): it ends here, and a stage begins again. The limit is for guests that hang: with
# fifty others at work on two CPUs a boot of 15 s took 63.
guest_up() {
  local rc=0
  boots_from=$(($(stat -c %s "$console_log") + 1)) boots_at=$(ms)
  await '@agent ready' $((800 / slack)) || rc=$?
  if [ $rc != 0 ] && { lost_timer || unborn; }; then echo "FAILED  the guest boots"; exit 1; fi
  boots_from=
  return $rc
}

sent=0
send() { sent=$((sent + 1)); printf '%s %s\n' $sent "$*" >&4; }
# guest COMMAND... runs it in the guest; its status.
guest() {
  send "$*"
  await "@end $sent *" "${limit:-30}" || return 124
  return "${line##* }"
}

# monitor COMMAND prints what QEMU says to it at the monitor $tmp/monitor.
monitor() {
  python3 "$ROOT/scripts/lib/hmp.py" "$tmp/monitor" "$1"
}

complaint="rcu.*(stall|starved|didn't happen)|lockup|blocked for more than|BUG:|WARNING:|Oops|Kernel panic"
# calm_kernels: no guest's kernel had to complain (a CPU that stood still, a task that hangs, a
# fault of its own).
calm_kernels() {
  local bad; bad=$(grep -aE "$complaint" "$console_log")
  [ -z "$bad" ]; row "no guest's kernel complained" "${bad:+${bad%%$'\n'*} ($(keep wc -l <<<"$bad") lines in $console_log)}"
}
