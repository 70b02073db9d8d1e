#!/usr/bin/env bash
# Builds the packages.
#
#   scripts/package/build.sh [deb] [rpm]      both by default; they come to build/package/
#
# PACKAGE_VERSION and SOURCE_DATE_EPOCH (environment) replace what version.sh says, PACKAGE_OUT the
# folder. MAINTAINER ("NAME <ADDRESS>") and HOMEPAGE say who answers for the packages and where;
# README.md beside this has their defaults. The same commit with the same of these gives the same
# bytes.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"

NFPM=v2.43.4 # newer ones need modules that the Go proxy does not serve everywhere
here=$ROOT/scripts/package
out=${PACKAGE_OUT:-$BUILD/package}
root=$out/root

# Packages need an address. Where nobody gives one, this says that there is none: RFC 6761 keeps
# .invalid from ever being anybody's.
NOBODY='The Causeway authors <nobody@causeway.invalid>'

# configured KEY prints causeway.KEY of git's configuration; it may be empty.
configured() { git -C "$ROOT" config --get "causeway.$1" 2>/dev/null || true; }

# nfpm_ready installs the packager itself, apart from go.mod.
nfpm_ready() {
  stamped "$BUILD/tools/.nfpm" "$NFPM" && [ -x "$BUILD/tools/nfpm" ] && return
  say "building nfpm $NFPM, once"
  (cd /tmp && GOFLAGS=-mod=mod GOBIN=$BUILD/tools retry 3 go install "github.com/goreleaser/nfpm/v2/cmd/nfpm@$NFPM") ||
    die "go install nfpm failed: is the Go proxy reachable?"
  echo "$NFPM" >"$BUILD/tools/.nfpm"
}

# put MODE SRC... DEST copies files to a folder of the package, or to a name.
put() {
  local mode=$1; shift
  install -D -m "$mode" -t "$root${*: -1}" "${@:1:$#-1}"
}
put_as() { install -D -m "$1" "$2" "$root$3"; }

program() {
  say "building causeway $VERSION"
  mkdir -p "$root/usr/bin" "$root/usr/libexec/causeway"
  (cd "$ROOT" && go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o "$root/usr/bin/causeway" ./host/causeway &&
    go build -trimpath -buildvcs=false -tags libvirt_dlopen -ldflags "-s -w -X main.version=$VERSION" -o "$root/usr/libexec/causeway/causeway-libvirt" ./host/causeway)
  make --no-print-directory -C "$ROOT" libcuda libnvml tools
  put 0644 "$BUILD"/lib/libcuda.so.1 "$BUILD"/lib/libnvidia-ml.so.1 /usr/lib/causeway
  local lib
  for lib in "$root"/usr/lib/causeway/*.so.1; do
    strip --strip-unneeded --remove-section=.comment "$lib"
    name_anew "$lib"
  done
  put 0755 "$BUILD/lib/causeway-check" /usr/lib/causeway
  put 0755 "$BUILD/lib/bin/nvidia-smi" /usr/lib/causeway/bin
  put 0755 "$BUILD/lib/bin/cdi-hook" /usr/lib/causeway/bin
  strip --remove-section=.comment "$root/usr/lib/causeway/causeway-check" "$root/usr/lib/causeway/bin/nvidia-smi"
}

# name_anew LIB gives a stripped library the build id of what it is now: the linker's was of its
# debugging information too, with this machine's paths.
name_anew() {
  local note=.note.gnu.build-id t=$out/build-id
  objcopy --dump-section $note="$t" "$1" "$t.lib"
  objcopy --remove-section $note "$1" "$t.lib"
  { head -c 16 "$t"; sha1sum "$t.lib" | cut -d' ' -f1 | tr -d '\n' | sed 's/../\\x&/g' | xargs -0 printf '%b'; } >"$t.new"
  [ "$(stat -c %s "$t")" = "$(stat -c %s "$t.new")" ] || die "the build id of $1 is no SHA-1"
  objcopy --update-section $note="$t.new" "$1"
  rm -f "$t" "$t.lib" "$t.new"
}

system_files() {
  put 0644 "$here"/files/*.service "$here"/files/*.slice /usr/lib/systemd/system
  put_as 0644 "$here/files/tmpfiles.conf" /usr/lib/tmpfiles.d/causeway.conf
  put_as 0644 "$here/files/sysusers.conf" /usr/lib/sysusers.d/causeway.conf
  put_as 0755 "$here/files/libvirt-hook" /etc/libvirt/hooks/qemu.d/causeway
  put_as 0644 "$here/files/logrotate" /etc/logrotate.d/causeway
  put_as 0644 "$here/files/apparmor" /etc/apparmor.d/abstractions/libvirt-qemu.d/causeway
  mkdir -p "$root/etc/causeway"
  # The package has a group for those who attach and detach.
  "$root/usr/bin/causeway" daemon --example | sed 's/^operator = \[\]  */operator = ["@causeway"] /; s|docs/\([A-Z-]*\.md\)|/usr/share/doc/causeway/\1|' >"$root/etc/causeway/causewayd.toml"
  grep -q '^operator = \["@causeway"\]' "$root/etc/causeway/causewayd.toml" || die "the example configuration has no operators"
}

