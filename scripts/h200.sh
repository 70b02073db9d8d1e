#!/usr/bin/env bash
# Everything that needs a real GPU, on a machine that has one but no network and no QEMU.
#
#   scripts/h200.sh pack              here: binaries, programs, kernel, guest image and QEMU into
#                                     build/gpu-pack.tar.xz; of the programs those of the variants
#                                     in $VARIANTS ("13.0-static 13.0-shared"), or all; with NO_VM=1
#                                     without what VMs need, some 25 MB
#   scripts/h200.sh [PHASE...]        there: native run soft vm bench; all by default
#
# Phases: native runs the CUDA programs on the machine's own driver, run under `causeway run --gpu
# 0`, soft on the software GPU, vm inside a VM with a vGPU on the real GPU; bench measures. Only
# when asked for: vmtorch runs PyTorch in a VM that sees this machine's Python tree read-only
# (minutes, as the CPU is emulated), vmcopy measures copies in a VM, limits holds a vGPU's memory
# limit against the driver's account, share, sandbox, node and moves are the scripts of these
# names (MOVES names items of the last), overcommit suspends much memory beside the driver's
# checkpoint (GIB: how much), ahead has as much go ahead of a program that moves (GIB=100
# CAUSEWAY_TEST_GPU_THERE=1 from GPU 0 to 1, two H200s, 2 minutes; the test checks every word),
# between moves programs from GPU 0 to 1 and back, vmmove is scripts/migrate.sh on this GPU
# (VMMOVE: its phases, WARM: workers that wait), torchmove PyTorch that trains and is moved, bare
# (moves.sh training) and in a VM beside it, servers moves a VM's programs between two GPU servers
# of this GPU, there and back (scripts/remote.sh --here serversvm serverslarge, which say how long
# programs stood; LARGE: MiB of the large one, 4096; SERVERS_GPU=0,1: a GPU for each), remote
# measures a lease of this GPU over loopback (scripts/bench/remote.sh), far programs over a link
# that takes longer (DELAYS, in us), lanes measures launches by the number of lanes and leaves
# profiles, walls learns the requests that the driver makes (ioctls.sh) and what it takes of a
# VM's memory (guestpages.sh), costs what calls and starts cost by sandbox and placement, compat
# makes the table of scripts/compat, managed measures managed memory, managedways has it by each
# way to the GPU, a lease over TLS included (WAYS: which, SECONDS_RANDOM), soak is scripts/soak.sh
# (MINUTES: 9, JOBS: how many of each kind at a time, SEED), speed that of scripts/speed.sh,
# compare measures another build, which pack takes from build/before, against this one (ROUNDS,
# PARTS: of compare.sh). forger has a program forge the count of its GPU time (2.5 minutes), vars
# says where variables come out behind what takes memory for threads, managedrows compares
# programs of managed memory natively and under run, PyTorch's kin included (ROWS: which rows of
# scripts/compat), vmmanaged runs them in a VM, oversubscribe too, mostly has the table of
# read-mostly memory with and without duplicates and 8 GiB in turns, guestpages is the half of
# walls that takes seconds. Without a pack the programs are built there by the nvcc in PATH. Logs
# are left in $OUT (default /tmp/causeway-gpu). A short table comes last, and what the phases that
# were asked for say, which SHOW lists; the status is 0 if nothing failed. BUDGET: seconds for all
# of them: a phase that is still running then is ended, and none begins. ARCHIVE: a file to which
# $OUT goes at the end, for machines from which few files come back.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
cd "$ROOT" || exit 1
pack=$BUILD/gpu-pack.tar.xz
gpu=${GPU:-0}
kernel=${KERNEL:-6.12}

