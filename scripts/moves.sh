#!/usr/bin/env bash
# Sessions that may move (--migratable), on a real GPU: whether all is right with them, whether they
# move, and what that costs.
#
#   scripts/moves.sh [--gpu SEL] [--out DIR] [ITEM...]
#
#   conformance   the back end's conformance tests with sessions that may move
#   vm            a simulated VM with programs moves between two devices, there and back, three
#                 times
#   programs      the CUDA programs of guest/tests, likewise
#   modes         guest/tests/rounds in each mode, moved four times to fresh workers while it
#                 computes
#   locals        variables that are loaded behind what has the driver take local memory for
#                 threads, by what that is (LOCALS: steps of rounds' mode locals, joined by +): a
#                 row each, of two moves
#   training      PyTorch trains in several ways (TRAIN_HOW: which of scripts/moves/train.py's) and
#                 is moved all the time, to the other GPU and back where there are two: its losses
#                 are those of the unmoved run, bit by bit
#   costs         calls, allocations, copies, kernels, launches with --migratable against without,
#                 in turn, medians, as ratios
#   peer          how fast the bare driver reads another process's memory on the other GPU, and to
#                 whom it allows that (only when asked for)
#   elsewhere     pause of moves from one GPU to another and back, by size, where there are two: one
#                 GPU reads the other's memory, and then through the host's (WAYS: "gpus host"); the
#                 goals are 200 and 20 GB/s
#   between       programs of five modes go from one GPU to another and back, ten times each
#                 (BETWEEN: how often), where there are two (only when asked for)
#   nccl          a program of PyTorch whose two GPUs sum up by NCCL is moved to fresh workers; each
#                 sum is checked (only when asked for)
#   states        pause and time of moves by size, of a program that writes all its memory all the
#                 time
#
# All items by default. Each has a time limit and a log DIR/ITEM.log (default build/logs/moves); one
# that fails does not keep the others from being run. Without a GPU `--gpu soft` tries the script
# itself. The status is 0 if everything was as it should be.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
cd "$ROOT" || exit 1

gpu=0 out=$BUILD/logs/moves items=() one=
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --one) one=$2; shift 2 ;; # this script's own: an item, without the limit and the table
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) items+=("$1"); shift ;;
  esac