manuals() {
  local c=$root/usr/bin/causeway man=$root/usr/share/man
  "$c" man "$man/man1" --date "$DATE"
  mkdir -p "$man/man5"
  sed -e "s/@DATE@/$DATE/; s/@VERSION@/$VERSION/" "$here/causewayd.toml.5" >"$man/man5/causewayd.toml.5"
  sed 's/\\/\\e/g; s/^\./\\\&./; s/^'\''/\\\&'\''/; s/-/\\-/g' "$root/etc/causeway/causewayd.toml" >>"$man/man5/causewayd.toml.5"
  echo .EE >>"$man/man5/causewayd.toml.5"
  gzip -9n "$man"/man?/*
  mkdir -p "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
  "$c" completion bash >"$root/usr/share/bash-completion/completions/causeway"
  "$c" completion zsh >"$root/usr/share/zsh/vendor-completions/_causeway"
  "$c" completion fish >"$root/usr/share/fish/vendor_completions.d/causeway.fish"
}

documents() {
  local doc=/usr/share/doc/causeway
  # All of them: they point to each other, and the program and the configuration to some.
  put 0644 "$ROOT"/docs/*.md "$ROOT/CHANGELOG.md" $doc
  put 0644 "$ROOT"/docs/images/* $doc/images
  put_as 0644 "$here/copyright" /debian/copyright
  put 0644 "$ROOT/LICENSE" /licence
  # Debian wants these two, rpm the licence.
  printf 'causeway (%s-1) unstable; urgency=medium\n\n  * Built from commit %s.\n\n -- %s  %s\n' "$VERSION" \
    "$(git -C "$ROOT" rev-parse HEAD 2>/dev/null || echo unknown)" "$MAINTAINER" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" |
    gzip -9n >"$root/debian/changelog.Debian.gz"
  put_as 0644 "$here/lintian-overrides" /usr/share/lintian/overrides/causeway
  licences >"$root$doc/LICENCES.libraries"
  local d
  for d in grafana prometheus; do
    [ ! -d "$ROOT/scripts/$d" ] || { mkdir -p "$root/usr/share/causeway/$d"; cp "$ROOT/scripts/$d"/*.{json,y*ml,rules} "$root/usr/share/causeway/$d/" 2>/dev/null || true; }
  done
}

# licences prints the terms of what is linked into the program.
licences() {
  local path version dir f
  echo "Causeway's program contains these libraries, under their own terms:"
  (cd "$ROOT" && go list -deps -tags libvirt_dlopen -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./host/causeway; echo "go $(go env GOVERSION) $(go env GOROOT)") |
    grep . | sort -u | while read -r path version dir; do
    for f in "$dir"/LICEN[SC]E* "$dir"/COPYING*; do
      [ ! -f "$f" ] || { printf '\n== %s %s\n\n' "$path" "$version"; cat "$f"; }
    done
  done
}

# The policy module for distributions with SELinux; without the compiler only its source is there.
selinux() {
  local s=$root/usr/share/causeway/selinux
  put 0644 "$here"/selinux/causeway.{te,fc} /usr/share/causeway/selinux
  if have checkmodule && have semodule_package; then
    checkmodule -M -m -o "$out/causeway.mod" "$s/causeway.te" >/dev/null
    semodule_package -o "$s/causeway.pp" -m "$out/causeway.mod" -f "$s/causeway.fc"
  else
    say "no checkmodule here (checkpolicy, policycoreutils): the package has the SELinux module's source only"
  fi
}

# newest_glibc prints the newest glibc version that the program asks for: what the package depends
# on.
newest_glibc() { objdump -T "$root/usr/bin/causeway" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2; }

[ $# -gt 0 ] || set -- deb rpm
for f; do case $f in deb | rpm) ;; -h | --help) header; exit ;; *) die "unknown format $f: deb or rpm" ;; esac; done
have go || die "Go is missing: install Go $(awk '/^go /{print $2}' "$ROOT/go.mod") or newer"
VERSION=${PACKAGE_VERSION:-$("$here/version.sh")}
SOURCE_DATE_EPOCH=$("$here/version.sh" --epoch)
DATE=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d)
MAINTAINER=${MAINTAINER:-$(configured maintainer)}
MAINTAINER=${MAINTAINER:-$NOBODY}
[[ $MAINTAINER =~ ^[^\<\>@]+\ \<[^\<\>@\ ]+@[^\<\>@\ ]+\>$ ]] || die "MAINTAINER is '$MAINTAINER': use NAME <ADDRESS>"
HOMEPAGE=${HOMEPAGE-$(configured homepage)}
[[ $HOMEPAGE =~ ^(https?://[^[:space:]]+)?$ ]] || die "HOMEPAGE is '$HOMEPAGE': use an address that begins with https://"
mkdir -p "$out"
rm -rf "$root" "$out/scripts"
umask 022
nfpm_ready
program
system_files
manuals
documents
selinux
GLIBC=$(newest_glibc)
export VERSION SOURCE_DATE_EPOCH GLIBC MAINTAINER HOMEPAGE
mkdir "$out/scripts"
cp -r "$here/debian" "$here/rpm" "$out/scripts/"
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
for f; do
  rm -f "$out"/*."$f"
  (cd "$out" && "$BUILD/tools/nfpm" package -f "$here/nfpm.yaml" -p "$f" -t "$out/" >"$out/nfpm.log") || { cat "$out/nfpm.log" >&2; exit 1; }
  say "$(cd "$ROOT" && ls -s --block-size=K "$out"/*."$f" | sed "s|$ROOT/||")"
done
