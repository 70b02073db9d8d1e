# What processes are at, for someone who finds out later why they did not end.

# times PID prints the CPU time that each thread has had, in ticks: what stands still hangs, what
# goes on is slow.
times() { awk '{ n = $1; sub(/.*\) /, ""); print "  thread " n ": " $1 ", user " $12 ", system " $13 }' "/proc/$1"/task/*/stat 2>/dev/null; }

# stacks PID... prints of each process its threads, where they wait in the kernel, the stacks of its
# C code if there is gdb, its descriptors, the state of TCP connections, and after 3 s the times
# again. It ends nothing.
stacks() {
  local p t
  date -u '+%F %T'; cat /proc/loadavg
  for p in "$@"; do
    [ -d "/proc/$p" ] || continue
    echo "=== process $p: $(tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null)"
    times "$p"
    for t in "/proc/$p"/task/*; do
      echo "  thread ${t##*/} $(cat "$t/comm" 2>/dev/null): in $(cat "$t/wchan" 2>/dev/null), call $(cat "$t/syscall" 2>/dev/null)"
      sed 's/^/    /' "$t/stack" 2>/dev/null
    done
    ls -l "/proc/$p/fd" 2>/dev/null | awk 'NR > 1 { print "  descriptor", $9, $10, $11 }'
    if have gdb; then timeout -k 5 30 gdb -batch -nx -p "$p" -ex 'set pagination off' -ex 'thread apply all backtrace 30' 2>&1 </dev/null | grep -v -e '^\[New LWP' -e '^warning:'; fi
  done
  echo "=== TCP"
  if have ss; then ss -tnoie; else cat /proc/net/tcp; fi
  sleep 3
  for p in "$@"; do echo "=== process $p, 3 s later"; times "$p"; done
}
