#!/usr/bin/env bash
# What vGPUs and sessions cost a host (memory, CPU at rest, time to attach and to open), and that
# attaching and starting leave nothing behind: causewayd, its processes and simulated VMs, on the
# software GPU, without QEMU and without libvirt.
#
#   scripts/density.sh [--small] [--vgpus 50] [--sessions 200] [--cycles 500] [--starts 1000]
#   [--watch 10s] [--flood 10s]
#
# --small is what `make test` runs: 10 vGPUs, 40 sessions, 30 cycles, 80 starts. The status is 0 if
# nothing is left behind and every bound holds. The full form takes three minutes on 2 cores, and a
# machine that does little else.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

args=(--causeway "$BUILD/bin/causeway" --lib "$BUILD/lib")
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) header; exit ;;
    --small) args+=(--vgpus 10 --sessions 40 --cycles 30 --starts 80 --watch 2s --flood 3s); shift ;;
    --*) [ $# -gt 1 ] || die "$1 wants a value"; args+=("$1" "$2"); shift 2 ;;
    *) die "unknown argument $1: see $0 --help" ;;
  esac
done
cd "$ROOT"
go build -o "$BUILD/bin/causeway-density" ./scripts/density
exec "$BUILD/bin/causeway-density" "${args[@]}"
