#!/usr/bin/env bash
# Builds and runs the benchmark: one line per metric (name, value, unit, baseline, ratio, goal).
#
#   scripts/bench.sh [ARG...]     arguments go to causeway-bench
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
cd "$ROOT"
pkg=$(go list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' ./scripts/... ./host/... 2>/dev/null | grep 'bench$' | head -1 || true)
if [ -n "$pkg" ]; then
  say "building $pkg"
  go build -trimpath -o "$BUILD/bin/causeway-bench" "$pkg"
fi
[ -x "$BUILD/bin/causeway-bench" ] || die "there is no benchmark program in this tree yet"
exec "$BUILD/bin/causeway-bench" "$@"
