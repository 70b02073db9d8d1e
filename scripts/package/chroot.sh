# A clean Debian to install packages in; sourced after common.sh, apt.sh and images/lib.sh.
. "$ROOT/scripts/lib/cache.sh"

# built_for is the Debian that packages built here are for: this one, since they depend on its libc,
# or the oldest that is supported.
built_for() { if [ "$(os_id)" = debian ]; then os_codename; else echo bookworm; fi; }

# debian_tar [SUITE] makes a minimal Debian, once a week, and keeps it below build/debian.
debian_tar() {
  local suite=${1:-$(built_for)} tar
  tar=$BUILD/debian/$suite.tar
  [ -z "$(find "$tar" -mtime -7 2>/dev/null)" ] || return 0
  # A Monday's is a week's, for all checkouts.
  local entry; entry=$(cache_entry debian "$suite of $(date +%G-%V)" "$ROOT/scripts/package/chroot.sh" "$ROOT/images/lib.sh")
  mkdir -p "$BUILD/debian"
  if cache_take "$entry" "$tar"; then return; fi
  image_tools
  say "making a minimal Debian, $suite"
  # The package's own documents are to be installed: the last rule that matches decides.
  image_tree "$suite" "$BUILD/debian/tree" passwd,mount --variant=apt \
    --dpkgopt='path-include=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/man/*'
  tar -cf "$tar.new" -C "$BUILD/debian/tree" .
  rm -rf "$BUILD/debian/tree"
  mv "$tar.new" "$tar"
  cache_give "$entry" "$tar"
}

# debian_root DIR [SUITE] unpacks it.
debian_root() {
  local suite=${2:-$(built_for)}
  debian_tar "$suite"
  mkdir -p "$1"
  tar -xf "$BUILD/debian/$suite.tar" -C "$1"
}

# in_root DIR COMMAND... runs a command in it, with /proc, /dev and /sys of its own kind, in its own
# process namespace: whatever it starts ends with it.
in_root() {
  local dir=$1; shift
  # shellcheck disable=SC2016 # the inner shell expands
  unshare --mount --pid --fork --kill-child --propagation private bash -c '
    mount --rbind "$0" "$0" && cd "$0" && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/dev/shm" && mount --rbind /sys "$0/sys" && mount -t tmpfs tmpfs "$0/run" || exit 125
    [ ! -e /etc/resolv.conf ] || cp -L /etc/resolv.conf "$0/etc/resolv.conf"
    # Not chroot: who is in one may not make or enter namespaces, as the sandbox of workers does.
    pivot_root . . && umount -l . && cd / || exit 125
    exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"' "$dir" "$@"
}
