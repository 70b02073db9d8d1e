#!/usr/bin/env bash
# Prints the version that packages carry, and with --epoch the time of the commit (SOURCE_DATE_EPOCH).
#
# A tag vX.Y.Z is that version. Between tags it is BASE+gitDATE.COMMIT: later commits sort as newer, and as newer than the last
# release but older than the next. A tree that differs from its commit says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

base=0.4.0 # raised with each release; a tag overrides it

git() { command git -c safe.directory="$PWD" "$@"; }

if ! git rev-parse HEAD >/dev/null 2>&1; then
  [ "${1:-}" = --epoch ] && { echo "${SOURCE_DATE_EPOCH:-0}"; exit; }
  echo "$base+nogit"
  exit
fi
if [ "${1:-}" = --epoch ]; then
  echo "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
  exit
fi
dirty=
[ -z "$(git status --porcelain -uno)" ] || dirty=.dirty
if tag=$(git describe --exact-match --match 'v[0-9]*' 2>/dev/null) && [ -z "$dirty" ]; then
  echo "${tag#v}"
  exit
fi
tag=$(git describe --abbrev=0 --match 'v[0-9]*' 2>/dev/null) && base=${tag#v}
echo "$base+git$(TZ=UTC git log -1 --date=format-local:%Y%m%d.%H%M%S --format=%cd).$(git rev-parse --short=8 HEAD)$dirty"
