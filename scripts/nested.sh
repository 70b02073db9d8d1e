#!/usr/bin/env bash
# Runs the back end for real NVIDIA drivers (host/driver/cuda) where there is no GPU: the driver
# that it loads is our own libcuda.so.1, whose calls go on to the software GPU.
#
#   scripts/nested.sh                          everything; with FORGER set a program forges its GPU
#                                              time, too, which takes a machine with nothing else to
#                                              do: it goes by how much of it is counted meanwhile
#   scripts/nested.sh --inner GPUS PROGRAM...  one program, under `causeway run --gpu soft --`; with
#                                              a file in MOVING, moved all the time
#   scripts/nested.sh --moved MODE LOG         rounds in a mode, likewise, moved to fresh workers
#                                              while it computes, with TWO set from one GPU to
#                                              another
#
# First the back end's own tests, those that need a driver, and a VM of the device's tests that
# moves between two. Then the CUDA programs of guest/tests under two `causeway run`, one inside the
# other: the inner one's worker is on the real back end. It is of a build that takes any
# libcuda.so.1 for a driver, whether or not the machine has a GPU (-tags nested), and its sandbox is
# off, as its driver needs a socket. The programs that cannot run are listed with the reason; one
# that does is an error too. Last, programs run, and rounds computes and checks, while their
# sessions move to fresh workers of the real back end. The exit status is 0 if everything was as it
# should be. It needs root, or CAP_CHECKPOINT_RESTORE: the driver shares what another process made
# by opening its mapping.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
dir=$BUILD/nested

case ${1:-} in
  '') ;;
  --inner)
    gpus=$2; shift 2
    export CAUSEWAY_OUTER=$CAUSEWAY
    [ -n "${MOVING:-}" ] || exec "$dir/bin/causeway" run --gpu "$gpus" --sandbox off ${MIGRATABLE:+--migratable} -- "$@"
    "$dir/bin/causeway" run --gpu "$gpus" --sandbox off --migratable -- "$@" &
    run=$!
    while sleep 0.02 && kill -0 $run 2>/dev/null; do "$dir/bin/causeway" rebuild --pid $run >>"$MOVING" 2>&1 || true; done
    wait $run; exit ;;
  --moved)
    mode=$2 log=$3 moves=4
    : >"$log"
    limit=(); [ "$mode" != over ] || limit=(--memory 640MiB) # a context takes 520; of the rest it takes nearly all
    CAUSEWAY_OUTER=$CAUSEWAY "$dir/bin/causeway" run ${VERBOSE:+-v} --gpu 0 --sandbox off --migratable "${limit[@]}" -- "$BUILD/tests/13.0-static/rounds" "$mode" >"$log" 2>"$log.err" &
    run=$!
    until grep -q '^@round [1-9]' "$log"; do kill -0 $run; sleep 0.05; done
    for ((i = 0; i < moves; i++)); do
      to=(rebuild); [ -z "${TWO:-}" ] || to=(move --gpu $((i % 2 == 0)))
      "$dir/bin/causeway" "${to[@]}" --pid $run 2>&1 || true
      sleep 0.1
    done
    kill -TERM "$(sed -n 's/^@ready //p' "$log")"
    wait $run; exit ;;
  -h | --help) header; exit ;;
  *) die "unknown argument $1: see $0 --help" ;;
esac
. "$ROOT/scripts/lib/device.sh"

# Programs that cannot run nested: STATUS PROGRAM REASON.
cannot=(
  '77  cubemap     the software GPU has no cube maps'
  '77  greenctx    the software GPU has no green contexts'
  '77  managedpeers one GPU: it runs with two below'
  '77  peer        one GPU: it runs with two below'
  '77  sparse      the software GPU has no sparse arrays'
  '1   managedload some of its text is moved as machine code, which the software GPU does not execute'
  '139 managedvar  its variables are moved in machine code, which the software GPU does not execute: the program meets null pointers'
)

