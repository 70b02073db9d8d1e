# The stages of test.sh, one function each: sourced after common.sh and device.sh. Sets nothing but
# functions, and tags. A stage prints to its log; what it ends with "N passed, M failed" stands in
# the table of results.

tags=libvirt_dlopen # as the Makefile builds; lint vets what is built without it too
may_skip="cubemap greenctx managedpeers peer sparse" # what the software GPU cannot do
jobs=$(nproc)

# What has to be there before anything is compiled, then all else: the second only waits for the
# network.
stage_base() { scripts/setup.sh base; }
stage_setup() { scripts/setup.sh all; }

stage_lint() {
  local bad=0 unformatted
  # As the program is built, so that this and the build compile everything once, wherever the tree
  # lies.
  export GOFLAGS="${GOFLAGS:-} -trimpath"
  unformatted=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 gofmt -l)
  [ -z "$unformatted" ] || { echo "not formatted (gofmt -w): $unformatted"; bad=1; }
  c_is_formatted || bad=1
  in_this_tree go vet ./... || bad=1
  in_this_tree go vet -tags "$tags" ./host/libvirt/... ./host/causeway || bad=1
  in_this_tree go run honnef.co/go/tools/cmd/staticcheck -tags "$tags" ./... || bad=1
  go run ./scripts/lint || bad=1
  GOPROXY=off go mod tidy -diff || { echo "go.mod is not tidy (go mod tidy)"; bad=1; }
  bash -n scripts/*.sh scripts/lib/*.sh scripts/package/*.sh images/*.sh || bad=1
  rows_keep_status || bad=1
  generated_is_current || bad=1
  return $bad
}

# rows_keep_status looks for rows of guest.sh's whose text runs a command: its status takes the
# place of that which the row is to judge.
rows_keep_status() {
  local bad
  bad=$(grep -l 'lib/guest\.sh' scripts/*.sh scripts/*/*.sh | xargs grep -nHE '\brow "' scripts/lib/{guest,faults,rounds,train}.sh | sed -E 's/^([^:]*:[0-9]+):.*\brow (".*)/\1: row \2/; s/ \|\| .*//; s/\$\((keep |said\)|\()//g' | grep -F '$(')
  [ -z "$bad" ] || { printf 'these rows always pass, say $(keep COMMAND):\n%s\n' "$bad"; return 1; }
}

# c_sources lists the C that people write: no generator's, not the headers of CUDA programs, which
# are C++, and no probe that prints a report.
c_sources() { git ls-files -z --cached --others --exclude-standard '*.c' '*.h' | grep -zvE '/(gen|testdata)/|^guest/tests/[^/]*\.h$|^scripts/(compat|guestpages)/'; }

# c_is_formatted holds it against .clang-format, by the version that is pinned: others differ.
c_is_formatted() {
  [ -x "$CLANG_FORMAT" ] || scripts/setup.sh clang-format || return
  c_sources | xargs -0 "$CLANG_FORMAT" --dry-run -Werror || { echo "not formatted: run make format"; return 1; }
}

# in_this_tree COMMAND... runs a tool that reads the sources that cgo wrote, and through them ours
# by their path. Under -trimpath Go's cache hands out those of another tree, perhaps a deleted one;
# a flag that names this tree, and means nothing to C, keeps the few packages with cgo apart.
in_this_tree() { CGO_CPPFLAGS="${CGO_CPPFLAGS:-} -DTREE=$(cksum <<<"$ROOT" | cut -d' ' -f1)" "$@"; }

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

