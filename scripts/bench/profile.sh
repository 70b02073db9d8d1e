#!/usr/bin/env bash
# Where the CPU time of launches goes: profiles of the program (by instruction) and of its worker
# (for `go tool pprof`).
#
#   scripts/bench/profile.sh [--gpu N|soft] [--mode through|four|calls|graph] [--out FOLDER]
#
# The folder holds program.txt (samples, library, offset, symbol) and worker-PID.pprof; `addr2line
# -fe LIBRARY OFFSET` and `go tool pprof -top build/bin/causeway FILE` read them.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"

gpu=auto mode=through out=$BUILD/profile
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --mode) mode=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
causeway=$BUILD/bin/causeway probe=$BUILD/bin/launches sampler=$BUILD/bin/sampler.so
mkdir -p "$out"
gcc -O2 -std=gnu11 -Wall -Wextra -pthread "$ROOT/scripts/bench/probe/launches.c" -o "$probe" -ldl
gcc -O2 -std=gnu11 -Wall -Wextra -shared -fPIC "$ROOT/scripts/bench/probe/sampler.c" -o "$sampler" -ldl
CAUSEWAY_PROFILE=$out "$causeway" run --gpu "$gpu" --warm 0 --sandbox off -- env LD_PRELOAD="$sampler" CAUSEWAY_SAMPLES="$out/program.txt" "$probe" "$mode"
say "the program's most frequent places:"
head -20 "$out/program.txt"
ls "$out"/worker-*.pprof
