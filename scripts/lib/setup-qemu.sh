# QEMU 10 or newer, busybox and cpio for guest images; sourced by setup.sh.

qemu_major() { qemu-system-x86_64 --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' || true; }

# candidate_major PKG: major version of what the machine's own suites offer.
candidate_major() {
  apt-cache madison "$1" | awk -F'|' '{gsub(/ /, "", $2); sub(/^[0-9]+:/, "", $2); print $2}' |
    sort -V | tail -1 | cut -d. -f1
}

setup_qemu() {
  local m; m=$(qemu_major)
  if [ "${m:-0}" -lt "$MIN_QEMU_MAJOR" ]; then
    have apt-get || die "QEMU $MIN_QEMU_MAJOR is missing and so is apt-get: install qemu-system-x86 by hand"
    say "installing QEMU (qemu-system-x86, about 60 MB with its libraries, no recommended packages)"
    system_update
    local own; own=$(candidate_major qemu-system-x86)
    if [ "${own:-0}" -ge "$MIN_QEMU_MAJOR" ]; then
      retry 3 system_install qemu-system-x86 seabios || die "installing QEMU failed: see $APT_DIR/install.log"
    else
      qemu_from_backports
    fi
    m=$(qemu_major)
    [ "${m:-0}" -ge "$MIN_QEMU_MAJOR" ] || die "QEMU $MIN_QEMU_MAJOR or newer is needed, this machine has ${m:-none}"
  fi
  setup_image_tools
}

# qemu_from_backports adds the backports suite for this one installation, beside the machine's own sources.
qemu_from_backports() {
  local c; c=$(os_codename)
  [ "$c-backports" = "$PIN_QEMU_SUITE" ] || die "$(os_id) $c has no QEMU $MIN_QEMU_MAJOR: install one and put qemu-system-x86_64 first in PATH"
  local mirror key dir=$APT_DIR/install
  mirror=$(debian_mirror) || exit 1
  key=$(debian_keyring) || exit 1
  mkdir -p "$dir/lists/partial"
  : >"$dir/sources.list"
  [ -f /etc/apt/sources.list ] && cat /etc/apt/sources.list >"$dir/sources.list"
  if ! apt-get indextargets --format '$(RELEASE)' 'Created-By: Packages' | grep -qx "$PIN_QEMU_SUITE"; then
    echo "deb [signed-by=$key] $mirror $PIN_QEMU_SUITE main" >>"$dir/sources.list"
  fi
  local opts=(-o "Dir::Etc::sourcelist=$dir/sources.list" -o "Dir::State::lists=$dir/lists"
    -o Acquire::Languages=none -o Acquire::Retries=5 -o APT::Sandbox::User=root)
  retry 4 as_root apt-get -q "${opts[@]}" update >"$dir/update.log" 2>&1 || { tail -3 "$dir/update.log" >&2; die "apt-get update failed: is the mirror reachable?"; }
  # The pin first; backports moves on, so then whatever it has.
  system_install "${opts[@]}" -t "$PIN_QEMU_SUITE" "qemu-system-x86=$PIN_QEMU" "qemu-system-common=$PIN_QEMU" \
    "qemu-system-data=$PIN_QEMU" "seabios=$PIN_SEABIOS" ||
    { say "the pinned QEMU is gone from the mirror: taking the newest of $PIN_QEMU_SUITE"
      retry 3 system_install "${opts[@]}" -t "$PIN_QEMU_SUITE" qemu-system-x86 seabios; } ||
    die "installing QEMU failed: see $APT_DIR/install.log"
}

# Static busybox and cpio go under build/tools: the guest image needs them, the machine need not have them.
setup_image_tools() {
  local tools=$BUILD/tools want="busybox-static cpio 2"
  stamped "$tools/.stamp" "$want" && [ -x "$tools/busybox" ] && [ -x "$tools/cpio" ] && return
  say "fetching static busybox and cpio (1 MB, into build/tools)"
  apt_ready
  local p v f tmp=$BUILD/tools.new
  rm -rf "$tmp"; mkdir -p "$tmp/root"
  for p in busybox-static cpio; do
    v=$(apt-cache "${APT_OPTS[@]}" madison "$p" | awk -F'|' '$3 ~ / bookworm\// {gsub(/ /, "", $2); print $2; exit}')
    deb_download "$p=$v" || die "fetching $p failed"
    f=$(deb_file "$p" "$v"); dpkg-deb -x "$f" "$tmp/root"
  done
  cp "$tmp/root/bin/busybox" "$tmp/busybox"; cp "$tmp/root/bin/cpio" "$tmp/cpio"
  rm -rf "$tmp/root" "$tools"; mv "$tmp" "$tools"
  echo "$want" >"$tools/.stamp"
}
