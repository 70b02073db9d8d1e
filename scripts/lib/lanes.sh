# Runs stages side by side, where the machine has room for them: sourced by test.sh after common.sh.
#
# A stage is a function stage_NAME, and a row of plan: NAME LOAD NEEDS.... LOAD is one of
#   a number   the part of two CPUs that it keeps busy, in per cent; those that run together have at
#              most $room
#   spare      it only computes, and takes what the others leave of the CPUs: it runs at a low
#              priority, one of its kind at a time
#   ahead      the same, but at the usual priority, as many wait for it: also beside one that runs
#              already at the low one
#   alone      it measures how time is shared: nothing runs beside it
# NEEDS are stages that must have passed before, if they run at all. Rows stand in the order in
# which stages would start. Each stage has a log, a process group and a row in the table of results.

declare -A load_of needs_of state pid_of began_at
running=() again=() results=() failed_stages=() stages_passed=0 stages_failed=0
work=

# room: stages overlap a little, as each waits for something now and then. More CPUs take more of
# them.
room=130
[ "$(nproc)" -lt 4 ] || room=260

# lanes_begin makes the folder for what stages tell, and sees to it that no stage outlives this
# shell.
lanes_begin() {
  work=$(mktemp -d "${TMPDIR:-/tmp}/causeway-test.XXXXXX")
  mkfifo "$work/never"; exec 9<>"$work/never"
  trap lanes_end EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

lanes_nap() { read -r -t "$1" -u 9 || true; } # sleeps without a process

# alive GROUP: has it a process that has not ended?
alive() {
  local p stat
  for p in $(pgrep -g "$1"); do
    read -r stat 2>/dev/null <"/proc/$p/stat" || continue
    case ${stat##*) } in Z*) ;; *) return 0 ;; esac
  done
  return 1
}

# lanes_end ends what runs still.
lanes_end() {
  local s
  trap '' INT TERM HUP
  for s in "${running[@]}"; do kill -TERM -- "-${pid_of[$s]}" 2>/dev/null; done
  for s in "${running[@]}"; do end_stage "$s"; done
  [ -z "$work" ] || rm -rf "$work"
}

# end_stage NAME: by SIGTERM, so that the stage ends its VMs and services, after 15 s by SIGKILL.
end_stage() {
  local group=${pid_of[$1]} n
  kill -TERM -- "-$group" 2>/dev/null
  for ((n = 0; n < 150; n++)); do alive "$group" || return 0; lanes_nap 0.1; done
  kill -KILL -- "-$group" 2>/dev/null
}

# lanes_plan ROW... says which stages there are.
lanes_plan() {
  local row name load needs
  for row; do
    read -r name load needs <<<"$row"
    load_of[$name]=$load needs_of[$name]=$needs
  done
}

# may_start NAME: 0 it may, 1 not yet, 2 never: what it needs has failed.
may_start() {
  local n load=${load_of[$1]} sum=0 s
  for n in ${needs_of[$1]}; do
    case ${state[$n]:-absent} in absent | passed) ;; failed) return 2 ;; *) return 1 ;; esac
  done
  [ ${#running[@]} -gt 0 ] || return 0
  [ -z "$in_turn" ] && [ "$load" != alone ] || return 1
  for s in "${running[@]}"; do
    case ${load_of[$s]} in
      alone) return 1 ;;
      spare) [ "$load" != spare ] || return 1 ;;
      ahead) [ "$load" != spare ] && [ "$load" != ahead ] || return 1 ;;
      *) sum=$((sum + load_of[$s])) ;;
    esac
  done
  [ "$load" = spare ] || [ "$load" = ahead ] || [ $((sum + load)) -le "$room" ] || [ "$sum" = 0 ]
}

# start NAME runs its stage in the background, in a process group of its own: Ctrl-C reaches this
# shell only, which ends them all.
start() {
  local name=$1
  say "$name ..."
  : >"$work/$name.began"
  set -m
  (
    set +m
    trap - EXIT INT TERM HUP
    [ "${load_of[$name]}" != spare ] || renice -n 10 -p $BASHPID >/dev/null
    "stage_$name"
    rc=$?
    times >"$work/$name.times"
    exit $rc
  ) >"$logs/$name.log" 2>&1 </dev/null 9>&- &
  pid_of[$name]=$!
  set +m
  began_at[$name]=$SECONDS state[$name]=running
  running+=("$name")
}

# cpu_seconds NAME: of its shell and of everything that it waited for.
cpu_seconds() {
  [ -s "$work/$1.times" ] || { echo 0; return; }
  tr ' ' '\n' <"$work/$1.times" | awk -F'[ms]' 'NF > 1 {t += $1 * 60 + $2} END {printf "%d\n", t + 0.5}'
}

