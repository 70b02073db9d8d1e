# Starting and stopping `causeway device` and `causeway serve-plain`; sourced after common.sh.

CAUSEWAY=$BUILD/bin/causeway
service_pid=

# start_device SOCKET LOG ARGS... returns when the socket is there.
start_device() {
  local socket=$1 log=$2; shift 2
  [ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
  mkdir -p "$(dirname "$socket")"
  rm -f "$socket"
  "$CAUSEWAY" device --socket "$socket" "$@" >"$log" 2>&1 &
  service_pid=$!
  for _ in $(seq 600); do
    [ -S "$socket" ] && return
    kill -0 "$service_pid" 2>/dev/null || { tail -3 "$log" >&2; service_pid=; die "causeway device ended at once: see $log"; }
    sleep 0.1
  done
  tail -3 "$log" >&2
  die "causeway device made no socket within a minute: see $log"
}

# own_loopback prints an address of the loopback that no other script which runs now has: a port
# there is free, and who answers at it is ours.
own_loopback() { echo "127.$((1 + ($$ >> 16) % 250)).$(($$ >> 8 & 255)).$(($$ & 255))"; }

# start_serve ADDRESS:PORT LOG ARGS... returns when it answers there.
start_serve() {
  local at=$1 log=$2; shift 2
  [ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
  "$CAUSEWAY" serve-plain --listen "$at" "$@" >"$log" 2>&1 &
  service_pid=$!
  for _ in $(seq 600); do
    kill -0 "$service_pid" 2>/dev/null || { tail -3 "$log" >&2; service_pid=; die "causeway serve-plain ended at once: see $log"; }
    ! grep -q '^serving on ' "$log" || return 0 # it listens ahead of that, and has not written its lease
    sleep 0.1
  done
  tail -3 "$log" >&2
  die "causeway serve-plain does not answer at $at: see $log"
}

# stop_service ends the process that the last start_ began; safe to call twice and from a trap.
stop_service() {
  [ -n "$service_pid" ] || return 0
  kill "$service_pid" 2>/dev/null || true
  for _ in $(seq 200); do kill -0 "$service_pid" 2>/dev/null || break; sleep 0.1; done
  kill -9 "$service_pid" 2>/dev/null || true
  wait "$service_pid" 2>/dev/null || true
  service_pid=
}