# build makes the inner program, in a folder of its own: it finds its guest library beside it, and
# its worker's driver in the outer one's.
build() {
  mkdir -p "$dir/bin"
  ln -sfn ../lib "$dir/lib"
  go build -tags nested -trimpath -o "$dir/bin/causeway" ./host/causeway
  go test -c -vet=off -ldflags=-w -o "$dir/cuda.test" ./host/driver/cuda
  go test -c -vet=off -ldflags=-w -o "$dir/device.test" ./host/device
}

passed=0 failed=0 skipped=0

# own_tests runs those tests of the back end that need a driver.
own_tests() {
  local rc=0
  inner() {
    (cd host/driver/cuda && CAUSEWAY_REQUIRE_GPU=1 timeout -k 5 600 "$CAUSEWAY" run --gpu soft -- "$dir/cuda.test" -test.v -test.run "^($1)\$") 2>&1 || rc=$?
  }
  inner 'TestConformance|TestHostAtomics|TestSums|TestNoDriverIsSaidPlainly' >"$dir/cuda.log"
  CAUSEWAY_TEST_MIGRATABLE=1 inner TestConformance >>"$dir/cuda.log" # sessions that may move, in a process of their own
  inner TestExpect >>"$dir/cuda.log" # likewise
  (cd host/device && CAUSEWAY_TEST_GPU=nested timeout -k 5 300 "$CAUSEWAY" run --gpu soft -- "$dir/device.test" -test.v -test.run "^Test(Front|(Move|MoveOfShared|PreCopy|Servers|Ahead${FORGER:+|Forger})OnGPU)\$") >>"$dir/cuda.log" 2>&1 || rc=$?
  # A VM's programs on two GPUs, whose memory each new worker reads from the other: twice four
  # times.
  (cd host/device && CAUSEWAY_TEST_GPU=nested timeout -k 5 120 "$CAUSEWAY" run --gpu soft:2 -- "$dir/device.test" -test.v -test.run '^TestRelocateOnGPU$') >"$dir/linked.log" 2>&1 || rc=$?
  [ "$(grep -c 'msg="memory read from the other GPU"' "$dir/linked.log")" = 8 ] || { echo "FAILED: memory did not go from GPU to GPU: see $dir/linked.log"; rc=${rc/#0/linked}; }
  cat "$dir/linked.log" >>"$dir/cuda.log"
  grep -E '^ *--- ' "$dir/cuda.log" || true
  count() { grep -cE "^ *--- $1: " "$dir/cuda.log" || true; }
  passed=$(count PASS) failed=$(count FAIL) skipped=$(count SKIP)
  [ "$passed" -gt 40 ] || rc=${rc/#0/none}
  [ "$rc" = 0 ] && [ "$failed" = 0 ] && return
  [ "$failed" != 0 ] || failed=1
  echo "the tests ended with status $rc; the end of $dir/cuda.log:"
  tail -40 "$dir/cuda.log"
}

# taken is what a worker says when its own memory lies where its guest's is to be registered: by
# chance, and more often here, where the guest is a worker too, whose mappings are laid out as its
# own worker's are.
taken='are in use in this process'

# programs LABEL OUTER INNER PROGRAM... runs them on GPUs of these names, and adds to the counts.
programs() {
  local label=$1 runner="$CAUSEWAY run --gpu $2 -- $0 --inner $3" sum
  shift 3
  scripts/run-tests.sh --label "$label" --variants 13.0-static --again "$taken" --runner "$runner" "$@" >"$dir/$label.log" || true
  cat "$dir/$label.log"
  sum=$(tail -1 "$dir/$label.log")
  [[ $sum =~ ([0-9]+)' passed, '([0-9]+)' failed, '([0-9]+)' skipped' ]] || { failed=$((failed + 1)); echo "FAILED: $label has no result"; return; }
  passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
}

# cannot_run checks that the listed programs end as the list says.
cannot_run() {
  local row status program reason rc
  for row in "${cannot[@]}"; do
    read -r status program reason <<<"$row"
    rc=0
    timeout -k 5 240 "$CAUSEWAY" run --gpu soft -- "$0" --inner 0 "$BUILD/tests/13.0-static/$program" >"$dir/$program.log" 2>&1 || rc=$?
    if [ $rc = "$status" ]; then
      echo "$program: cannot run: $reason"
      skipped=$((skipped + 1))
    else
      echo "$program: FAILED: status $rc, where $status is expected ($reason): see $dir/$program.log"
      tail -n 8 "$dir/$program.log" | sed 's/^/        | /'
      failed=$((failed + 1))
    fi
  done
}

# Modes of rounds and how often of four they move at least, or why they never do.
moving=(
  'streams   4' 'pinned    4' 'shared    4' 'lasting   4' 'waits     4' 'idle      4' 'times     4' 'images    4' 'settings  4' 'callbacks 4' 'graphs    4'
  'threads   4' 'ordered   4' 'over      4' 'kernels   4' 'locals    4'
)
# Those that move from one of two GPUs to the other, and back.
elsewhere=('streams   4' 'pinned    4' 'graphs    4' 'images    4')

# Programs that are moved all the time: each object that a session can have, but for those that say
# no.
moved_programs=(arrays textures surfaces constant library modules links vmm contexts hostfunc inflight order parts mapped multicopy dynpar
  graphcapture graphcond graphnodes graphupdate captureend)

# moved runs programs, then rounds in each mode and moves it: all results are right, and what does
# not move says why.
moved() {
  local row n
  export MOVING=$dir/moving.log
  : >"$MOVING"
  programs nested-moving soft 0 "${moved_programs[@]}"
  n=$(grep -c '^[1-9][0-9]* sessions moved' "$MOVING") || true
  echo "moved: ${#moved_programs[@]} programs, $n times"
  [ "$n" -ge ${#moved_programs[@]} ] || { failed=$((failed + 1)); echo "FAILED: fewer moves than programs; the end of $MOVING:"; tail -n 5 "$MOVING" | sed 's/^/        | /'; }
  unset MOVING
  for row in "${moving[@]}"; do moved_mode soft "to a fresh worker" $row; done
  export TWO=1
  for row in "${elsewhere[@]}"; do moved_mode soft:2 "to the other GPU" $row; done
  unset TWO
}

# moved_mode GPUS WHERE MODE LEAST [WHY...] is rounds in a mode, with software GPUs below it.
moved_mode() {
  local gpus=$1 where=$2 mode=$3 least=$4 log rc n
  shift 4
  local why=${*:-nothing}
  log=$dir/moved-$mode${TWO:+-elsewhere}
  for _ in 1 2 3; do
    rc=0
    timeout -k 5 240 "$CAUSEWAY" run -v --gpu "$gpus" -- "$0" --moved "$mode" "$log" >"$log.moves" 2>"$log.outer" || rc=$?
    grep -q "$taken" "$log.err" "$log.outer" "$log.moves" || break
  done
  n=$(grep -c '^1 sessions moved' "$log.moves") || true
  if [ $rc = 0 ] && grep -q '^@done [1-9][0-9]* 0 ' "$log" && [ "$n" -ge "$least" ] && ! grep -vE "^1 sessions moved|$why" "$log.moves"; then
    echo "moved: $mode $where, $n times: $(grep '^@done' "$log")"
    passed=$((passed + 1))
  else
    echo "moved: $mode $where: FAILED: status $rc, moved $n times: see $log, $log.err and $log.moves"
    tail -n 8 "$log" "$log.err" "$log.moves" "$log.outer" | sed 's/^/        | /'
    failed=$((failed + 1))
  fi
}

cd "$ROOT"
[ -x "$BUILD/tests/13.0-static/vectoradd" ] || die "no test programs under build/tests: run scripts/build-tests.sh"
build
own_tests
mapfile -t all < <(for f in guest/tests/expected/*.txt; do basename "$f" .txt; done)
for row in "${cannot[@]}"; do
  read -r _ program _ <<<"$row"
  for i in "${!all[@]}"; do [ "${all[i]}" != "$program" ] || unset "all[i]"; done
done
programs nested soft 0 "${all[@]}"
MIGRATABLE=1 programs nested-migratable soft 0 pools twoproc vmm nvml # what sessions that may move share, and give back
programs nested-two soft:2 0,1 managedpeers peer twoproc vmm
cannot_run
moved
echo "nested: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
