#!/usr/bin/env bash
# Runs every test, stage by stage, and says how long each took.
#
#   scripts/test.sh [STAGE...]      stages: setup lint build unit fuzz clib programs smi nvrtc remote vm guest sessions libvirt share density package; all by default
#
# FUZZTIME (default 3s) is the time per fuzz target. Logs are under build/logs. The status is 0 if every stage passed.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
cd "$ROOT" || exit 1
logs=$BUILD/logs
tags=libvirt_dlopen # as the Makefile builds; lint vets what is built without it too
mkdir -p "$logs"
trap stop_service EXIT
trap 'exit 130' INT TERM

stage_setup() { scripts/setup.sh all; }

stage_lint() {
  local bad=0 unformatted
  unformatted=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 gofmt -l)
  [ -z "$unformatted" ] || { echo "not formatted (gofmt -w): $unformatted"; bad=1; }
  go vet ./... || bad=1
  go vet -tags "$tags" ./host/libvirt/... ./host/causeway || bad=1
  go run honnef.co/go/tools/cmd/staticcheck -tags "$tags" ./... || bad=1
  go run ./scripts/lint || bad=1
  GOPROXY=off go mod tidy -diff || { echo "go.mod is not tidy (go mod tidy)"; bad=1; }
  bash -n scripts/*.sh scripts/lib/*.sh scripts/package/*.sh images/*.sh || bad=1
  generated_is_current || bad=1
  alerts || bad=1
  return $bad
}

# alerts checks the rules and runs their tests; the names are compared by scripts/grafana's own test.
alerts() {
  scripts/setup.sh promtool || return
  local promtool; promtool=$(command -v promtool || echo "$BUILD/promtool/promtool")
  "$promtool" check rules scripts/prometheus/*.rules.yml && "$promtool" test rules scripts/prometheus/test/*.yml
}

# generated_is_current runs the generators on a copy of the tree and compares.
generated_is_current() {
  local copy=$BUILD/generated bad
  rm -rf "$copy"; mkdir -p "$copy"
  git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do [ -f "$f" ] && printf '%s\0' "$f"; done |
    tar c --null -T - | tar x -C "$copy"
  (cd "$copy" && go generate ./...) || { echo "go generate failed"; return 1; }
  bad=$(cd "$copy" && find . -type f | while read -r f; do cmp -s "$f" "$ROOT/$f" || echo "$f"; done)
  rm -rf "$copy"
  [ -z "$bad" ] || { echo "generated code is not current (make generate): $bad"; return 1; }
}

stage_build() { make --no-print-directory build; }

stage_unit() { go test -race -tags "$tags" -timeout 300s ./...; }

# fuzz_one PACKAGE TARGET. On a loaded machine go test may call the end of the time itself a failure ("context deadline
# exceeded"): that alone, without an input that fails, is tried again.
fuzz_one() {
  local out=$logs/fuzz-one.log try
  for try in 1 2 3; do
    go test -run '^$' -fuzz "^$2\$" -fuzztime "${FUZZTIME:-3s}" -fuzzminimizetime 10x "$1" 2>&1 | tee "$out"
    [ "${PIPESTATUS[0]}" != 0 ] || return 0
    grep -q 'context deadline exceeded' "$out" && ! grep -q 'Failing input' "$out" || return 1
    echo "try $try ended by the clock only"
  done
  return 1
}

# fuzz each target for a short time, from its committed seeds.
stage_fuzz() {
  local bad=0 pkg targets t n=0
  while read -r pkg; do
    [ -n "$pkg" ] || continue
    targets=$(go test -list '^Fuzz' "$pkg" | grep '^Fuzz')
    for t in $targets; do
      n=$((n + 1))
      fuzz_one "$pkg" "$t" || bad=1
    done
  done < <(go list -f '{{.Dir}} {{.ImportPath}}' ./... | while read -r dir pkg; do
    grep -lq '^func Fuzz' "$dir"/*_test.go 2>/dev/null && echo "$pkg"; done)
  echo "$n fuzz targets"
  return $bad
}

stage_clib() {
  make --no-print-directory -C guest/libcuda OUT="$BUILD/lib" test &&
    make --no-print-directory -C guest/libcuda/api/tests OUT="$BUILD/lib" &&
    make --no-print-directory -C guest/libnvml OUT="$BUILD/lib" test &&
    make --no-print-directory -C guest/tools OUT="$BUILD/lib" test
}

stage_programs() {
  scripts/build-tests.sh && scripts/run-tests.sh --label run --may-skip "cubemap greenctx peer sparse" --runner "$CAUSEWAY run --gpu soft --" &&
    scripts/run-tests.sh --label run-two --runner "$CAUSEWAY run --gpu soft:2 --" peer twoproc vmm && faults && scripts/errors.sh
}

# What programs see after faults, as a real driver's runs left it in guest/tests/faults. On that GPU a process whose context
# failed never works again; the software GPU recovers by cudaDeviceReset, and takes PTX of later versions.
faults() {
  scripts/faults.sh --native table --runner "$CAUSEWAY run --gpu soft --" --until cudaDeviceReset --may-differ bad_images --life
}

# The driver's nvidia-smi; a machine that cannot fetch it skips this, and says so.
stage_smi() {
  local rc=0
  scripts/setup.sh nvidia-smi || echo "nvidia-smi cannot be fetched"
  scripts/nvidia-smi.sh || rc=$?
  [ $rc = 77 ] && { echo "0 passed, 0 failed, 1 skipped: no nvidia-smi"; return 0; }
  return $rc
}

# NVRTC and the compile cache; a machine that cannot fetch it skips this, and says so.
stage_nvrtc() {
  local rc=0
  scripts/setup.sh nvrtc || echo "NVRTC cannot be fetched"
  scripts/nvrtc.sh || rc=$?
  [ $rc = 77 ] && { echo "0 passed, 0 failed, 1 skipped: no NVRTC"; return 0; }
  return $rc
}

# The same programs over TCP: nothing above the carrier may notice.
stage_remote() {
  local port=$((20000 + $$ % 20000)) rc=0
  (
    trap stop_service EXIT
    start_serve "$port" "$logs/serve.log" --gpu soft
    scripts/run-tests.sh --label tcp --variants "13.0-static 11.8-shared" --may-skip "asynccopy clusters cubemap devmalloc doorbell dynpar graphcapture graphnodes greenctx hopper hostfunc counters managed managedload managedvar mapped parts nvml peer sparse tensorcore virtual" \
      --runner "env CAUSEWAY=tcp://127.0.0.1:$port LD_LIBRARY_PATH=$BUILD/lib"
  ) || rc=1
  return $rc
}

# Stock kernels: each variant on one of them at least, static and shared ones on each.
stage_vm() {
  local bad=0 k variants socket
  for k in 6.12 6.1 7.2; do
    case $k in
      6.12) variants="11.8-static 13.0-static 11.8-shared 12.9-shared" ;;
      6.1) variants="13.0-static 11.8-shared" ;;
      7.2) variants="12.9-static 13.0-shared" ;;
    esac
    socket=$(mktemp -d)/vm.sock
    (
      trap 'stop_service; rm -rf "$(dirname "$socket")"' EXIT
      start_device "$socket" "$logs/device-$k.log" --gpu soft --memory 4GiB
      scripts/run-tests.sh --vm "$k" --socket "$socket" --variants "$variants" --may-skip "cubemap greenctx peer sparse"
    ) || bad=1
  done
  scripts/create.sh || bad=1
  return $bad
}

stage_sessions() { scripts/sessions.sh; }

stage_libvirt() { scripts/libvirt.sh; }

# A Debian guest with systemd that keeps its vGPU, and gives it to a container.
stage_guest() { scripts/guest.sh; }

# GPU time shared by weight and cap, on the software GPU.
stage_share() { scripts/share.sh --gpu soft --lenient; }

stage_density() { scripts/density.sh --small; }

# The Debian package in a clean chroot; scripts/package/vm.sh and walkthrough.sh take longer.
stage_package() { scripts/package/test.sh; }

# heartbeat says every 30 s what a stage is at; its own sleep ends with it.
heartbeat() {
  local nap
  trap 'kill "$nap" 2>/dev/null; exit' TERM
  while :; do
    sleep 30 >/dev/null 2>&1 & nap=$!
    wait "$nap"
    say "$1: $(tail -c 300 "$2" | tr '\r' '\n' | grep . | tail -1 | cut -c1-100)"
  done
}

results=()
failed=0
# run_stage NAME prints one line when it begins and one when it ends; output goes to a log, its end to the terminal.
run_stage() {
  local name=$1 start=$SECONDS log=$logs/$1.log rc=0 beat
  say "$name ..."
  heartbeat "$name" "$log" &
  beat=$!
  "stage_$name" >"$log" 2>&1 </dev/null || rc=$?
  kill "$beat" 2>/dev/null; wait "$beat" 2>/dev/null
  local took=$((SECONDS - start))
  if [ $rc = 0 ]; then
    say "$name: passed in $took s"
    results+=("$(printf '%-10s passed  %5d s  %s' "$name" "$took" "$(grep -E 'passed, .* failed|fuzz targets' "$log" | tail -1)")")
  else
    say "$name: FAILED in $took s; the end of $log:"
    grep -vE '^(ok|\?) ' "$log" | tail -40 >&2
    results+=("$(printf '%-10s FAILED  %5d s  see build/logs/%s.log' "$name" "$took" "$name")")
    failed=1
  fi
  return $rc
}

[ $# -gt 0 ] || set -- setup lint build unit fuzz clib programs smi nvrtc remote vm guest sessions libvirt share density package
for s in "$@"; do
  declare -F "stage_$s" >/dev/null || die "unknown stage $s"
  # Nothing can work after a failed set-up or build.
  run_stage "$s" || case $s in setup | build) break ;; esac
done
echo
printf '%s\n' "${results[@]}"
if [ $failed = 0 ]; then echo "all passed in $SECONDS s"; else echo "FAILED after $SECONDS s"; fi
exit $failed
