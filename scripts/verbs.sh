#!/usr/bin/env bash
# Sessions by RDMA, in a VM with soft RoCE (scripts/rdma.sh): what every carrier must do, through a
# relay and by the guest library itself, and faults over the real libibverbs; and CUDA programs both
# ways.
#
#   scripts/verbs.sh [--own | --pairs N] [--kernel SERIES] [PROGRAM...]
#
# --pairs: copies of the programs go by so many queue pairs. --own: that suite by the guest library,
# too, and the first program as the RDMA end itself: half as long again. PROGRAMs are of guest/tests
# (default: a few); the first has to copy memory of cudaMalloc's, which is what the server's adapter
# is told of. One line for each check, with the seconds that it took; the status is 0 if every check
# passed. It ends when everything was tried, or the guest has said nothing for ten minutes: an
# emulated guest beside other work takes what it takes.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/rdma.sh"

own=() pairs=()
case ${1:-} in
  --own) own=(--own); shift ;;
  --pairs) pairs=(--pairs "$2"); shift 2 ;;
esac
rdma_options 7 "vectoradd copies errors managed modules pageable pinned streams threads uploads" "$@"
rdma_programs

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-verbs.XXXXXX")
on_exit 'rm -rf "$tmp"'
go test -c -o "$tmp/ibv.test" ./remote/verbs/ibv
[ ${#own[@]} = 0 ] || files+=(--file "$BUILD/obj/libcuda/tests/ends/guestend.so")
files+=(--file "$tmp/ibv.test" --file "$CAUSEWAY" --file "$BUILD/lib/libcuda.so.1:/app/lib/libcuda.so.1")
"$ROOT/scripts/rdma.sh" --kernel "$kernel" --mem 1G --stall 600 "${files[@]}" -- "$ROOT/images/rdma-programs" "${own[@]}" "${pairs[@]}" "${programs[@]}"