done
[ ${#items[@]} -gt 0 ] || items=(conformance vm programs modes locals training costs elsewhere states)
rounds=$(ls -d "$BUILD"/tests/*-static | tail -1)/rounds
modes="streams threads pinned shared lasting waits idle times written graphs ordered images settings callbacks vmm training over kernels"
[ "$gpu" = soft ] || modes+=" green tiles"
mkdir -p "$out"
# NVLink multicast goes to all GPUs of a host through its switches, and others' may be among them:
# nothing here asks for it.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

# rebuild PID: what a move said, with the time that the command took.
rebuild() {
  local since; since=$(date +%s%N)
  timeout 60 "$CAUSEWAY" rebuild --pid "$1" 2>&1 || true
  echo "# $((($(date +%s%N) - since) / 1000000)) ms"
}
# count FILE: how many moves of it came to something; last reason of those that did not, behind the
# number.
count() {
  local n; n=$(grep -c '^[1-9][0-9]* sessions moved' "$1")
  echo "$n $(grep -vE '^#|sessions moved' "$1" | tail -1 | cut -c1-180)"
}
# pauses FILE: of the moves in a worker's log, in ms.
pauses() { sed -n 's/.*msg="session moved" .*pause=\([^ ]*\) .*/\1/p' "$1" | tr '\n' ' '; }

# begin_rounds SECONDS LOG GPU MODE returns when rounds computes, for so long at most: child is whom
# to wait for, run the process of causeway.
begin_rounds() {
  local i
  : >"$2"
  local limit=(); [ "$4" != over ] || limit=(--memory 1GiB) # of which it takes nearly all
  timeout -k 5 "$1" "$CAUSEWAY" run -v --gpu "$3" --migratable "${limit[@]}" -- "$rounds" "$4" >"$2" 2>"$2.err" &
  child=$!
  for ((i = 0; i < 200; i++)); do grep -q '^@round [1-9]' "$2" || ! kill -0 $child 2>/dev/null && break; sleep 0.1; done
  run=$(pgrep -P $child | head -1)
}
# end_rounds LOG ends it; the status is its own.
end_rounds() {
  kill -TERM "$(sed -n 's/^@ready //p' "$1")"
  wait $child
}
# right LOG: rounds were made, and all are right.
right() { grep -q '^@done [1-9][0-9]* 0 ' "$1"; }
# two_gpus sets there to the GPUs that sessions go to in turn from the first.
two_gpus() {
  there=(1 0)
  if [ "$gpu" = soft ]; then there=(soft/1 soft/0); return; fi
  [ "$("$CAUSEWAY" gpus --local --json | grep -o '"backend":"cuda"' | wc -l)" -ge 2 ] || { echo "there is one GPU"; return 3; }
}

item_conformance() {
  local test=$BUILD/bin/causeway-cuda log=$out/conformance.all
  [ -x "$test" ] || { echo "not in the pack: bin/causeway-cuda"; return 3; }
  (cd host/driver/cuda && CAUSEWAY_REQUIRE_GPU=1 CAUSEWAY_TEST_MIGRATABLE=1 timeout -k 5 90 "$test" -test.v -test.run '^TestConformance$') >"$log" 2>&1
  local rc=$?
  grep -E '^ *--- (FAIL|SKIP)' "$log"
  echo "$(grep -cE '^ +--- PASS' "$log") passed, $(grep -cE '^ +--- FAIL' "$log") failed"
  [ $rc = 0 ] || tail -n 20 "$log"
  return $rc
}

item_vm() {
  local test=$BUILD/bin/causeway-limits log=$out/vm.all rc=0
  [ -x "$test" ] || { echo "not in the pack: bin/causeway-limits"; return 3; }
  (cd /tmp && CAUSEWAY_TEST_GPU=cuda timeout -k 5 60 "$test" -test.v -test.run '^Test(Front|(Move|PreCopy|Servers)OnGPU)$') >"$log" 2>&1 || rc=$?
  grep -E '^ *--- |_test.go:[0-9]*: [^t]' "$log"
  sed -n 's/.*msg="session \(saved\|loaded\)".*\(bytes=.*\)/\1 \2/p' "$log" | sort | uniq -c | sort -rn | head -4
  [ $rc = 0 ] || tail -n 20 "$log"
  return $rc
}

item_programs() {
  scripts/run-tests.sh --label migratable --variants "$(basename "$(dirname "$rounds")")" --logs "$out/programs.d" --timeout 30 --may-skip "peer managedpeers ${MAY_SKIP:-}" \
    --runner "$CAUSEWAY run --gpu $gpu --migratable --"
}

# one_mode MODE: moved four times while it runs.
one_mode() {
  local log=$out/modes.$1 run child rc=0 n why
  begin_rounds 80 "$log" "$gpu" "$1"
  : >"$log.moves"
  for _ in 1 2 3 4; do rebuild "$run" >>"$log.moves"; sleep 0.2; done
  end_rounds "$log" || rc=$?
  read -r n why <<<"$(count "$log.moves")"
  printf '%-10s %s moves, %s, rounds wrong pause: %s; pauses %s%s\n' "$1" "$n" "status $rc" "$(sed -n 's/^@done //p' "$log")" "$(pauses "$log.err")" "${why:+; stays: $why}"
  [ $rc = 0 ] && [ "$n" = 4 ] && right "$log"
}
item_modes() {
  local m rc=0 pids=()
  for m in ${MODES:-$modes}; do
    (one_mode "$m") & pids+=($!)
    [ $((${#pids[@]} % 4)) != 0 ] || wait "${pids[@]: -4:1}"
  done
  for m in "${pids[@]}"; do wait "$m" || rc=1; done
  return $rc
}

# one_local STEPS: moved twice, and what variables do; the worker says of those that come out
# elsewhere where they were.
one_local() {
  local log=$out/locals.$1 run child rc=0 n why
  ROUNDS_LOCALS=${1//+/ } begin_rounds 60 "$log" "$gpu" locals
  : >"$log.moves"
  for _ in 1 2; do rebuild "$run" >>"$log.moves"; sleep 0.2; done
  end_rounds "$log" || rc=$?
  read -r n why <<<"$(count "$log.moves")"
  printf '%-44s %s moves, status %s, rounds wrong pause: %s; pauses %s%s\n' "$1" "$n" "$rc" "$(sed -n 's/^@done //p' "$log")" "$(pauses "$log.err")" "${why:+; stays: $why}"
  variables "$log.err"
  [ $rc = 0 ] && [ "$n" = 2 ] && right "$log"
}
item_locals() {
  local steps rc=0
  for steps in ${LOCALS:-launch context+launch graph cooperative limit limit+lower launch+lower+launch launch+unload+launch context+launch+graph+cooperative+limit+unload+launch}; do
    one_local "$steps" || rc=1
  done
  return $rc
}

# train_once HOW: natively, in a session that may move, and in one that moves all the time; a line
# says what came of it.
train_once() {
  local log=$out/training.$1 run n why rc=0 i=0 there f
  local train=(python3 "$ROOT/scripts/moves/train.py" "${STEPS:-200}" 20 "$1")
  timeout 120 "${train[@]}" >"$log.native" 2>"$log.native.err" || rc=1
  timeout 120 "$CAUSEWAY" run --gpu "$gpu" --migratable -- "${train[@]}" >"$log.unmoved" 2>"$log.unmoved.err" &
  local unmoved=$!
  two_gpus >/dev/null || there=("$gpu")
  timeout 150 "$CAUSEWAY" run -v --gpu "$gpu" --migratable -- "${train[@]}" >"$log.moved" 2>"$log.moved.err" &
  local moved=$!
  for _ in $(seq 600); do grep -q '^loss 5 ' "$log.moved" || ! kill -0 $moved 2>/dev/null && break; sleep 0.1; done
  run=$(pgrep -P $moved | head -1)
  : >"$log.moves"
  while [ -n "$run" ] && kill -0 "$run" 2>/dev/null; do
    if [ ${#there[@]} = 1 ]; then rebuild "$run"; else timeout 60 "$CAUSEWAY" move --pid "$run" --gpu "${there[i++ % 2]}" 2>&1; fi >>"$log.moves"
    sleep 0.3
  done
  wait $moved || rc=1
  wait $unmoved || rc=1
  n=$(grep -c 'msg="session moved"' "$log.moved.err") why=$(grep -vE '^#|sessions? moved|^moved|: moved' "$log.moves" | tail -1 | cut -c1-200)
  for f in unmoved moved; do cmp -s <(grep -v '^#' "$log.native") <(grep -v '^#' "$log.$f") || { rc=1; echo "$1: losses differ: $f, from line $(cmp <(grep -v '^#' "$log.native") <(grep -v '^#' "$log.$f") 2>&1 | tail -1): $(tail -n 1 "$log.$f.err" | cut -c1-200)"; }; done
  [ "$n" -ge 3 ] && [ "$(grep -c '^loss' "$log.native")" -ge 2 ] || rc=1
  printf '%-9s %s: %s losses, %s moves%s, weights %s; longest step, ms: %s; pauses %s%s\n' "$1" "$([ $rc = 0 ] && echo same || echo FAILED)" "$(grep -c '^loss' "$log.moved")" "$n" \
    "$([ ${#there[@]} = 1 ] || echo " between two GPUs, $(grep -c 'msg="memory read from the other GPU"' "$log.moved.err") times from GPU to GPU")" "$(sed -n 's/^weights .* //p' "$log.moved")" "$(for f in native unmoved moved; do sed -n 's/^# longest step, ms//p' "$log.$f"; done | tr -d '\n')" "$(pauses "$log.moved.err")" "${why:+; stays: $why}"
  variables "$log.moved.err"
  return $rc
}
item_training() {
  local how rc=0 pids=() at
  python3 -c 'import torch' 2>/dev/null || { echo "there is no PyTorch here"; return 3; }
  export PYTHONPATH=$ROOT/scripts/compat/lib PYTHONDONTWRITEBYTECODE=1
  for how in ${TRAIN_HOW:-eager graphed compiled conv segments async asyncgraph}; do
    (train_once "$how") & pids+=($!)
  done
  for at in "${pids[@]}"; do wait "$at" || rc=1; done
  return $rc
}

# joined A B: "name a b ratio" of medians over the runs in files A.* and B.*.
joined() {
  awk 'FNR == 1 { side = FILENAME ~ /\.plain\./ ? "p" : FILENAME ~ /\.native\./ ? "n" : "m" }
    NF == 3 && $1 !~ /^#/ { if (!($1 in seen)) { seen[$1] = 1; order[++k] = $1 } v[side, $1] = v[side, $1] " " $2 }
    function mid(s, a, n, i, j, t) { n = split(s, a, " "); for (i = 1; i < n; i++) for (j = i + 1; j <= n; j++) if (a[i] + 0 > a[j] + 0) { t = a[i]; a[i] = a[j]; a[j] = t }
      return n ? (a[int((n + 1) / 2)] + a[int(n / 2) + 1]) / 2 : 0 }
    END { printf "%-44s %14s %14s %14s %8s\n", "name (us)", "native", "plain", "migratable", "ratio"
      for (i = 1; i <= k; i++) { p = mid(v["p", order[i]]); m = mid(v["m", order[i]]); printf "%-44s %14.3f %14.3f %14.3f %8.3f\n", order[i], mid(v["n", order[i]]), p, m, p ? m / p : 0 } }' "$@"
}
item_costs() {
  local i p probes=("memory ${MIB:-8192}" "bench calls" "bench copies ${COPY:-67108864}" "launches through") rc=0
  rm -f "$out"/costs.[nmp]*.*
  for p in "${probes[@]}"; do
    # The program and its arguments are split on purpose.
    # shellcheck disable=SC2086
    [ "$gpu" = soft ] || timeout 40 "$BUILD/bin/"$p >"$out/costs.native.${p%% *}${p##* }" 2>>"$out/costs.err"
    for i in 1 2 3; do
      # shellcheck disable=SC2086
      timeout 40 "$CAUSEWAY" run --gpu "$gpu" -- "$BUILD/bin/"$p >"$out/costs.plain.$i.${p%% *}${p##* }" 2>>"$out/costs.err" || rc=1
      # shellcheck disable=SC2086
      timeout 40 "$CAUSEWAY" run --gpu "$gpu" --migratable -- "$BUILD/bin/"$p >"$out/costs.migratable.$i.${p%% *}${p##* }" 2>>"$out/costs.err" || rc=1
      [ "${p%% *}" != launches ] || [ $i -lt 2 ] || break
    done
  done
  joined "$out"/costs.[nmp]*.*
  tail -n 5 "$out/costs.err"
  return $rc
}

item_peer() {
  local probe=$BUILD/bin/peer rc=0
  two_gpus || return
  [ -x "$probe" ] || gcc -O2 -std=gnu11 scripts/bench/probe/peer.c -o "$probe" -ldl || return 3
  if [ "$gpu" = soft ]; then "$CAUSEWAY" run --gpu soft:2 -- "$probe" 64; return; fi
  nvidia-smi topo -m 2>/dev/null | grep -E '^(GPU|[[:space:]]+GPU)' | cut -c1-60
  timeout 60 "$probe" "${PEER_MIB:-8192}" || rc=$?
  return $rc
}

# reason LOG: why memory went through the host's, if it did.
reason() { sed -n "s/.*msg=\"memory is copied through the host's, not from GPU to GPU\" .*reason=/stays off the link: /p" "$1" | sort | uniq -c | cut -c1-200; }
# variables LOG: what workers said of variables that came out elsewhere.
variables() { sed -n 's/.*msg="\(a variable comes out elsewhere\)" \(.*\)/    \1: \2/p' "$1" | cut -c1-600 | sort | uniq -c | sort -rn | head -n 4; }
# rate MIB PAUSES: GB/s of the median.
rate() { tr ' ' '\n' <<<"$2" | awk -v mib="$1" '/^[0-9.]+m?s$/ { t = $0 + 0; if ($0 ~ /ms$/) t /= 1000; v[++n] = t }
  END { for (i = 1; i < n; i++) for (j = i + 1; j <= n; j++) if (v[i] > v[j]) { t = v[i]; v[i] = v[j]; v[j] = t }
    m = n ? (v[int((n + 1) / 2)] + v[int(n / 2) + 1]) / 2 : 0; printf "%.1f", m ? mib * 1048576 / m / 1e9 : 0 }'; }

# one_size MIB WAY: a program that writes all of it goes to the other GPU and back, twice.
one_size() {
  local log=$out/elsewhere.$1.$2 run child rc=0 n why i
  if [ "$2" = host ]; then local -x CAUSEWAY_PEER=0; fi
  ROUNDS_MIB=$1 begin_rounds 60 "$log" "${there[1]}" written
  for i in "${there[@]}" "${there[@]}"; do timeout 60 "$CAUSEWAY" move --pid "$run" --gpu "$i"; done >"$log.moves" 2>&1
  sleep 0.5
  end_rounds "$log" || rc=1
  n=$(grep -c 'msg="session moved"' "$log.err") why=$(grep -m1 -i 'causeway:\|error' "$log.moves" | cut -c1-300)
  right "$log" && [ "$n" = 4 ] || rc=1
  [ "$2" = host ] || [ "$gpu" = soft ] || [ "$(grep -c 'msg="memory read from the other GPU"' "$log.err")" = 4 ] || rc=1
  printf '%6d MiB %s: %s moves, rounds wrong longest_ms: %s; pauses %s= %s GB/s; read at %sGB/s%s\n' "$1" "$2" "$n" "$(sed -n 's/^@done //p' "$log")" "$(pauses "$log.err")" \
    "$(rate "$1" "$(pauses "$log.err")")" "$(sed -n 's/.*msg="memory read from the other GPU".* gb_s=//p' "$log.err" | tr '\n' ' ')" "${why:+; $why}"
  [ "$2" = host ] || reason "$log.err"
  return $rc
}
item_elsewhere() {
  local mib there rc=0 way
  two_gpus || return
  for mib in ${SIZES:-1024 8192 32768}; do
    for way in ${WAYS:-gpus host}; do
      one_size "$mib" "$way" || rc=1
    done
  done
  return $rc
}

item_between() {
  local log=$out/between.rounds run child there n=0 mode i times=${BETWEEN:-10}
  two_gpus || return
  : >"$log.moves"
  for mode in ${MODES:-streams pinned images lasting ordered}; do
    begin_rounds 60 "$log" "${there[1]}" $mode
    for ((i = 0; i < times; i++)); do timeout 60 "$CAUSEWAY" move --pid "$run" --gpu "${there[i % 2]}" >>"$log.moves" 2>&1 && n=$((n + 1)); done
    end_rounds "$log" && right "$log" || { tail -n 3 "$log" "$log.err" "$log.moves"; return 1; }
    echo "$mode: rounds wrong longest_ms: $(sed -n 's/^@done //p' "$log"); $(grep -c 'msg="memory read from the other GPU"' "$log.err") times GPU to GPU; pauses $(pauses "$log.err")"
    reason "$log.err"
  done
  echo "between: $n moves"
  grep -v '^1 sessions moved' "$log.moves" | head -n 3
  [ "$(grep -vc '^1 sessions moved' "$log.moves")" = 0 ] && [ $n -ge $times ]
}

item_nccl() {
  local log=$out/nccl.rounds run child rc=0 n why _
  two_gpus || return
  python3 -c 'import torch' 2>/dev/null || { echo "there is no PyTorch here"; return 3; }
  : >"$log.moves"
  timeout 110 "$CAUSEWAY" run -v --gpu "${there[1]},${there[0]}" --migratable -- python3 scripts/moves/nccl.py >"$log" 2>"$log.err" &
  child=$!
  for _ in {1..600}; do grep -q '^@round [1-9]' "$log" || ! kill -0 $child 2>/dev/null && break; sleep 0.1; done
  run=$(pgrep -P $child | head -1)
  for _ in 1 2 3 4; do rebuild "$run" >>"$log.moves"; sleep 0.5; done
  end_rounds "$log" || rc=$?
  read -r n why <<<"$(count "$log.moves")"
  echo "nccl: $n moves, status $rc, rounds wrong: $(sed -n 's/^@done //p' "$log"); pauses $(pauses "$log.err")${why:+; stays: $why}"
  variables "$log.err"
  tail -n 3 "$log.err" | cut -c1-300
  [ $rc = 0 ] && [ "$n" = 4 ] && right "$log"
}

item_states() {
  local mib log run child rc=0 n why
  for mib in ${SIZES:-1024 8192 32768}; do
    log=$out/states.$mib
    ROUNDS_MIB=$mib begin_rounds 100 "$log" "$gpu" written
    : >"$log.moves"
    for _ in 1 2; do rebuild "$run" >>"$log.moves"; done
    sleep 1
    end_rounds "$log" || rc=1
    read -r n why <<<"$(count "$log.moves")"
    right "$log" && [ "$n" = 2 ] || rc=1
    echo "$mib MiB: $n moves, rounds wrong longest_ms: $(sed -n 's/^@done //p' "$log")${why:+; stays: $why}; in all $(sed -n 's/^# //p' "$log.moves" | tr '\n' ' ')"
    sed -n 's/.*msg="memory copied while the session runs" /    /p; s/.*msg="memory is \(handed over\|copied, not handed over\)"/    \1/p; s/.*msg="session moved".* pause/    still: pause/p' "$log.err"
  done
  return $rc
}

if [ -n "$one" ]; then "item_$one"; exit; fi

declare -A limit=([conformance]=100 [vm]=70 [programs]=150 [modes]=110 [locals]=110 [training]=150 [costs]=240 [peer]=60 [elsewhere]=190 [between]=170 [nccl]=120 [states]=240)

# run ITEM leaves its log and its row of the table.
run() {
  local start=$SECONDS rc=0 word
  timeout -k 5 "${limit[$1]}" "$0" --gpu "$gpu" --out "$out" --one "$1" >"$out/$1.log" 2>&1 || rc=$?
  case $rc in 0) word=passed ;; 3) word='not run' ;; 124 | 137) word='TOO LONG' ;; *) word=FAILED ;; esac
  printf '%-12s %-8s %4d s\n' "$1" "$word" $((SECONDS - start)) >"$out/$1.row"
}

failed=0
# show ITEM prints its row, and what it says.
show() {
  cat "$out/$1.row"
  case $(cat "$out/$1.row") in *FAILED* | *LONG*) tail -n 40 "$out/$1.log" ;; *) case $1 in programs) tail -n 1 "$out/$1.log" ;; *) cat "$out/$1.log" ;; esac ;; esac | sed 's/^/    /'
  case $(cat "$out/$1.row") in *FAILED* | *LONG*) failed=$((failed + 1)) ;; esac
}
later=()
for i in "${items[@]}"; do
  declare -F "item_$i" >/dev/null || die "no item $i: see $0 --help"
  rm -f "$out/$i.row"
  case $i in
    conformance | vm | programs | modes | nccl) run "$i" & later+=("$i") ;;
    *) wait; run "$i"; show "$i" ;; # what measures is alone
  esac
done
wait
for i in "${later[@]}"; do show "$i"; done
echo "moves: $((${#items[@]} - failed)) passed, $failed failed"
[ $failed = 0 ]
