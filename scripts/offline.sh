#!/usr/bin/env bash
# Runs what needs Go on a machine that has neither Go nor a network, but the CPUs for it.
#
#   scripts/offline.sh pack          here: the Go distribution and the modules' sources into
#                                    build/go-pack.tar.xz (about 32 MB)
#   scripts/offline.sh COMMAND...    there: runs it with that Go; for example
#                                      scripts/offline.sh scripts/fuzz.sh --minutes 7 --jobs 33
#                                      scripts/offline.sh go run ./scripts/mutants -go 1000 -c 0
#                                      -jobs 28 -within 8m
#
# There it takes gcc, tar and xz. What it unpacks stays in build/gopack and vendor, what it compiles
# in build/gocache.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
cd "$ROOT"
pack=$BUILD/go-pack.tar.xz

make_pack() {
  local root
  tmp=$(mktemp -d); root=$(go env GOROOT)
  trap 'rm -rf "$tmp"' EXIT # after this function
  go mod vendor -o "$tmp/vendor"
  # Without tests of its own, commands' sources and other systems' race detectors: what is left
  # compiles and tests programs of this machine's kind.
  tar c -C "$root" --exclude='*_test.go' --exclude=testdata --exclude='race_*.syso' --exclude=gofmt --exclude=cover --exclude=fix --exclude=preprofile \
    --anchored --exclude=./src/cmd --exclude=./api --exclude=./doc --exclude=./test --exclude=./misc --transform 's|^\.|go|' . | tar x -C "$tmp"
  tar c --sort=name -C "$tmp" go vendor | xz -T0 -3 >"$pack.new"
  mv "$pack.new" "$pack"
  say "$pack: $(numfmt --to=iec "$(stat -c %s "$pack")")"
}

[ $# -gt 0 ] || { header; exit 2; }
case $1 in
  pack) make_pack; exit ;;
  -h | --help) header; exit ;;
esac
to=$BUILD/gopack
if [ "$(cat "$to/.unpacked" 2>/dev/null)" != "$(cksum <"$pack" 2>/dev/null)" ]; then
  [ -f "$pack" ] || die "build/go-pack.tar.xz is missing: run scripts/offline.sh pack where there are Go and a network"
  rm -rf "$to" vendor
  mkdir -p "$to"
  tar xJf "$pack" -C "$to" || die "$pack is damaged: run scripts/offline.sh pack again"
  mv "$to/vendor" vendor
  cksum <"$pack" >"$to/.unpacked"
fi
[ -d vendor ] || die "vendor is gone: remove build/gopack"
export GOROOT=$to/go PATH=$to/go/bin:$PATH GOCACHE=$BUILD/gocache GOTOOLCHAIN=local GOPROXY=off GOFLAGS="-mod=vendor -buildvcs=false" HOME=${HOME:-/root}
exec "$@"
