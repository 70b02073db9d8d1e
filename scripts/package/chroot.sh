# A clean Debian to install packages in; sourced after common.sh and apt.sh.

# debian_root DIR [PACKAGE...] unpacks a minimal Debian, made once a week and kept below build/debian.
debian_root() {
  local dir=$1 suite=bookworm mirror tar stamp; shift
  stamp="$suite $*"
  tar=$BUILD/debian/$suite.tar
  mkdir -p "$BUILD/debian"
  if ! stamped "$tar.stamp" "$stamp" || [ -z "$(find "$tar" -mtime -7 2>/dev/null)" ]; then
    mirror=$(debian_mirror) || exit 1
    have mmdebstrap || { system_update; system_install mmdebstrap || exit 1; }
    say "making a minimal Debian $suite"
    mmdebstrap --quiet --mode=root --variant=apt ${1:+--include="$(IFS=,; echo "$*")"} --aptopt='Acquire::Languages "none"' \
      --keyring="$(debian_keyring)" "$suite" "$tar" "$mirror" 2>"$tar.log" || { tail -5 "$tar.log" >&2; die "mmdebstrap failed: see $tar.log"; }
    echo "$stamp" >"$tar.stamp"
  fi
  mkdir -p "$dir"
  tar -xf "$tar" -C "$dir"
}

# in_root DIR COMMAND... runs a command in it, with /proc, /dev and /sys of its own kind, in its own process namespace: whatever it
# starts ends with it.
in_root() {
  local dir=$1; shift
  # shellcheck disable=SC2016 # the inner shell expands
  unshare --mount --pid --fork --kill-child --propagation private bash -c '
    mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" && mount -t tmpfs tmpfs "$0/run" || exit 125
    for f in /etc/resolv.conf; do [ ! -e $f ] || cp -L $f "$0$f"; done
    exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"' "$dir" "$@"
}
