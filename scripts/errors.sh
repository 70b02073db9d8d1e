#!/usr/bin/env bash
# Provokes faults that docs/OPERATIONS.md tells operators of, and compares what a CUDA program sees with what it says there.
#
#   scripts/errors.sh          some seconds; no VM
#
# The program is guest/tests/vectoradd, by the runtime. The status is 0 if every row is as it should be.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"

case ${1-} in
  '') ;;
  -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit ;;
  *) die "unknown option $1: see $0 --help" ;;
esac
program=$BUILD/tests/13.0-static/vectoradd
[ -x "$program" ] || die "${program#"$ROOT"/} is missing: run scripts/build-tests.sh"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-errors.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# sees CODE FILE WHAT [TEXT]: a program's output ends with that CUDA error (0: it passed), and its log has that text.
sees() {
  local got said
  said=$(grep -m1 '^causeway: ' "$2" | cut -c1-150)
  if grep -q '^PASSED' "$2"; then got=0; else got=$(sed -n 's/.*): \([0-9]*\) cuda[A-Z].*/\1/p' "$2" | tail -1); fi
  [ "$got" = "$1" ] && { [ -z "${4-}" ] || grep -qF "$4" "$2"; }
  row "$3" "CUDA error ${got:-none}, want $1: $said" || sed 's/^/        | /' "$2"
}

here() { LD_LIBRARY_PATH=$BUILD/lib "$@" >"$tmp/out" 2>&1; }
on_host() {
  if ldconfig -p | grep -q 'libcuda\.so\.1'; then
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
  for _ in $(seq 100); do grep -q '^@ready' "$tmp/out" && break; sleep 0.1; done
  worker=$(sed -n 's/.*worker started.* pid=\([0-9]*\).*/\1/p' "$tmp/log")
  kill -9 "$worker"
  wait "$run"
  what=$(sed -n 's/^@error/CUDA error/p' "$tmp/out")
  [[ $what == 'CUDA error 719 '* ]] && grep -q 'every further CUDA call fails' "$tmp/log"
  row "the worker of a program that runs is killed" "$what ms" || cat "$tmp/out" "$tmp/log"
}

gcc -std=gnu11 -O2 -Wall -Wextra -Werror -I"$ROOT/guest/libcuda" -o "$tmp/life" "$ROOT"/guest/tests/life/{life,gpu}.c -ldl -lpthread || die "guest/tests/life does not build"
on_host
killed
echo "errors: $passed passed, $failed failed in $SECONDS s"
[ $failed = 0 ]
