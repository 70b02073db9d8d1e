#!/usr/bin/env bash
# Sessions by RDMA, in a VM with soft RoCE (scripts/rdma.sh): what every carrier must do and faults over the real libibverbs, and CUDA programs through a relay.
#
#   scripts/verbs.sh [--kernel SERIES] [PROGRAM...]
#
# PROGRAMs are of guest/tests (default: a few). One line for each check, with the seconds that it took; the status is 0 if every check passed. It ends when everything was tried, or the guest has said nothing for
# ten minutes: an emulated guest beside other work takes what it takes.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

kernel=6.12 programs=()
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) programs+=("$1"); shift ;;
  esac
done
[ ${#programs[@]} -gt 0 ] || programs=(vectoradd copies errors modules pageable pinned streams threads uploads)
CAUSEWAY=$BUILD/bin/causeway
[ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
variant=13.0-static tests=$BUILD/tests
[ -d "$tests/$variant" ] || die "no test programs: run scripts/build-tests.sh"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-verbs.XXXXXX")
on_exit 'rm -rf "$tmp"'
go test -c -o "$tmp/ibv.test" ./remote/verbs/ibv
files=(--file "$tmp/ibv.test" --file "$CAUSEWAY" --file "$BUILD/lib/libcuda.so.1:/app/lib/libcuda.so.1" --file "$tests/$variant/rounds:/app/tests/rounds")
for p in "${programs[@]}"; do
  files+=(--file "$tests/$variant/$p:/app/tests/$p" --file "$(expected $variant "$p"):/app/expected/$p.txt")
done
"$ROOT/scripts/rdma.sh" --kernel "$kernel" --mem 1G --stall 600 "${files[@]}" -- "$ROOT/images/rdma-programs" "${programs[@]}"
