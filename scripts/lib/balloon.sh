# A memory balloon for guests of guest.sh's: sourced after common.sh. Its module is of the kernel's
# own package, and fetched when a script asks for it (35 MB).
. "$ROOT/scripts/lib/apt.sh"

# balloon_module KERNEL sets module to the file.
balloon_module() {
  local d=$BUILD/kernels/$1-balloon package v p from=
  package=$(cat "$BUILD/kernels/$1/package") || return
  module=$d/virtio_balloon.ko
  ! stamped "$d/.pin" "$package" || return 0
  say "fetching the memory balloon of $package"
  apt_ready
  p=${package/binary/modules}
  v=$(deb_version "$p")
  [ -n "$v" ] && deb_download "$p=$v" || { say "the mirror has no $p any more: run scripts/setup.sh kernels"; return 1; }
  rm -rf "$d"; mkdir -p "$d/root"
  dpkg-deb --fsys-tarfile "$(deb_file "$p" "$v")" | tar x -C "$d/root" --wildcards '*/virtio_balloon.ko*'
  rm -f "$(deb_file "$p" "$v")"
  from=$(find "$d/root" -name 'virtio_balloon.ko*')
  case $from in
    '') say "$p has no virtio_balloon"; return 1 ;;
    *.xz) xz -dc "$from" >"$module" ;;
    *) cp "$from" "$module" ;;
  esac
  rm -rf "$d/root"
  echo "$package" >"$d/.pin"
}

# balloon_device HOW prints QEMU's arguments for it.
balloon_device() {
  case $1 in
    reporting) echo "-device virtio-balloon-pci,free-page-reporting=on" ;;
    hint) echo "-object iothread,id=hints -device virtio-balloon-pci,free-page-hint=on,iothread=hints" ;;
    plain) echo "-device virtio-balloon-pci" ;;
    *) die "no balloon is called $1: reporting, hint or plain" ;;
  esac
}

# balloon_settled PID: QEMU has been told of what its guest has freed, which takes that 2 s at a
# time: for twice that it has not become less.
balloon_settled() {
  local least=999999999 now since; since=$(ms)
  while [ $(($(ms) - since)) -lt 5000 ]; do
    now=$(awk '/^RssShmem/ {print $2}' "/proc/$1/status") || return
    [ "$now" -ge "$((least - 1024))" ] || least=$now since=$(ms)
    nap 0.2
  done
  took=$((least / 1024))
}
