#!/usr/bin/env bash
# Runs the CUDA test programs and compares what they print with guest/tests/expected.
#
#   scripts/run-tests.sh [options] [PROGRAM...]
#
#   --runner CMD        prefix for each program, e.g. "build/bin/causeway run --"; empty (default):
#                       the machine's own driver
#   --variants "V..."   e.g. "13.0-static 11.8-shared"; default: all that are built under
#                       build/tests
#   --vm SERIES         inside one VM with that kernel instead (VM_MEM: its memory), with --socket
#                       PATH of `causeway device`
#   --timeout SECONDS   for each program (default 240);  --logs DIR  (default build/test-logs/LABEL)
#   --may-skip "P..."   programs that may end with status 77 (not possible here); anywhere else that
#                       is a failure
#   --args "P ARG..."   what program P is given; may repeat
#   --again TEXT        a program that fails and says TEXT on stderr is run again, twice at most:
#                       what it met is a matter of luck
#   --label NAME        names the table (default: native, run or vm-SERIES)
#
# Lines that begin with '#' may differ between GPUs and are not compared. The exit status is 0 if
# nothing failed.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

runner= variants= vm= socket= limit=240 logs= label= may_skip= again=
programs=()
declare -A args_of=()
while [ $# -gt 0 ]; do
  case $1 in
    --runner) runner=$2; shift 2 ;;
    --variants) variants=$2; shift 2 ;;
    --vm) vm=$2; shift 2 ;;
    --socket) socket=$2; shift 2 ;;
    --timeout) limit=$2; shift 2 ;;
    --logs) logs=$2; shift 2 ;;
    --label) label=$2; shift 2 ;;
    --may-skip) may_skip=$2; shift 2 ;;
    --args) args_of[${2%% *}]=${2#* }; shift 2 ;;
    --again) again=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1" ;;
    *) programs+=("$1"); shift ;;
  esac
