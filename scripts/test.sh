#!/usr/bin/env bash
# Runs every test, stages side by side where that disturbs none, and says how long each took.
#
#   scripts/test.sh [--in-turn] [STAGE...]      all stages by default
#   scripts/test.sh --quick [--since COMMIT]    what a change needs before it is committed, in under
#                                               4 minutes
#
#   --in-turn     one stage after the other; scripts/repeat.sh runs stages again and again
#   --quick       lint, build, unit tests of the packages that differ from COMMIT (default: where
#                 this branch left main) and of those that import them, the C libraries' tests if
#                 those differ, and ten CUDA programs; needs scripts/setup.sh, but no VM
#
# Stages: base setup build nvcc lint clib fuzzbuild alerts unit fleet density package sessions
# libvirt migrate vm guest rdma smi nvrtc remote programs nested cluster fuzz share.
# A stage waits for those it needs, if they run at all. FUZZTIME (default 3s) is the time per fuzz
# target. Logs are under build/logs, the table of results has each stage's time and what it and its
# children used of the CPUs. The status is 0 if every stage passed.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/stages.sh"
. "$ROOT/scripts/lib/changed.sh"
. "$ROOT/scripts/lib/lanes.sh"
cd "$ROOT" || exit 1
logs=$BUILD/logs
mkdir -p "$logs"

# What compiles takes the time that guests, downloads and limits in milliseconds leave. Loads are
# what the table of results shows: CPU seconds by twice the seconds, and more where limits are
# short. share measures how time is shared.
plan=(
  'base      30'
  'setup     30     base'
  'build     ahead  base'
  'nvcc      ahead  setup'
  'lint      spare  setup'
  'clib      spare  build'
  'fuzzbuild spare  base'
  'alerts    spare  setup'
  'unit      95     setup build'
  'fleet     spare  setup'
  'density   35     build'
  'package   30     setup build'
  'sessions  90     setup build'
  'libvirt   40     setup build nvcc'
  'migrate   50     setup build nvcc'
  'vm        65     setup build nvcc'
  'guest     60     setup build nvcc'
  'rdma      30     setup build nvcc'
  'smi       30     setup build'
  'nvrtc     30     setup build'
  'remote    30     build nvcc'
  'programs  30     build nvcc'
  'nested    50     build nvcc'
  'cluster   40     build nvcc'
  'fuzz      spare  fuzzbuild'
  'share     alone  setup build'
)

quick= since= in_turn= stages=()
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1; shift ;;
    --since) since=$2; shift 2 ;;
    --in-turn) in_turn=1; shift ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) declare -F "stage_$1" >/dev/null || die "unknown stage $1"; stages+=("$1"); shift ;;
  esac
done
lanes_plan "${plan[@]}"
if [ -n "$quick" ]; then
  [ ${#stages[@]} = 0 ] || die "--quick has its own stages"
  quick_stages
elif [ ${#stages[@]} = 0 ]; then
  mapfile -t stages < <(printf '%s\n' "${plan[@]}" | awk '{print $1}')
fi
lanes_begin
lanes_run "${stages[@]}"
echo
printf '%s\n' "${results[@]}"
for s in "${failed_stages[@]}"; do
  echo "$s: what failed:"
  what_failed "$s" 15
done
if [ $stages_failed = 0 ]; then echo "all passed in $SECONDS s"; else echo "FAILED after $SECONDS s"; fi
echo "$stages_passed passed, $stages_failed failed"
[ $stages_failed = 0 ]
