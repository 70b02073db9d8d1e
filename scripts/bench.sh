#!/usr/bin/env bash
# Builds and runs the benchmark: one line per metric (name, value, unit, baseline, ratio, goal).
#
#   scripts/bench.sh [ARG...]     arguments go to causeway-bench
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
cd "$ROOT"
have gcc && gcc -O2 -std=gnu11 -Wall -Wextra scripts/bench/probe/bench.c -o "$BUILD/bin/bench" -ldl
! have go || go build -trimpath -o "$BUILD/bin/causeway-bench" ./scripts/bench
[ -x "$BUILD/bin/causeway-bench" ] && [ -x "$BUILD/bin/bench" ] || die "the benchmark is not built: install Go and gcc"
exec "$BUILD/bin/causeway-bench" "$@"