done
tests=$BUILD/tests
if [ ${#programs[@]} = 0 ]; then
  for f in "$ROOT"/guest/tests/expected/*.txt; do programs+=("$(basename "$f" .txt)"); done
fi
if [ -z "$variants" ]; then
  for d in "$tests"/*-static "$tests"/*-shared; do [ -d "$d" ] && variants+=" $(basename "$d")"; done
fi
[ -n "${variants// /}" ] || die "no test programs under build/tests: run scripts/build-tests.sh"
if [ -z "$label" ]; then
  label=native
  [ -z "$runner" ] || label=run
  [ -z "$vm" ] || label=vm-$vm
fi
logs=${logs:-$BUILD/test-logs/$label}
rm -rf "$logs"; mkdir -p "$logs"

now() { date +%s.%N; }

# run_here VARIANT PROGRAM leaves .out, .err, .rc and .time.
run_here() {
  local base=$logs/$1/$2 rc try start
  start=$(now)
  for try in 1 2 3; do
    rc=0
    # The runner is a command line: it is split on purpose, as arguments are.
    # shellcheck disable=SC2086
    timeout -k 5 "$limit" $runner "$tests/$1/$2" ${args_of[$2]:-} >"$base.out" 2>"$base.err" </dev/null || rc=$?
    [ $rc != 0 ] && [ -n "$again" ] && [ $try -lt 3 ] && grep -q "$again" "$base.err" || break
    say "$label: $1 $2 is run again: $(grep -m1 "$again" "$base.err" | cut -c1-160)"
  done
  echo "$rc" >"$base.rc"
  awk -v a="$start" -v b="$(now)" 'BEGIN {printf "%.1f", b - a}' >"$base.time"
}

# run_vm boots one VM for everything and splits its console into the same files.
run_vm() {
  local list=$logs/all.sh files=() v p so
  {
    echo '# Runs inside the guest: each program between two marks.'
    echo 'one() {'
    echo '  read -r start rest </proc/uptime'
    echo '  echo "@test begin $1 $2"'
    echo "  v=\$1 p=\$2; shift 2; timeout $limit /app/tests/\$v/\$p \"\$@\" 2>/tmp/err; rc=\$?"
    echo '  echo; sed "s/^/@test err /" /tmp/err'
    echo '  read -r end rest </proc/uptime'
    echo '  echo "@test end $rc $start $end"'
    echo '}'
  } >"$list"
  for v in $variants; do
    for so in "$tests/$v"/libcudart.so.*; do [ -f "$so" ] && files+=(--file "$so:/app/tests/$v/$(basename "$so")"); done
    for p in "${programs[@]}"; do
      [ -x "$tests/$v/$p" ] || continue
      files+=(--file "$tests/$v/$p:/app/tests/$v/$p")
      echo "one $v $p ${args_of[$p]:-}" >>"$list"
    done
  done
  local rc=0
  "$ROOT/scripts/vm.sh" --kernel "$vm" ${socket:+--socket "$socket"} ${VM_MEM:+--mem "$VM_MEM"} --timeout "${VM_TIMEOUT:-900}" \
    --file "$list:/app/all.sh" "${files[@]}" -- sh /app/all.sh >"$logs/console" || rc=$?
  # A program's last line may lack its newline, and the empty line before the marks is ours.
  awk -v dir="$logs" '
    /^@test begin / {base = dir "/" $3 "/" $4; out = base ".out"; err = base ".err"; n = 0; printf "" > out; printf "" > err; next}
    /^@test err / {if (base != "") print substr($0, 11) > err; next}
    /^@test end / {if (base == "") next
      if (n && line[n] == "") n--
      for (i = 1; i <= n; i++) print line[i] > out
      print $3 > (base ".rc"); printf "%.1f", $5 - $4 > (base ".time")
      close(out); close(err); close(base ".rc"); close(base ".time"); base = ""; next}
    base != "" {line[++n] = $0}
    END {if (base != "") {for (i = 1; i <= n; i++) print line[i] > out; print "VM ended" > (base ".rc")}}' "$logs/console"
  [ "$rc" = 0 ] || say "the VM ended with status $rc: see $logs/console"
}

for v in $variants; do mkdir -p "$logs/$v"; done
if [ -n "$vm" ]; then
  run_vm
else
  for v in $variants; do
    for p in "${programs[@]}"; do
      [ -x "$tests/$v/$p" ] || continue
      [ ! -t 2 ] || printf '\r%-40s' "$label: $v $p" >&2
      run_here "$v" "$p"
    done
  done
  [ ! -t 2 ] || printf '\r%-40s\r' '' >&2
fi

passed=0 failed=0 skipped=0 report=
# verdict VARIANT PROGRAM sets cell, and counts.
verdict() {
  local base=$logs/$1/$2 rc
  if [ ! -x "$tests/$1/$2" ]; then cell=-; skipped=$((skipped + 1)); return; fi
  rc=$(cat "$base.rc" 2>/dev/null || echo 'not run')
  if [ "$rc" = 77 ] && [[ " $may_skip " == *" $2 "* ]]; then cell=skipped; skipped=$((skipped + 1)); return; fi
  grep -v '^#' "$base.out" 2>/dev/null >"$base.got" || true
  if [ "$rc" = 0 ] && diff -u "$(expected "$1" "$2")" "$base.got" >"$base.diff" 2>&1; then
    passed=$((passed + 1)); cell=$(cat "$base.time" 2>/dev/null)s
    return
  fi
  failed=$((failed + 1)); cell=FAIL
  case $rc in 124 | 143) rc+=", no end within $limit s" ;; esac # busybox reports the signal
  report+="--- $label $1 $2: exit $rc"$'\n'
  report+=$(diff -u "$(expected "$1" "$2")" "$base.got" 2>&1 | sed -n '3,14p' || true)$'\n'
  report+=$(tail -3 "$base.err" 2>/dev/null | sed 's/^/stderr: /' || true)$'\n'
}

printf '%-12s' "$label"; for v in $variants; do printf ' %12s' "$v"; done; echo
for p in "${programs[@]}"; do
  printf '%-12s' "$p"
  for v in $variants; do verdict "$v" "$p"; printf ' %12s' "$cell"; done
  echo
done
[ -z "$report" ] || printf '%s\n' "$report" | sed '/^$/d'
echo "$label: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
