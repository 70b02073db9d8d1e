# Debian systems made with mmdebstrap, for guests and for tests of packages; sourced after
# scripts/lib/{common,pins,apt}.sh. Packages come from the mirror that apt uses
# (CAUSEWAY_DEBIAN_MIRROR elsewhere); nothing of the machine's own is changed but for mmdebstrap
# itself, which is installed if it is missing.

# image_tools installs what makes images.
image_tools() {
  local missing=()
  have mmdebstrap || missing+=(mmdebstrap)
  have mkfs.ext4 || missing+=(e2fsprogs)
  [ ${#missing[@]} = 0 ] && return
  say "installing ${missing[*]}"
  system_update
  system_install "${missing[@]}" || die "installing ${missing[*]} failed: see $APT_DIR/install.log"
}

# image_tree SUITE DIR PACKAGES [MMDEBSTRAP-OPTION...] makes a minimal Debian system in DIR, which
# must not exist. PACKAGES are separated by commas; systemd boots it. Options are, say,
# --customize-hook='chroot "$1" ...'.
image_tree() {
  local suite=$1 dir=$2 packages=$3 mirror key log
  shift 3
  mirror=$(debian_mirror) || exit 1
  key=$(debian_keyring) || exit 1
  log=$dir.log
  mkdir -p "$(dirname "$dir")"
  # Docs and translations are left out: a third of a minimal system. fsync matters to systems that
  # are kept.
  retry 3 image_tree_once "$suite" "$dir" "$log" --include="$packages" "$@" "deb [arch=amd64 signed-by=$key] $mirror $suite main" ||
    { tail -15 "$log" >&2; die "mmdebstrap failed: see $log"; }
}

image_tree_once() {
  local suite=$1 dir=$2 log=$3
  shift 3
  rm -rf "$dir"
  as_root mmdebstrap --mode=root --variant=minbase --format=directory --aptopt='APT::Sandbox::User "root"' \
    --aptopt='Acquire::Retries "5"' --aptopt='Acquire::Languages "none"' --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    "${@:1:$#-1}" "$suite" "$dir" "${@: -1}" >"$log" 2>&1
}

# image_ext4 DIR OUT SIZE packs a tree into an ext4 file system without a partition table; OUT is
# sparse.
image_ext4() {
  rm -f "$2.new"
  truncate -s "$3" "$2.new"
  as_root mkfs.ext4 -q -F -E lazy_itable_init=1,nodiscard -O ^has_journal -m 0 -L causeway -d "$1" "$2.new" || die "mkfs.ext4 $2 failed"
  mv "$2.new" "$2"
}

# image_kernel PATTERN PINNED DIR KERNEL unpacks a cloud kernel (see deb_pick): modules into the
# tree DIR, the kernel itself to the file KERNEL, for QEMU's -kernel. No initramfs: NVMe disks, ext4
# and virtio-fs are built in since 6.12.
image_kernel() {
  local p v
  apt_ready
  p=$(deb_pick "$1" "$2") || exit 1
  v=$(deb_version "$p")
  deb_download "$p=$v" || die "fetching $p failed"
  as_root mkdir -p "$3/usr/lib"
  dpkg-deb --fsys-tarfile "$(deb_file "$p" "$v")" | as_root tar x -C "$3" --no-same-owner ./usr/lib/modules ./boot ||
    die "$p holds no kernel where it should"
  rm -f "$(deb_file "$p" "$v")"
  cp "$(find "$3/boot" -name 'vmlinuz*' -type f | head -1)" "$4" || die "$p holds no kernel"
  as_root rm -rf "$3"/boot/vmlinuz* "$3"/boot/System.map*
  as_root chroot "$3" depmod "$(ls "$3/usr/lib/modules")" || die "depmod failed in $3: it needs kmod"
}
