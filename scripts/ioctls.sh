#!/usr/bin/env bash
# Learns which ioctl(2) requests the driver of this machine's GPU makes, for
# host/sandbox/ioctls/BRANCH.list.
#
#   scripts/ioctls.sh [--gpu SEL] [--variants "V..."] [--compat] [--logs DIR] [--branch N] [--write]
#   [PROGRAM...]
#
# Runs the CUDA test programs (default: all of all variants), and with --compat the compatibility
# suite, with --sandbox audit, and adds up what each worker's auditor met; or with --logs what
# auditors wrote into the files *.log of a folder, as those of vGPUs with isolation.sandbox =
# "audit". Prints what the list of the driver's branch lacks, and what of it nobody asked for.
# --write writes the list anew from what was met, as confirmed; what was not met stays in it as a
# comment. Exit status 1: the list lacks something, or nothing was met.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
cd "$ROOT" || exit 1

gpu=auto variants= compat= write= logs= branch= programs=()
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --variants) variants=$2; shift 2 ;;
    --compat) compat=${COMPAT:-$BUILD/bin/causeway-compat}; shift ;;
    --logs) logs=$2; shift 2 ;;
    --branch) branch=$2; shift 2 ;;
    --write) write=1; shift ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1" ;;
    *) programs+=("$1"); shift ;;
  esac
done
out=$BUILD/logs/ioctls
rm -rf "$out"; mkdir -p "$out"

# audited: causeway, whose every run is an audit. What auditors say goes to files, so that programs
# print what they always do.
run_audited() {
  export IOCTLS_CAUSEWAY=${CAUSEWAY:-$BUILD/bin/causeway} IOCTLS_LOG=$out
  local audited=$out/causeway
  [ -x "$IOCTLS_CAUSEWAY" ] || die "$IOCTLS_CAUSEWAY is missing: run make build"
  cat >"$audited" <<'WRAPPER'
#!/usr/bin/env bash
[ "${1:-}" = run ] || exec "$IOCTLS_CAUSEWAY" "$@"
shift
exec "$IOCTLS_CAUSEWAY" run --sandbox audit "$@" 2> >(tee -a "$IOCTLS_LOG/$$.log" | grep -v 'msg="sandbox: ' >&2)
WRAPPER
  chmod 755 "$audited"
  scripts/run-tests.sh --runner "$audited run --gpu $gpu --lib $BUILD/lib --" ${variants:+--variants "$variants"} --label ioctls "${programs[@]}" || say "some programs fail under audit"
  if [ -n "$compat" ]; then
    "$compat" -causeway "$audited" || say "some programs of the suite fail under audit"
  fi
  sleep 2 # auditors outlive their workers by a second
}
if [ -n "$logs" ]; then cp "$logs"/*.log "$out"/ || die "no logs in $logs"; else run_audited; fi

[ -n "$branch" ] || branch=$(cut -d. -f1 /sys/module/nvidia/version 2>/dev/null) || die "no NVIDIA driver here: name one with --branch"
list=host/sandbox/ioctls/$branch.list
[ -f "$list" ] || { list=$out/empty; : >"$list"; }
cat "$out"/*.log 2>/dev/null | sed -n 's/.*msg="sandbox: ioctls".* met="\{0,1\}\([^"]*\)"\{0,1\}.*/\1/p' | tr ',' '\n' |
  awk 'NF == 4 {key = $1 " " $2 " " ($1 == "F" ? "*" : $3); n[key] += $4} END {for (k in n) print k, n[k]}' | sort >"$out/met"
[ -s "$out/met" ] || die "no auditor met anything: is it a real GPU?"
lost=$(cat "$out"/*.log | grep -c 'audit could not follow')
say "driver $branch: $(wc -l <"$out/met") kinds of requests, $(awk '{s += $4} END {print s}' "$out/met") in all; calls were lost $lost times"

# What every worker may ask is no driver's.
plain='^(T (1|19|27|33|80|81)) '
grep -vE "$plain" "$out/met" | cut -d' ' -f1-3 | sort >"$out/asked"
grep -vE '^(#|status|$)' "$list" | cut -d' ' -f1-3 | sort >"$out/listed"
echo "asked for, and not in the list:"
comm -23 "$out/asked" "$out/listed" | tee "$out/lacks" | sed 's/^/  /' | grep . || echo "  nothing"
echo "in the list, and not asked for:"
comm -13 "$out/asked" "$out/listed" | sed 's/^/  /' | grep . || echo "  nothing"

name() { awk -v t="$1" -v n="$2" '$1 == t && $2 == n {print $4; exit}' "$list"; }
if [ -n "$write" ]; then
  [ "$lost" = 0 ] || die "calls were lost: run fewer programs at a time, the list would have holes"
  new=host/sandbox/ioctls/$branch.list
  {
    echo "# ioctl(2) requests of a worker on NVIDIA driver $branch: type (a letter or a number), number, size of the argument (*: any), name."
    echo "# Met by scripts/ioctls.sh with driver $(cat /sys/module/nvidia/version 2>/dev/null || echo "$branch"). The direction bits do not count: the driver looks at none."
    echo "# It checks the sizes of type F itself."
    echo "status confirmed"
    echo
    while read -r type number size; do echo "$type $number $size $(name "$type" "$number")" | sed 's/ $//'; done <"$out/asked"
    comm -13 "$out/asked" "$out/listed" | while read -r type number size; do echo "# not met: $type $number $size $(name "$type" "$number")"; done
  } >"$out/new"
  cp "$out/new" "$new"
  say "wrote $new: build, and run scripts/sandbox.sh"
  exit 0
fi
[ ! -s "$out/lacks" ]
