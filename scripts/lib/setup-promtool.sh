# promtool, which checks and tests the alerts, out of Debian's prometheus: the machine gets no
# service. Sourced by setup.sh.

setup_promtool() {
  local dest=$BUILD/promtool version
  have promtool && return
  apt_ready
  version=$(apt-cache "${APT_OPTS[@]}" madison prometheus | awk -F'|' '$3 ~ / bookworm\// {gsub(/ /, "", $2); print $2; exit}')
  [ -n "$version" ] || die "the mirror has no package prometheus"
  stamped "$dest/.stamp" "$version" || cached promtool "$dest" "$version" .stamp fetch_promtool "$dest" "$version"
}

fetch_promtool() {
  local dest=$1 version=$2
  say "fetching promtool $version (19 MB, into build/promtool)"
  deb_download "prometheus=$version" || die "download of prometheus $version failed"
  rm -rf "$dest"; mkdir -p "$dest"
  dpkg-deb --fsys-tarfile "$(deb_file prometheus "$version")" | tar x -C "$dest" --strip-components=3 ./usr/bin/promtool || die "prometheus $version has no promtool"
  rm -f "$(deb_file prometheus "$version")"
  echo "$version" >"$dest/.stamp"
}
