#!/usr/bin/env bash
# Prints the version that packages and `causeway version` carry, and with --epoch the time of the
# commit (SOURCE_DATE_EPOCH).
#
# A tag vX.Y.Z is that version, and CHANGELOG.md must have it. Between tags it is
# BASE+gitDATE.COMMIT, where BASE is the newest release in CHANGELOG.md: later commits sort as
# newer, and as newer than the last release but older than the next. A tree that differs from its
# commit says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

git() { command git -c safe.directory="$PWD" "$@"; }

released() { sed -n 's/^## \[\([0-9][0-9.]*\)\] - .*/\1/p' CHANGELOG.md; }
base=$(released | head -1)
[ -n "$base" ] || { echo "CHANGELOG.md has no release" >&2; exit 1; }

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
if tag=$(git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null) && [ -z "$dirty" ]; then
  released | grep -qxF "${tag#v}" || { echo "the commit is tagged $tag, and CHANGELOG.md has no release ${tag#v}" >&2; exit 1; }
  echo "${tag#v}"
  exit
fi
echo "$base+git$(TZ=UTC git log -1 --date=format-local:%Y%m%d.%H%M%S --format=%cd).$(git rev-parse --short=8 HEAD)$dirty"
