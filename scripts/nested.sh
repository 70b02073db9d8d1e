#!/usr/bin/env bash
# Runs the back end for real NVIDIA drivers (host/driver/cuda) where there is no GPU: the driver that it loads is our own libcuda.so.1,
# whose calls go on to the software GPU.
#
#   scripts/nested.sh
#
# The back end's own tests, those that need a driver, must all pass. The exit status is 0 if nothing failed.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
[ "${1:-}" != --help ] && [ "${1:-}" != -h ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit; }
[ $# = 0 ] || die "unknown argument $1: see $0 --help"

dir=$BUILD/nested
mkdir -p "$dir"
outer=("$CAUSEWAY" run --gpu soft --)

# tests runs those tests of the back end that need a driver, and sets passed, failed and skipped.
tests() {
  local rc=0
  go test -c -vet=off -ldflags=-w -o "$dir/cuda.test" ./host/driver/cuda
  (cd host/driver/cuda && CAUSEWAY_REQUIRE_GPU=1 timeout -k 5 300 "${outer[@]}" "$dir/cuda.test" -test.v \
    -test.run '^(TestConformance|TestHostAtomics|TestNoDriverIsSaidPlainly)$') >"$dir/cuda.log" 2>&1 || rc=$?
  grep -E '^ *--- ' "$dir/cuda.log" || true
  count() { grep -cE "^ *--- $1: " "$dir/cuda.log" || true; }
  passed=$(count PASS) failed=$(count FAIL) skipped=$(count SKIP)
  if [ $rc != 0 ] || [ "$failed" != 0 ]; then
    [ "$failed" != 0 ] || failed=1
    echo "the tests ended with status $rc; the end of $dir/cuda.log:"
    tail -40 "$dir/cuda.log"
  fi
}

cd "$ROOT"
tests
echo "nested: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 20 ]