make_pack() {
  set -e
  scripts/setup.sh qemu
  make --no-print-directory build
  local p
  for p in compat:compat/run share:compat/share speed:compat/speed bench:bench streams:bench/streams; do
    CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$BUILD/bin/causeway-${p%%:*}" "./scripts/${p#*:}"
  done
  go test -c -trimpath -ldflags '-s -w' -o "$BUILD/bin/causeway-limits" ./host/device
  go build -trimpath -tags takeover -ldflags '-s -w' -o "$BUILD/bin/causeway-takeover" ./host/causeway
  go test -c -trimpath -ldflags '-s -w' -o "$BUILD/bin/causeway-cuda" ./host/driver/cuda
  for p in beside bench memory launches checkpoint delay onhost peer vars; do gcc -O2 -std=gnu11 -pthread "scripts/bench/probe/$p.c" -o "$BUILD/bin/$p" -ldl; done
  gcc -O1 -std=gnu11 scripts/guestpages/guestpages.c -o "$BUILD/bin/guestpages" -ldl
  local only=(); for p in ${VARIANTS:-}; do only+=(--only "$p"); done
  scripts/build-tests.sh "${only[@]}"
  scripts/bench/managed.sh --build
  scripts/qemu-bundle.sh
  images/build-initramfs.sh "$kernel" "$BUILD/images/base-$kernel.cpio"
  scripts/migrate.sh --kernel "$kernel" --make-image "$BUILD/images/migrate-$kernel.cpio"
  local parts=(bin/causeway bin/causeway-{bench,compat,cuda,limits,share,speed,streams,takeover} bin/{beside,bench,checkpoint,delay,guestpages,launches,managed,memory,onhost,peer,vars} lib tests)
  [ -n "${NO_VM:-}" ] || parts+=(qb tools images/{base,migrate}-"$kernel.cpio" "kernels/$kernel")
  [ ! -x "$BUILD/before/bin/causeway" ] || parts+=(before)
  say "packing $(du -shc --apparent-size "${parts[@]/#/$BUILD/}" | tail -1 | cut -f1)"
  # tests/obj and the stub are for linking only, nfpm makes packages.
  local without=(--exclude tests/obj --exclude tests/stubs --exclude tools/nfpm) v
  for v in "$BUILD"/tests/*-{static,shared}; do
    [[ -z ${VARIANTS:-} || " $VARIANTS " = *" ${v##*/} "* ]] || without+=(--exclude "tests/${v##*/}")
  done
  tar c --sort=name -C "$BUILD" "${without[@]}" "${parts[@]}" |
    xz --lzma2="preset=${PRESET:-6},dict=256MiB" >"$pack.new" # programs repeat their static runtimes, far apart
  mv "$pack.new" "$pack"
  cksum <"$pack" >"$BUILD/.unpacked" # a phase that is tried here has it
  local size; size=$(stat -c %s "$pack")
  say "$pack: $(numfmt --to=iec "$size")"
  [ "$size" -lt $((60 << 20)) ] || die "the pack is over 60 MiB"
}

if [ "${1:-}" = pack ]; then make_pack; exit; fi

out=${OUT:-/tmp/causeway-gpu}
mkdir -p "$out"
trap stop_service EXIT
trap 'exit 130' INT TERM

# What was built here after a pack is not overwritten by it.
if [ -f "$pack" ] && [ ! "$CAUSEWAY" -nt "$pack" ] && [ "$(cat "$BUILD/.unpacked" 2>/dev/null)" != "$(cksum <"$pack")" ]; then
  say "unpacking $pack"
  tar xJf "$pack" -C "$BUILD" || die "$pack is damaged: run scripts/h200.sh pack again"
  cksum <"$pack" >"$BUILD/.unpacked"
fi
[ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run scripts/h200.sh pack where there is a network, and bring build/gpu-pack.tar.xz"
if ! compgen -G "$BUILD/tests/*-static/vectoradd" >/dev/null; then
  have nvcc || die "no test programs and no nvcc: run scripts/h200.sh pack elsewhere first"
  v=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  say "building the programs with this machine's nvcc $v"
  scripts/build-tests.sh --jobs 8 --only "$v-static" --nvcc "$v=$(command -v nvcc)" || die "building the test programs failed"
fi

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >"$out/gpu.txt" 2>&1
say "GPU: $(head -1 "$out/gpu.txt")"

single=() # what one GPU cannot run
[ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" -gt 1 ] || single=(--may-skip "peer managedpeers")

phase_native() { scripts/run-tests.sh --label native --logs "$out/native" "${single[@]}"; }
phase_run() { scripts/run-tests.sh --label run --logs "$out/run" "${single[@]}" --runner "$CAUSEWAY run --gpu $gpu --"; }
phase_soft() { scripts/run-tests.sh --label soft --logs "$out/soft" --runner "$CAUSEWAY run --gpu soft --"; }

phase_vm() {
  local dir rc=0
  dir=$(mktemp -d)
  (
    trap 'stop_service; rm -rf "$dir"' EXIT
    start_device "$dir/vm.sock" "$out/device.log" --gpu "$gpu" --memory 16GiB
    export QEMU=${QEMU:-$BUILD/qb/qemu}
    scripts/run-tests.sh --label vm --logs "$out/vm" "${single[@]}" --vm "$kernel" --socket "$dir/vm.sock"
  ) || rc=1
  return $rc
}

phase_vmtorch() {
  local program=$ROOT/scripts/compat/vm/torch_small.py
  export QEMU=${QEMU:-$BUILD/qb/qemu}
  PYTHONPATH=$ROOT/scripts/compat/lib python3 "$program" | tee "$out/vmtorch.native" || return
  scripts/compat/vm/run.sh --gpu "$gpu" --timeout "${VM_TIMEOUT:-540}" ${THP:+--thp "$THP"} "$program" | tee "$out/vmtorch.vm" || return
  diff <(grep -v '^#' "$out/vmtorch.native") <(grep -v '^#' "$out/vmtorch.vm") && echo "vmtorch: 1 passed, 0 failed"
}

# Copies in VMs with 2 and 4 CPUs, the guest's huge pages on and off, by each way that pageable
# memory can travel.
phase_vmcopy() {
  local dir cpus rc=0
  [ -x "$BUILD/bin/bench" ] || gcc -O2 -std=gnu11 scripts/bench/probe/bench.c -o "$BUILD/bin/bench" -ldl || return 3
  dir=$(mktemp -d)
  (
    trap 'stop_service; rm -rf "$dir"' EXIT
    start_device "$dir/vm.sock" "$out/vmcopy-device.log" --gpu "$gpu"
    export QEMU=${QEMU:-$BUILD/qb/qemu}
    : >"$out/vmcopy.lines"
    for cpus in ${VM_CPUS:-2 4}; do
      scripts/vm.sh --kernel "$kernel" --socket "$dir/vm.sock" --mem 2G --smp "$cpus" --timeout 95 --quiet --file "$BUILD/bin/bench" \
        --file scripts/bench/vmcopy.sh -- sh /app/vmcopy.sh "$((${COPY_MIB:-64} << 20))" >"$dir/lines" || { cat "$dir/lines"; exit 1; }
      tee -a "$out/vmcopy.lines" <"$dir/lines"
    done
  ) || rc=$?
  return $rc
}

phase_compat() {
  "$BUILD/bin/causeway-compat" --gpu "$gpu" --tests "$BUILD/tests/13.0-static" --logs "$out/compat" --markdown "$out/COMPATIBILITY.md"
}

phase_speed() { scripts/speed.sh --gpu "$gpu" --no-bench --markdown "$out/speed.md"; }

# A vGPU's memory limit against NVML's account: sessions of simulated VMs allocate in every way
# until there is no room.
phase_limits() {
  [ -x "$BUILD/bin/causeway-limits" ] || { echo "limits: build/bin/causeway-limits is not in the pack"; return 3; }
  local rc=0
  (cd /tmp && CAUSEWAY_TEST_GPU=cuda timeout 85 "$BUILD/bin/causeway-limits" -test.run '^TestLimitsOnGPU$' -test.v) | grep -v level= || rc=1
  return $rc
}

# Suspending and resuming a session beside the driver's own checkpoint of a process, with as much
# memory (GIB: how much, each in turn); then a program goes from this GPU to another and back, if
# there is one, and says how long it stood still.
phase_overcommit() {
  [ -x "$BUILD/bin/checkpoint" ] || { echo "overcommit: build/bin/checkpoint is not in the pack"; return 3; }
  local rc=0 gib
  # shellcheck disable=SC2086 # a list
  for gib in ${GIB:-1 8 32}; do
    echo "driver, $gib GiB: $(timeout 120 "$BUILD/bin/checkpoint" "$gib" 2>&1)"
    (cd /tmp && CAUSEWAY_TEST_GPU=${gpu/#[0-9]*/cuda} CAUSEWAY_TEST_BYTES=$((gib << 30)) timeout 120 "$BUILD/bin/causeway-limits" -test.run '^TestSuspendOnGPU$' -test.v) >"$out/suspend-$gib.log" 2>&1 || rc=1
    grep -E '^ +suspend_gpu_test|^--- |^panic' "$out/suspend-$gib.log" | sed "s/^/causeway, $gib GiB: /"
  done
  phase_between || rc=$?
  return $rc
}

# A program whose memory goes ahead of it to another device process on the same GPU (GIB: how much,
# each in turn): how long it stands still, and that nothing of it waits in host memory. Before that,
# what it costs a program of the bare driver that a thread of its process reads and sums up, by each
# way to do so.
phase_ahead() {
  [ -x "$BUILD/bin/causeway-limits" ] || { echo "ahead: build/bin/causeway-limits is not in the pack"; return 3; }
  local rc=0 gib
  [ ! -x "$BUILD/bin/beside" ] || timeout 60 "$BUILD/bin/beside" | tee "$out/beside.lines" || rc=1
  (cd /tmp && CAUSEWAY_TEST_GPU=${gpu/#[0-9]*/cuda} timeout 60 "$BUILD/bin/causeway-limits" -test.timeout 50s -test.run '^Test(PreCopy|Servers)OnGPU$' -test.v) >"$out/ahead.log" 2>&1 || rc=1
  grep -E '^ +gpu_(move|servers)_test|^--- |^panic|rehearsed at|be rebuilt' "$out/ahead.log"
  # shellcheck disable=SC2086 # a list
  for gib in ${GIB:-1 8 32}; do
    (cd /tmp && CAUSEWAY_TEST_GPU=${gpu/#[0-9]*/cuda} CAUSEWAY_TEST_BYTES=$((gib << 30)) timeout 120 "$BUILD/bin/causeway-limits" -test.timeout 110s -test.run '^TestAheadOnGPU$' -test.v) >"$out/ahead-$gib.log" 2>&1 || rc=1
    grep -E '^ +ahead_gpu_test|^--- |^panic' "$out/ahead-$gib.log" | sed "s/^/$gib GiB: /"
  done
  return $rc
}

phase_between() { scripts/moves.sh --gpu "$gpu" --out "$out/moves.d" between; }

# What the other build does otherwise by more than 2 %; all of it in $OUT/compare.all.
phase_compare() {
  scripts/bench/compare.sh --gpu "$gpu" --rounds "${ROUNDS:-3}" ${PARTS:+--parts "$PARTS"} >"$out/compare.all" || return
  awk 'NR == 1 { print; next } { r = $2 ~ /\/s/ ? $5 : 1 / $5; if (r < 0.98) { worse++; print "worse  " $0 } else if (r > 1.02) better++; else same++ }
    END { print worse + 0 " worse by more than 2 %, " better + 0 " better, " same + 0 " within" }' "$out/compare.all"
}
# Where variables come out behind what takes local memory for threads, or could stand for it.
phase_vars() {
  [ -x "$BUILD/bin/vars" ] || { echo "vars: build/bin/vars is not in the pack"; return 3; }
  local run=()
  [[ $gpu != soft* ]] || run=("$CAUSEWAY" run --gpu "$gpu" --)
  timeout 90 "${run[@]}" "$BUILD/bin/vars" local
}
phase_guestpages() { scripts/guestpages.sh; }

# A program that forges the count of its GPU time, beside an honest one and under a cap, and what
# the driver's own account says of both.
phase_forger() {
  [ -x "$BUILD/bin/causeway-limits" ] || { echo "forger: build/bin/causeway-limits is not in the pack"; return 3; }
  local rc=0
  (cd /tmp && CAUSEWAY_TEST_GPU=${gpu/#[0-9]*/cuda} timeout 240 "$BUILD/bin/causeway-limits" -test.timeout 230s -test.run '^TestForgerOnGPU$' -test.v) >"$out/forger.log" 2>&1 || rc=1
  sed -n 's/^ *forger_[a-z_]*\.go:[0-9]*: *//p; s/^ *[a-z_]*_test\.go:[0-9]*: time=[^ ]* level=WARN msg=/  /p; /^--- /p; /^panic/p' "$out/forger.log" | cut -c1-260
  return $rc
}

rows_of_managed='managed|oversubscribe|promises'
# Rows of the compatibility table, natively and under run.
phase_managedrows() {
  python3 -c 'import numba' 2>/dev/null || echo "there is no numba here"
  "$BUILD/bin/causeway-compat" --gpu "$gpu" --tests "$BUILD/tests/13.0-static" --only "${ROWS:-$rows_of_managed}" --jobs 4 --logs "$out/managedrows" --markdown "$out/COMPATIBILITY.md"
}
# Its programs in a VM. One takes what the GPU has, less than there is room for at a time, and more
# than once the memory of both.
phase_vmmanaged() {
  local dir rc=0 programs=(promises oversubscribe) p over=${OVER:-16 1536}
  for p in "$BUILD"/tests/13.0-static/managed*; do programs+=("${p##*/}"); done
  [[ $gpu != soft* ]] || over=${OVER:-1 840}
  dir=$(mktemp -d)
  (
    trap 'stop_service; rm -rf "$dir"' EXIT
    start_device "$dir/vm.sock" "$out/vmmanaged-device.log" --gpu "$gpu" --memory 8GiB
    export QEMU=${QEMU:-$BUILD/qb/qemu} VM_MEM=${VM_MEM:-3G} VM_TIMEOUT=${VM_TIMEOUT:-300}
    scripts/run-tests.sh --label vmmanaged --logs "$out/vmmanaged" --may-skip "managedpeers" --variants 13.0-static --args "oversubscribe $over" --vm "$kernel" --socket "$dir/vm.sock" "${programs[@]}"
  ) || rc=1
  return $rc
}
# What is read alone and by both, with and without duplicates, and the largest size of managed
# memory in turns.
phase_mostly() {
  local rc=0 on
  for on in 1 0; do
    echo "# duplicates: $on"
    CAUSEWAY_MANAGED_DUPLICATES=$on scripts/bench/managed.sh --gpu "$gpu" --rounds "${ROUNDS:-3}" table || rc=1
  done
  [ "${LARGE:-8192}" = 0 ] || scripts/bench/managed.sh --gpu "$gpu" --rounds "${ROUNDS:-3}" "turns:${LARGE:-8192}" || rc=1
  return $rc
}
phase_share() { scripts/share.sh --gpu "$gpu"; }
phase_sandbox() { scripts/sandbox.sh --gpu "$gpu"; }

phase_walls() {
  scripts/guestpages.sh || return 1
  local rc=0
  scripts/ioctls.sh --gpu "$gpu" || rc=$?
  cp "$BUILD/logs/ioctls/met" "$out/ioctls.met" 2>/dev/null
  return $rc
}
# shellcheck disable=SC2086 # items are words
phase_moves() { scripts/moves.sh --gpu "$gpu" --out "$out/moves.d" ${MOVES:-}; }

# A VM with programs on this GPU moves between two QEMUs.
# shellcheck disable=SC2086 # phases are words
phase_vmmove() {
  export QEMU=${QEMU:-$BUILD/qb/qemu}
  local rc=0
  timeout -k 10 "${VMMOVE_TIMEOUT:-280}" scripts/migrate.sh --gpu "$gpu" --kernel "$kernel" --image "$BUILD/images/migrate-$kernel.cpio" --warm "${WARM:-1}" ${VMMOVE:-idle move pause file move} || rc=$?
  mkdir -p "$out/vmmove.d" && cp "$BUILD"/logs/migrate/*/* "$out/vmmove.d/"
  awk -f scripts/lib/arrivals.awk "$out"/vmmove.d/device-*.log | tee "$out/vmmove.d/arrivals" | grep -A 12 'loaded a VM' # where the pause went
  return $rc
}
# PyTorch trains in a VM that moves between two QEMUs and, beside it, bare and moved in all ways
# that it allocates and launches: losses are those of unmoved runs.
phase_torchmove() {
  local rc=0 vm
  export QEMU=${QEMU:-$BUILD/qb/qemu} PYTHONDONTWRITEBYTECODE=1
  timeout -k 10 "${TORCHMOVE_TIMEOUT:-340}" scripts/migrate.sh --gpu "$gpu" --kernel "$kernel" --image "$BUILD/images/migrate-$kernel.cpio" --warm 1 train >"$out/torchmove.vm" 2>&1 & vm=$!
  nice -n 10 scripts/moves.sh --gpu "$gpu" --out "$out/moves.d" training || rc=$?
  wait $vm || rc=$?
  cat "$out/torchmove.vm"
  mkdir -p "$out/torchmove.d" && cp "$BUILD"/logs/migrate/train/* "$out/torchmove.d/"
  return $rc
}
# Programs of a VM move between two GPU servers of this machine, both with this GPU (SERVERS_GPU:
# 0,1 for one each), there, back and there; SERVERS: the phases, MODES: the programs of rounds.
# shellcheck disable=SC2086 # phases are words
phase_servers() {
  export QEMU=${QEMU:-$BUILD/qb/qemu}
  local rc=0
  LARGE=${LARGE:-4096} timeout -k 10 "${SERVERS_TIMEOUT:-280}" scripts/remote.sh --here --gpu "${SERVERS_GPU:-$gpu}" --kernel "$kernel" --image "$BUILD/images/migrate-$kernel.cpio" ${SERVERS:-serversvm serverslarge} || rc=$?
  mkdir -p "$out/servers.d" && cp -r "$BUILD"/logs/remote-gpus/* "$out/servers.d/"
  return $rc
}
phase_node() { scripts/node.sh --gpu "$gpu" --fault "$(ls -d "$BUILD"/tests/*-static | tail -1)/faults oob"; }

# Launches from several threads natively and by the number of lanes, and where the time goes.
phase_lanes() {
  local n probe=$BUILD/bin/launches
  scripts/bench/profile.sh --gpu "$gpu" --out "$out/profile" >"$out/profile.txt" || return
  echo "native: $("$probe" through | tr '\n' ';')"
  for n in 8 6 4 3 2 0; do echo "$n submitters: $(CAUSEWAY_SUBMITTERS=$n "$CAUSEWAY" run --gpu "$gpu" -- "$probe" through | tr '\n' ';')"; done
}

# What calls and starts cost by sandbox and by where the program and its worker run. After # each
# start in ms: the first of a vGPU compiles the probe's PTX, those after it, and so the medians,
# find it compiled where workers have a cache (not in mode strict).
phase_costs() {
  local probe=$BUILD/bin/launches mode cpus p
  for p in launches pairs; do gcc -O2 -std=gnu11 -pthread "scripts/bench/probe/$p.c" -o "$BUILD/bin/$p" -ldl || return 3; done
  line() { printf '%-34s %s\n' "$1" "$("${@:2}" 2>/dev/null | tr '\n' ';')"; }
  line "round trips between CPUs" "$BUILD/bin/pairs"
  line "bare driver: calls" "$probe" calls
  for mode in off on strict; do
    line "sandbox $mode: calls" "$CAUSEWAY" run --gpu "$gpu" --sandbox "$mode" -- "$probe" calls
    line "sandbox $mode: starts" "$CAUSEWAY" run --gpu "$gpu" --warm 1 --sandbox "$mode" -- "$probe" start 5 1500
    line "sandbox $mode: cold starts" "$CAUSEWAY" run --gpu "$gpu" --warm 0 --sandbox "$mode" -- "$probe" start 5 100
  done
  for cpus in 0-1 0,2 0,4 0,8 0-15; do
    line "CPUs $cpus: calls" taskset -c "$cpus" "$CAUSEWAY" run --gpu "$gpu" -- "$probe" calls
  done
}

# A GPU server and a host with a lease of it over loopback and TLS: calls, copies, PyTorch's
# training step and decoding (COPY: the largest copy in MiB, ONLY: which programs; none: without
# PyTorch), by turns for each number of connections beside the first (CONNECTIONS: "0 4 0 4"), of
# which 0 has copies go with the calls.
phase_remote() {
  local n status=0 torch=(--torch)
  [ "${ONLY:-}" != none ] || torch=()
  for n in ${CONNECTIONS:-0 4 0 4}; do
    echo "# copy_connections = $n"
    scripts/bench/remote.sh --gpu "$gpu" --copy "${COPY:-1024}" --connections "$n" "${torch[@]}" ${torch:+${ONLY:+--only "$ONLY"}} || status=1
    torch=() # programs once: what differs is copies
  done
  return $status
}

# phase_far: programs over a link that takes longer, each way; the first delay has all programs, the
# others what FAR names.
phase_far() {
  local us status=0 only=${ONLY:-'train.py|decode.py (eager|graphed)|small.py|weights.py'}
  for us in ${DELAYS:-20 50 200}; do
    echo "# a link of $us us more each way"
    scripts/bench/remote.sh --gpu "$gpu" --delay "$us" --no-calls --torch --only "$only" || status=1
    only=${FAR:-'train.py|decode.py graphed'}
  done
  return $status
}
# Managed memory in turns, native beside Causeway: never more of it than the card has free.
phase_managed() { scripts/bench/managed.sh --gpu "$gpu" --link; }

phase_managedways() {
  # shellcheck disable=SC2086 # ways are words
  scripts/managed.sh --gpu "$gpu" --seconds "${SECONDS_RANDOM:-60}" ${MEASURE:+--measure "$MEASURE"} ${WAYS:-}
}
phase_soak() { scripts/soak.sh --gpu "$gpu" --minutes "${MINUTES:-9}" --jobs "${JOBS:-4}" --seed "${SEED:-1}" --logs "$out"; }

phase_bench() {
  [ -x "$BUILD/bin/causeway-bench" ] || { echo "bench: build/bin/causeway-bench is not in the pack"; return 3; }
  "$BUILD/bin/causeway-bench" | tee "$out/bench.txt"
  return "${PIPESTATUS[0]}"
}

# differences lists programs whose compared lines differ from the native ones although both passed
# or failed alike.
differences() {
  local other f rel
  for other in run soft vm; do
    [ -d "$out/native" ] && [ -d "$out/$other" ] || continue
    for f in "$out"/native/*/*.got; do
      rel=${f#"$out"/native/}
      [ -f "$out/$other/$rel" ] && ! cmp -s "$f" "$out/$other/$rel" && echo "differs from native: $other ${rel%.got}"
    done
  done
}

# run_phase PHASE, within the budget if there is one: by a child that can be ended with all that it
# started.
run_phase() {
  [ -n "${BUDGET:-}" ] || { "phase_$1"; return; }
  local left=$((BUDGET - SECONDS))
  [ $left -ge 5 ] || return 124
  BUDGET='' ARCHIVE='' PHASE=$1 timeout -k 5 $left "$0" "$1"
}
if [ -n "${PHASE:-}" ]; then "phase_$PHASE"; exit; fi

[ $# -gt 0 ] || set -- native run soft vm bench
failed=0
table=()
for p in "$@"; do
  declare -F "phase_$p" >/dev/null || die "unknown phase $p"
  say "phase $p"
  start=$SECONDS rc=0
  run_phase "$p" >"$out/$p.txt" 2>&1 || rc=$?
  case $rc in 0) word=passed ;; 3) word='not run' ;; 124 | 137) word='NO TIME' failed=1 ;; *) word=FAILED; failed=1; grep -v '^vm: ' "$out/$p.txt" | tail -25 ;; esac
  table+=("$(printf '%-8s %-8s %4d s  %s' "$p" "$word" $((SECONDS - start)) "$(grep -E 'passed, .* failed|not in the pack' "$out/$p.txt" | tail -1)")")
done
echo
head -1 "$out/gpu.txt"
printf '%s\n' "${table[@]}"
differences | tee "$out/differences.txt"
for p in bench soak; do [ ! -s "$out/$p.txt" ] || cat "$out/$p.txt"; done
for p in ${SHOW:-}; do
  [ ! -s "$out/$p.txt" ] || { echo "== $p"; grep -vE '^(vm:|bench:|\[ *[0-9]+s\])' "$out/$p.txt" | tail -n 36 | cut -c1-200; }
done
[ -z "${ARCHIVE:-}" ] || { find "$out" -type s -delete; tar cJf "$ARCHIVE" -C "$(dirname "$out")" "$(basename "$out")"; }
exit $failed
