#!/usr/bin/env bash
# Measures everything that issue tables speak of, natively and through Causeway in one run, and
# prints one table:
# name, value, unit, native value, ratio (value/native; for copies throughput against throughput),
# goal.
#
#   scripts/speed.sh [--gpu N] [--rounds N] [--weights GB] [--only PATTERN]     PyTorch programs of
#       scripts/compat/speed and C benches
#   scripts/speed.sh --no-bench ...                                             without the C
#       benches of scripts/bench
#
# Where there is no Go the binaries under build/bin are used as they are.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
cd "$ROOT" || exit 1

gpu=0 bench=1 args=()
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=$2; shift 2 ;;
    --no-bench) bench=; shift ;;
    --rounds | --weights | --only | --limit | --markdown) args+=("$1" "$2"); shift 2 ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1" ;;
  esac
done
! have go || CGO_ENABLED=0 go build -trimpath -o "$BUILD/bin/causeway-speed" ./scripts/compat/speed || exit 1
[ -x "$BUILD/bin/causeway-speed" ] || die "build/bin/causeway-speed is missing: build it where there is Go"

failed=0
{
  "$BUILD/bin/causeway-speed" --gpu "$gpu" "${args[@]}" || failed=1
  if [ -n "$bench" ]; then
    # The C benches print "name value unit baseline (kind) ratio goal": the same columns with a word
    # more.
    scripts/bench.sh --gpu "$gpu" --native yes --max-copy 1024 | sed -e 1d -e 's/ (native)//' -e 's/\([<>]=\) /\1/g' || failed=1
  fi
  exit $failed # of the pipe's subshell; pipefail passes it on
} | if have column; then column -t; else cat; fi
