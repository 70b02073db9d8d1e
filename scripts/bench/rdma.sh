#!/usr/bin/env bash
# What a GPU of another machine costs over RDMA, in a VM with soft RoCE (scripts/rdma.sh): name,
# value, unit as scripts/bench/remote.sh prints them, ib_ being perftest's programs and verbs_ the
# carrier alone on the same port. Then what is promised: the carrier's ping-pong against
# ib_write_lat, the smallest call against 1.15 of that ping-pong and the local call, copies against
# as many bytes over the carrier alone and against ib_read_bw (to the GPU, which the server reads)
# and ib_write_bw.
#
#   scripts/bench/rdma.sh [--kernel SERIES] [--copy MIB]
#
#   --copy   the largest copy (default: 16)
#
# An emulated processor does the adapter's work here, both ends' and the GPU's: ratios say what of
# it is ours. With adapters: ib_write_lat, and build/bin/causeway-streams with --rdma, on two hosts.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"
cd "$ROOT"

kernel=6.12 copy=16
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    --copy) copy=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
CAUSEWAY=$BUILD/bin/causeway
[ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-bench.XXXXXX")
on_exit 'rm -rf "$tmp"'
gcc -O2 -std=gnu11 -pthread scripts/bench/probe/bench.c -o "$tmp/bench" -ldl
go build -trimpath -o "$tmp/causeway-streams" ./scripts/bench/streams # with cgo: it has RDMA
scripts/rdma.sh --kernel "$kernel" --mem 1536M --stall 900 --file "$tmp/bench" --file "$tmp/causeway-streams" --file "$CAUSEWAY" --file "$BUILD/lib/libcuda.so.1:/app/lib/libcuda.so.1" \
  -- "$ROOT/images/rdma-speed" "$copy" | tee "$tmp/figures"
awk '{ v[$1] = $2 } END { if (v["ib_round_trip"] > 0) printf "ratio_ping_pong %.2f of ib_write_lat\n", v["verbs_round_trip"] / v["ib_round_trip"] }' "$tmp/figures"
awk -v link=verbs -v words=verbs -v goal=0.98 -f scripts/bench/ratios.awk "$tmp/figures"
