# Debian packages from suites that the machine does not use; sourced after common.sh.
# The system's own apt configuration is never changed: sources, lists and cache live under
# build/apt.

APT_DIR=$BUILD/apt
APT_OPTS=(-q -o "Dir::Etc::sourcelist=$APT_DIR/sources.list" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$APT_DIR/lists" -o "Dir::Cache=$APT_DIR/cache" -o Acquire::Languages=none
  -o APT::Sandbox::User=root -o Acquire::Retries=5 -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
  -o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false)

os_id() { (. /etc/os-release; echo "$ID"); }
os_codename() { (. /etc/os-release; echo "${VERSION_CODENAME:-}"); }

# debian_mirror prints the archive's address: the one apt is set up with, or CAUSEWAY_DEBIAN_MIRROR
# elsewhere.
debian_mirror() {
  if [ -n "${CAUSEWAY_DEBIAN_MIRROR:-}" ]; then echo "$CAUSEWAY_DEBIAN_MIRROR"; return; fi
  [ "$(os_id)" = debian ] || die "this is $(os_id), whose mirror has no Debian suites: set CAUSEWAY_DEBIAN_MIRROR to the address of a Debian mirror"
  local uri
  uri=$(system_archive)
  # apt names only what it has lists of: a fresh machine has none.
  [ -n "$uri" ] || { system_update; uri=$(system_archive); }
  [ -n "$uri" ] || die "apt has no source for $(os_codename): add your Debian mirror to /etc/apt/sources.list.d"
  echo "$uri"
}

system_archive() {
  apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(RELEASE)' 'Created-By: Packages' |
    awk -v c="$(os_codename)" '$1 !~ /security/ && ($2 == c || $3 == c) && !seen {print $1; seen = 1}'
}

debian_keyring() {
  local k
  for k in /usr/share/keyrings/debian-archive-keyring.gpg /usr/share/keyrings/debian-archive-keyring.pgp; do
    [ -s "$k" ] && { echo "$k"; return; }
  done
  die "the Debian archive keyring is missing: apt-get install debian-archive-keyring"
}

# apt_ready makes the private lists once a day at most; callers may race, the lock makes them queue.
apt_ready() {
  have apt-get || die "apt-get is missing: setup.sh knows Debian and Ubuntu; install QEMU 10, kernels and nvcc by hand"
  mkdir -p "$APT_DIR/lists/partial" "$APT_DIR/cache/archives/partial"
  exec 8>"$APT_DIR/lock"; flock 8
  if [ -z "$(find "$APT_DIR/updated" -mtime -1 2>/dev/null)" ]; then
    local mirror key suite
    mirror=$(debian_mirror) || exit 1
    key=$(debian_keyring) || exit 1
    say "reading package lists of Debian bookworm, trixie and their backports (20 MB, into build/apt)"
    for suite in bookworm bookworm-updates bookworm-backports trixie trixie-backports; do
      echo "deb [arch=amd64 signed-by=$key] $mirror $suite main non-free"
    done >"$APT_DIR/sources.list"
    retry 4 apt-get "${APT_OPTS[@]}" update >"$APT_DIR/update.log" 2>&1 || { tail -5 "$APT_DIR/update.log" >&2; die "apt-get update failed: is the mirror reachable?"; }
    touch "$APT_DIR/updated"
  fi
  exec 8>&-
}

# deb_download PKG[=VERSION]... leaves the .deb files in build/apt/debs; their names follow apt's
# rule.
deb_download() {
  mkdir -p "$APT_DIR/debs"
  (cd "$APT_DIR/debs" && retry 4 apt-get "${APT_OPTS[@]}" download "$@" >/dev/null)
}

# deb_file PKG VERSION prints where deb_download put it.
deb_file() { echo "$APT_DIR/debs/$1_${2//:/%3a}_amd64.deb"; }

# deb_pick PATTERN PINNED prints PINNED if the archive still has it, else the newest name that
# matches.
deb_pick() {
  local names; names=$(apt-cache "${APT_OPTS[@]}" pkgnames | grep -E "^$1\$" | sort -V)
  if grep -qxF -e "$2" <<<"$names"; then echo "$2"; return; fi
  [ -n "$names" ] || die "the mirror has no package like $1"
  say "$2 is gone from the mirror: taking the newest of its series"
  tail -1 <<<"$names"
}

# deb_version PKG prints the version of the candidate of an exactly named package; empty if unknown.
deb_version() { apt-cache "${APT_OPTS[@]}" show --no-all-versions "$1" 2>/dev/null | awk '/^Version:/{print $2; exit}'; }

# system_install ARGS... is apt-get install with the machine's own sources and lists.
system_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
    -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 "$@" >"$APT_DIR/install.log" 2>&1 ||
    { tail -5 "$APT_DIR/install.log" >&2; return 1; }
}

# system_update reads the machine's own lists, once an hour at most; steps that run side by side
# queue here.
system_update() {
  mkdir -p "$APT_DIR"
  exec 6>"$APT_DIR/system.lock"; flock 6
  if [ -z "$(find "$APT_DIR/system-updated" -mmin -60 2>/dev/null)" ] || ! compgen -G '/var/lib/apt/lists/*Release' >/dev/null; then
    say "reading the machine's own package lists (apt-get update)"
    retry 4 as_root apt-get -q update >"$APT_DIR/system-update.log" 2>&1 ||
      { tail -3 "$APT_DIR/system-update.log" >&2; die "apt-get update failed: is the mirror reachable?"; }
    touch "$APT_DIR/system-updated"
  fi
  exec 6>&-
}

# candidate_major PKG prints the major version of what apt would install of the machine's own
# suites; empty if they lack it.
candidate_major() { apt-cache policy "$1" | awk '/Candidate:/ && $2 != "(none)" {sub(/^[0-9]+:/, "", $2); sub(/[^0-9].*/, "", $2); print $2}'; }

# install_backports PKG=VERSION... installs them from the backports of this Debian, by a list of
# sources of our own beside the machine's: that suite is not added to it. The versions are pins of
# PIN_BACKPORTS; elsewhere, and where they are gone, the newest ones are taken.
install_backports() {
  local suite mirror key dir=$APT_DIR/install
  [ "$(os_id)" = debian ] || die "$(os_id) $(os_codename) has no ${1%%=*} that is new enough: install it by hand"
  suite=$(os_codename)-backports
  mirror=$(debian_mirror) || exit 1
  key=$(debian_keyring) || exit 1
  mkdir -p "$dir/lists/partial"
  : >"$dir/sources.list"
  [ ! -f /etc/apt/sources.list ] || cat /etc/apt/sources.list >"$dir/sources.list"
  apt-get indextargets --format '$(RELEASE)' 'Created-By: Packages' | grep -qx "$suite" ||
    echo "deb [signed-by=$key] $mirror $suite main" >>"$dir/sources.list"
  local opts=(-o "Dir::Etc::sourcelist=$dir/sources.list" -o "Dir::State::lists=$dir/lists" -o Acquire::Languages=none -o APT::Sandbox::User=root)
  retry 4 as_root apt-get -q "${opts[@]}" -o Acquire::Retries=5 update >"$dir/update.log" 2>&1 ||
    { tail -3 "$dir/update.log" >&2; die "apt-get update failed: is the mirror reachable?"; }
  if [ "$suite" = "$PIN_BACKPORTS" ]; then
    system_install "${opts[@]}" -t "$suite" "$@" && return
    say "the pinned versions are gone from the mirror: taking the newest of $suite"
  fi
  retry 3 system_install "${opts[@]}" -t "$suite" "${@%%=*}"
}