# emulator_failed NAME prints what QEMU did to a guest of this stage that nobody else can have done;
# its status is 1 if nothing of the kind is known. An assertion of its own fails by a race: QEMU
# 10.0 keeps what the memory map was in each emulated CPU, and another may change the map (a
# driver's probe does) and free it in between. And a timer of a guest's gets lost before it has
# booted, or all of it stands before there is a process, which guest.sh sees: docs/RATIONALE.md,
# "QEMU's emulator" and "What an emulated guest may lose".
emulator_failed() {
  local files
  mapfile -t files < <(find "$logs"/"$1"* -type f -newer "$work/$1.began" -name '*.log')
  [ ${#files[@]} -gt 0 ] || return
  if grep -aqs 'iotlb_to_section: Assertion' "${files[@]}"; then echo 'QEMU itself aborted (iotlb_to_section)'
  elif grep -aqsF "QEMU's emulator lost a timer of the guest's" "$logs/$1.log"; then echo "QEMU's emulator lost a timer of a guest that booted"
  elif grep -aqsF "QEMU's emulator has not brought the guest's kernel" "$logs/$1.log"; then echo "a guest's kernel did not come to its first process"
  else return 1; fi
}

# what_failed NAME [LINES] prints what a stage's log says of what failed, with what is indented
# around it, at most that many lines: the first ones, of which others may only be consequences. A
# log may go on for long after that, and where only the end of a run is kept it is not to be found
# otherwise.
what_failed() {
  tr -d '\r' <"$logs/$1.log" | awk -v most="${2:-40}" '
    { line[NR] = substr($0, 1, 220) }
    /^FAILED|FAILED:|^ *--- FAIL: |^--- .*: exit |^FAIL\t|^error: |: error: |^panic: |^fatal error: |^WARNING: DATA RACE|MISSED$|: NO$|lines differ$|^make.*\*\*\* .* Error|: failed: |: Assertion .* failed|^ended after / { hit[NR] = 1 }
    END {
      for (i = 1; i <= NR; i++) {
        if (!hit[i]) continue
        for (k = i; k > i - 6 && line[k - 1] ~ /^ *[|] |^    /; k--);
        for (; k < i; k++) show[k] = 1
        for (; k <= i + 8 && (k == i || line[k] ~ /^ |^\t/ || line[i] ~ /^--- /) && !(k > i && hit[k]); k++) show[k] = 1
      }
      for (i = 1; i <= NR && n < most; i++) if (show[i]) { print "  " line[i]; n++ }
    }'
}

# finish NAME STATUS prints one line, and notes the row of the table; the end of a failed stage's
# log is shown, and what failed in it. A stage that lost its guest to the emulator runs once more.
finish() {
  local name=$1 rc=$2 took=$((SECONDS - began_at[$1])) log=$logs/$1.log cpu why
  if [ "$rc" != 0 ] && [ ! -e "$work/$name.again" ] && why=$(emulator_failed "$name"); then
    : >"$work/$name.again"
    cp "$log" "$logs/$name-aborted.log"
    say "$name: $why, after $took s, see build/logs/$name-aborted.log: once more"
    state[$name]=waiting again+=("$name")
    return
  fi
  cpu=$(cpu_seconds "$name")
  if [ "$rc" = 0 ]; then
    state[$name]=passed stages_passed=$((stages_passed + 1))
    say "$name: passed in $took s"
    results+=("$(printf '%-10s passed  %5d s  %5d s CPU  %s' "$name" "$took" "$cpu" "$(grep -E 'passed, .* failed|fuzz targets' "$log" | tail -1)")")
    return
  fi
  state[$name]=failed stages_failed=$((stages_failed + 1))
  say "$name: FAILED in $took s; the end of $log:"
  grep -vE '^(ok|\?) ' "$log" | tail -40 >&2
  say "$name: what failed:"
  what_failed "$name" >&2
  failed_stages+=("$name")
  results+=("$(printf '%-10s FAILED  %5d s  %5d s CPU  see build/logs/%s.log' "$name" "$took" "$cpu" "$name")")
}

# reap takes in the stages that have ended, and ends those that wait for ever: the others' results,
# and its log, are worth more.
stage_limit=1500 # seconds; the longest takes a fifth of it
reap() {
  local s rc still=()
  for s in "${running[@]}"; do
    if [ $((SECONDS - began_at[$s])) -ge $stage_limit ]; then
      echo "ended after $stage_limit s: it did not end by itself" >>"$logs/$s.log"
      end_stage "$s"
    fi
    if kill -0 "${pid_of[$s]}" 2>/dev/null; then still+=("$s"); continue; fi
    rc=0; wait "${pid_of[$s]}" || rc=$?
    finish "$s" $rc
  done
  running=("${still[@]}")
}

# heartbeat says every 30 s what each stage is at.
beat=30
heartbeat() {
  local s
  [ $SECONDS -ge $beat ] || return 0
  beat=$((SECONDS + 30))
  for s in "${running[@]}"; do
    say "$s, $((SECONDS - began_at[$s])) s: $(tail -c 300 "$logs/$s.log" | tr '\r' '\n' | grep . | tail -1 | cut -c1-100)"
  done
}

# lanes_run NAME... runs stages, each as soon as it may, those first that are named first. Sets
# results, stages_passed and stages_failed.
lanes_run() {
  local waiting=("$@") left s rc
  for s; do state[$s]=waiting; done
  while [ ${#waiting[@]} -gt 0 ] || [ ${#running[@]} -gt 0 ] || [ ${#again[@]} -gt 0 ]; do
    reap
    left=()
    for s in "${waiting[@]}"; do
      rc=0; may_start "$s" || rc=$?
      case $rc in
        0) start "$s" ;;
        1) left+=("$s") ;;
        2) state[$s]=failed stages_failed=$((stages_failed + 1))
          results+=("$(printf '%-10s NOT RUN: it needs %s' "$s" "${needs_of[$s]}")") ;;
      esac
    done
    waiting=("${again[@]}" "${left[@]}") again=()
    heartbeat
    lanes_nap 0.3
  done
}
