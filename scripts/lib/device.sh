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
  for _ in $(seq 100); do
    [ -S "$socket" ] && return
    kill -0 "$service_pid" 2>/dev/null || { tail -3 "$log" >&2; service_pid=; die "causeway device ended at once: see $log"; }
    sleep 0.1
  done
  die "causeway device made no socket within 10 s: see $log"
}

# start_serve PORT LOG ARGS... returns when the port answers.
start_serve() {
  local port=$1 log=$2; shift 2
  [ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
  "$CAUSEWAY" serve-plain --listen "127.0.0.1:$port" "$@" >"$log" 2>&1 &
  service_pid=$!
  for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
    kill -0 "$service_pid" 2>/dev/null || { tail -3 "$log" >&2; service_pid=; die "causeway serve-plain ended at once: see $log"; }
    sleep 0.1
  done
  die "causeway serve-plain does not answer on port $port: see $log"
}

# stop_service ends the process that the last start_ began; safe to call twice and from a trap.
stop_service() {
  [ -n "$service_pid" ] || return 0
  kill "$service_pid" 2>/dev/null || true
  for _ in $(seq 30); do kill -0 "$service_pid" 2>/dev/null || break; sleep 0.1; done
  kill -9 "$service_pid" 2>/dev/null || true
  wait "$service_pid" 2>/dev/null || true
  service_pid=
}
