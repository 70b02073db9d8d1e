# A guest that does what the host's script tells it, line by line over its serial console: sourced after common.sh.
# Sets console_log; reads the console from descriptor 3 and writes to 4. Descriptor 9 must be a fifo that nobody writes.

nap() { read -r -t "$1" -u 9 || true; } # sleeps without a process
ms() { local t=${EPOCHREALTIME/./}; echo $((t / 1000)); }

# end PID ends a child of this shell: by SIGTERM, after 5 s by SIGKILL.
end() {
  [ -n "$1" ] || return 0
  kill "$1" 2>/dev/null
  for _ in $(seq 100); do kill -0 "$1" 2>/dev/null || break; nap 0.05; done
  kill -9 "$1" 2>/dev/null
  wait "$1" 2>/dev/null
}

passed=0 failed=0
row() { # WHAT DETAIL, after a test whose status is $?, which it returns
  local rc=$?
  if [ $rc = 0 ]; then passed=$((passed + 1)); printf 'ok      %-62s %s\n' "$1" "$2"
  else failed=$((failed + 1)); printf 'FAILED  %-62s %s\n' "$1" "$2"; fi
  return $rc
}
# lap sets took to the ms since $since, and leaves the status as it was: a detail of row must not run anything, which would change it.
lap() { local rc=$?; took=$(($(ms) - since)); return $rc; }
at_most() { [[ $1 =~ ^[0-9]+$ ]] && [ "$1" -le "$2" ]; }

# guest_image KERNEL OUT FILE... packs the base image and an agent with files for /app.
guest_image() {
  local base=$BUILD/images/base-$1.cpio.gz out=$2 kernel=$1 dir
  shift 2
  dir=$(mktemp -d)
  cat >"$dir/run" <<'RUN'
stty -echo
cd /app
ulimit -c 0
echo "@agent ready"
while read -r line; do
  case $line in
    '&'*) eval "${line#&} &" ;;
    *) eval "$line"; echo "@end $?" ;;
  esac
done
RUN
  chmod 755 "$dir/run"
  if [ ! -f "$base" ] || [ -n "$(find "$ROOT/images/init" "$ROOT/images/build-initramfs.sh" -newer "$base" -print -quit)" ]; then
    "$ROOT/images/build-initramfs.sh" "$kernel" "$base"
  fi
  "$ROOT/images/build-initramfs.sh" --layer "$dir/layer" "$@" "$dir/run:/app/run" && cat "$base" "$dir/layer" >"$out"
  local rc=$?
  rm -rf "$dir"
  return $rc
}

# await PATTERN [SECONDS] reads the console up to a line that matches; sets line, and at: when it came.
await() {
  local end=$(($(ms) + ${2:-20} * 1000)) left
  while :; do
    left=$((end - $(ms)))
    [ "$left" -gt 0 ] || { echo "        the guest did not say '$1' within ${2:-20} s"; line= at=$(ms); return 1; }
    IFS= read -r -t $((left / 1000 + 1)) line <&3 || continue
    at=$(ms); line=${line%$'\r'}
    printf '%s\n' "$line" >>"$console_log"
    # shellcheck disable=SC2053
    [[ $line == $1 ]] && return 0
    case $line in @*) ;; *) printf '        | %s\n' "$line" ;; esac
  done
}
send() { printf '%s\n' "$*" >&4; }
# guest COMMAND... runs it in the guest; its status.
guest() {
  send "$*"
  await '@end *' "${limit:-30}" || return 124
  return "${line#@end }"
}
