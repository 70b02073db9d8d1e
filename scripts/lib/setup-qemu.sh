# QEMU 10 or newer, busybox and cpio for guest images; sourced by setup.sh.

qemu_major() { qemu-system-x86_64 --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' || true; }

setup_qemu() {
  local m; m=$(qemu_major)
  if [ "${m:-0}" -lt "$MIN_QEMU_MAJOR" ]; then
    have apt-get || die "QEMU $MIN_QEMU_MAJOR is missing and so is apt-get: install qemu-system-x86 by hand"
    say "installing QEMU (qemu-system-x86, about 60 MB with its libraries, no recommended packages)"
    system_update
    local own; own=$(candidate_major qemu-system-x86)
    if [ "${own:-0}" -ge "$MIN_QEMU_MAJOR" ]; then
      retry 3 system_install qemu-system-x86 seabios
    else
      install_backports "qemu-system-x86=$PIN_QEMU" "qemu-system-common=$PIN_QEMU" "qemu-system-data=$PIN_QEMU" "seabios=$PIN_SEABIOS"
    fi || die "installing QEMU failed: see $APT_DIR/install.log"
    m=$(qemu_major)
    [ "${m:-0}" -ge "$MIN_QEMU_MAJOR" ] || die "QEMU $MIN_QEMU_MAJOR or newer is needed, this machine has ${m:-none}"
  fi
  setup_image_tools
}

# Static busybox and cpio go under build/tools: the guest image needs them, the machine need not
# have them.
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