# stage_alerts checks the rules and runs their tests; the names are compared by scripts/grafana's
# own test.
stage_alerts() {
  scripts/setup.sh promtool || return
  local promtool; promtool=$(command -v promtool || echo "$BUILD/promtool/promtool")
  "$promtool" check rules scripts/prometheus/*.rules.yml && "$promtool" test rules scripts/prometheus/test/*.yml
}

stage_build() { make --no-print-directory -j "$jobs" build; }

# unit_tests PACKAGE... under the race detector. lint has vetted them; debug information is what
# linking spends its time on, and neither a failure's stack nor the detector's needs it. Most
# packages wait more than they compute, so more run at once than there are CPUs; with -trimpath they
# are compiled once on a machine, wherever the tree lies, and -count=1 runs them all the same.
# host/device takes 40 s of CPU time in user mode and as much in the kernel, and took more than 300
# s at low priority on a machine with other things to do.
unit_tests() {
  local out=$logs/unit-output.log rc
  go test -race -trimpath -count=1 -p $((2 * jobs)) -vet=off -ldflags=-w -tags "$tags" -timeout 600s "$@" 2>&1 | tee "$out"
  rc=${PIPESTATUS[0]}
  [ "$rc" = 0 ] || failed_tests "$out"
  rm -f "$out"
  return "$rc"
}

# failed_tests OUTPUT repeats which tests failed, with what each says of it: among all that a
# package printed they are not found, least of all where only the end of a log is shown. The last
# lines are of packages that panicked or ran out of time: which test hung, and where.
failed_tests() {
  echo "failed tests:"
  awk -f "$ROOT/scripts/lib/failures.awk" "$1"
}

stage_unit() { unit_tests ./...; }

# The driver for Kubernetes, a module of its own: what lint and unit do for the rest. No race
# detector and no cgo, so that it is compiled once for this and the binary: Kubernetes calls it once
# at a time.
stage_fleet() {
  local bad=0 check
  check=$(go tool -n staticcheck) || return
  cd host/fleet || return
  export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath"
  go vet ./... || bad=1
  "$check" ./... || bad=1
  go mod tidy -diff || { echo "host/fleet/go.mod is not tidy (go mod tidy there)"; bad=1; }
  go test -count=1 -vet=off -ldflags=-w ./... || bad=1
  return $bad
}

# Kubernetes with two nodes on this machine, where its programs are (make kube); otherwise this
# skips, and says so. Each wait may be long: it ends when what is waited for is there.
stage_cluster() {
  local rc=0
  PATIENCE=${PATIENCE:-5} scripts/fleet.sh --short || rc=$?
  [ $rc = 77 ] || return $rc
}

# fuzz_packages MODULE... prints "DIR PACKAGE" of those with fuzz targets in the modules of these
# folders; of those alone with a target of which "PACKAGE TARGET" matches $fuzz_only, if that is
# set.
fuzz_packages() {
  local module
  for module; do
    (cd "$module" && go list -f '{{.Dir}} {{.ImportPath}}' ./...) || return
  done | while read -r dir pkg; do
    if grep -hos '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | sed "s|^func|$pkg|" | grep -qE "${fuzz_only:-.}"; then echo "$dir $pkg"; fi
  done
}

# fuzz_binary DIR PACKAGE compiles all targets of a package into one program, with the fuzzer's
# counters.
fuzz_binary() { (cd "$1" && go test -c -vet=off -ldflags=-w -fuzz=. -o "$BUILD/fuzz/${2//\//_}.test" .); }

# fuzz_targets prints DIR PACKAGE TARGET of all that fuzz_binary has compiled.
fuzz_targets() {
  local dir pkg t
  while read -r dir pkg <&3; do
    for t in $("$BUILD/fuzz/${pkg//\//_}.test" -test.list '^Fuzz'); do echo "$dir $pkg $t"; done
  done 3<"$BUILD/fuzz/packages"
}

# fuzz_one CACHE DIR PACKAGE TARGET, and prints what it said when it is over: others run beside it.
# On a loaded machine the fuzzer may call the end of the time itself a failure ("context deadline
# exceeded"): that alone, without an input that fails, is tried again.
fuzz_one() {
  local out=$BUILD/fuzz/${3//\//_}.$4.log verdict="FAILED: $3 $4" try
  for try in 1 2 3; do
    (cd "$2" && "$BUILD/fuzz/${3//\//_}.test" -test.paniconexit0 -test.run '^$' -test.fuzz "^$4\$" -test.fuzztime "${FUZZTIME:-3s}" \
      -test.fuzzminimizetime 10x -test.parallel 1 -test.fuzzcachedir "$1/$3" -test.timeout 300s) >"$out" 2>&1 && { verdict="ok $3 $4"; break; }
    grep -q 'context deadline exceeded' "$out" && ! grep -q 'Failing input' "$out" || break
    echo "$4: try $try ended by the clock only"
  done
  { cat "$out"; echo "$verdict"; } | flock "$BUILD/fuzz" cat
  rm "$out"
  case $verdict in ok*) ;; *) return 1 ;; esac
}

# stage_fuzzbuild [MODULE...]: the fuzz targets are compiled beside what needs none of them; those
# of other modules than this one, whose libraries take minutes to compile for it, only where they
# are asked for (scripts/fuzz.sh).
stage_fuzzbuild() {
  mkdir -p "$BUILD/fuzz"
  export -f fuzz_binary; export BUILD
  fuzz_packages "${@:-.}" >"$BUILD/fuzz/packages" && xargs -P "$jobs" -n 2 bash -c 'fuzz_binary "$@"' - <"$BUILD/fuzz/packages"
}

# fuzz each target for a short time, from its committed seeds: one takes one CPU.
stage_fuzz() {
  local n passed said=$BUILD/fuzz/said
  [ "${state[fuzzbuild]:-}" = passed ] || stage_fuzzbuild || return 1
  fuzz_targets >"$BUILD/fuzz/list"
  n=$(wc -l <"$BUILD/fuzz/list")
  export -f fuzz_one; export BUILD
  xargs -P "$jobs" -L 1 bash -c 'fuzz_one "$@"' - "$(go env GOCACHE)/fuzz" <"$BUILD/fuzz/list" | tee "$said"
  passed=$(grep -c '^ok ' "$said")
  echo "$n fuzz targets: $passed passed, $((n - passed)) failed"
  [ "$n" -gt 0 ] && [ "$passed" = "$n" ]
}

stage_clib() {
  local make=(make --no-print-directory -j "$jobs" OUT="$BUILD/lib")
  "${make[@]}" -C guest/libcuda test && "${make[@]}" -C guest/libcuda/api/tests && "${make[@]}" -C guest/libnvml test &&
    "${make[@]}" -C guest/tools test
}

# The programs are compiled, for each version of CUDA, beside what needs none of them.
stage_nvcc() { scripts/build-tests.sh --jobs "$jobs"; }

stage_programs() {
  scripts/build-tests.sh && scripts/run-tests.sh --label run --may-skip "$may_skip" --runner "$CAUSEWAY run --gpu soft --" &&
    scripts/run-tests.sh --label run-two --runner "$CAUSEWAY run --gpu soft:2 --" managedpeers managedvar peer twoproc vmm && at_gpu && faults && scripts/errors.sh
}

# at_gpu: what does not ask by itself for managed memory that lies at the GPU, where the software
# GPU's is elsewhere. Only root may have it everywhere.
at_gpu() {
  [ "$(id -u)" = 0 ] || return 0
  scripts/run-tests.sh --label run-at-gpu --runner "env CAUSEWAY_MANAGED=gpu $CAUSEWAY run --gpu soft --" managed managedload managedvar counters promises
}

# The back end for real drivers, which has our own library on the software GPU for its driver.
stage_nested() { scripts/nested.sh; }

# What programs see after faults, as a real driver's runs left it in guest/tests/faults. On that GPU
# a process whose context failed never works again; the software GPU recovers by cudaDeviceReset,
# and takes PTX of later versions. Where that can be, in a process namespace of its own: it looks
# for workers that are left, and other stages have some.
faults() {
  local apart=()
  [ "$(id -u)" != 0 ] || apart=(unshare --pid --fork --kill-child --mount-proc)
  "${apart[@]}" scripts/faults.sh --native table --runner "$CAUSEWAY run --gpu soft --" --until cudaDeviceReset --may-differ bad_images --life
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

# The same programs over TCP, and some of them through a relay with TLS (RELAY_PROGRAMS=all: all of
# them): nothing above the carrier may notice.
stage_remote() {
  local bad=0 dir programs at; at=$(own_loopback):7745
  local mapped="asynccopy clusters contexts cubemap devmalloc doorbell dynpar graphcapture graphnodes greenctx hopper hostfunc counters mapped parts nvml managedpeers peer rounds sparse tensorcore virtual"
  [ "$(id -u)" = 0 ] || mapped+=" managed managedcalls managedclauses managedclosed managedends managedhost managedload managedmostly managedpages managedpools managedrandom managedsignals managedthreads managedvar oversubscribe" # userfaultfd may be refused to others
  programs=${RELAY_PROGRAMS:-"copies errors fork modules pageable pinned printfmany procs streams threads twoproc uploads vectoradd"}
  [ "$programs" != all ] || programs=
  scripts/build-tests.sh || return 1
  (
    trap stop_service EXIT
    start_serve "$at" "$logs/serve.log" --gpu soft
    scripts/run-tests.sh --label tcp --variants "13.0-static 11.8-shared" --may-skip "$mapped" --runner "env CAUSEWAY=tcp://$at LD_LIBRARY_PATH=$BUILD/lib"
  ) || bad=1
  dir=$(mktemp -d)
  (
    trap 'stop_service; rm -rf "$dir"' EXIT
    start_serve "$at" "$logs/serve-lease.log" --gpu soft --lease "$dir/lease"
    # shellcheck disable=SC2086
    scripts/run-tests.sh --label relay --variants 13.0-static --may-skip "$mapped" --runner "$CAUSEWAY run --relay $dir/lease --" $programs
  ) || bad=1
  scripts/remote.sh || bad=1
  scripts/remote-page.sh || bad=1
  if [ "${RELAY_PROGRAMS:-}" = all ]; then scripts/relay-lost.sh || [ $? = 77 ] || bad=1; fi
  return $bad
}

# Stock kernels: each variant on one of them, a static and a shared one on each. The last has more
# managed memory at once than a process may lend to the GPU.
stage_vm() {
  local bad=0 k variants socket much
  scripts/build-tests.sh || return 1
  for k in 6.12 6.1 7.2; do
    case $k in
      6.12) much=() variants="11.8-static 12.9-shared" ;;
      6.1) much=() variants="13.0-static 11.8-shared" ;;
      7.2) much=(--args "oversubscribe 1 840") variants="12.9-static 13.0-shared" ;;
    esac
    socket=$(mktemp -d)/vm.sock
    (
      trap 'stop_service; rm -rf "$(dirname "$socket")"' EXIT
      start_device "$socket" "$logs/device-$k.log" --gpu soft --memory 4GiB
      scripts/run-tests.sh --vm "$k" --socket "$socket" --variants "$variants" --may-skip "$may_skip" "${much[@]}"
    ) || bad=1
  done
  scripts/create.sh || bad=1
  return $bad
}

stage_sessions() { scripts/sessions.sh && scripts/overcommit.sh; }

stage_libvirt() { scripts/libvirt.sh; }

# A VM that moves, is saved and restored while programs run: all of them in the first run, some in
# those about what fails and about libvirt. The second run moves it ten times in a row, the third
# eleven times in all.
stage_migrate() {
  local bad=0
  scripts/migrate.sh pause move || bad=1
  scripts/migrate.sh --modes "streams pinned handed" idle often file refused fail late faults || bad=1
  scripts/migrate-libvirt.sh --modes "streams pinned" ahead often document abort killed refuse remote || bad=1
  scripts/precopy.sh || bad=1
  return $bad
}

# A Debian guest with systemd that keeps its vGPU, and gives it to a container.
stage_guest() { scripts/guest.sh && scripts/errors.sh --vm; }

# What has an RDMA device or virtual functions only in a guest of its own, and a VM that moves with
# RDMA, which has neither.
stage_rdma() {
  local bad=0
  scripts/rdma.sh --check || bad=1
  scripts/verbs.sh --own vectoradd copies threads || bad=1
  scripts/remote.sh moverdma || bad=1
  scripts/vf.sh || bad=1
  return $bad
}

# GPU time shared by weight and cap, on the software GPU.
stage_share() { scripts/share.sh --gpu soft --lenient; }

stage_density() { scripts/density.sh --small; }

# The Debian package in a clean chroot; scripts/package/vm.sh and walkthrough.sh take longer.
stage_package() { scripts/package/test.sh; }
