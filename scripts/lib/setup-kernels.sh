# Stock Debian cloud kernels for guests, unpacked to build/kernels/SERIES; sourced by setup.sh.
# Each folder has vmlinuz, modules/*.ko (decompressed) and modules/order (insmod order, empty when
# built in).

# setup_kernels [SERIES...] prepares the named kernels, all by default.
setup_kernels() {
  local row series suite pattern pinned chosen=" $* "
  for row in "${PIN_KERNELS[@]}"; do
    read -r series suite pattern pinned <<<"$row"
    [ $# = 0 ] || [[ $chosen == *" $series "* ]] || continue
    stamped "$BUILD/kernels/$series/.pin" "$pinned 2" ||
      cached kernels "$BUILD/kernels/$series" "$pinned 2" .pin kernel_unpack "$series" "$pattern" "$pinned"
  done
}

kernel_unpack() {
  local series=$1 pinned=$3 image pkgs p v d=$BUILD/kernels/$1.new
  say "fetching a stock Debian cloud kernel, $1 (about 35 MB, into build/kernels)"
  apt_ready
  image=$(deb_pick "$2" "$3") || exit 1
  pkgs=("$image")
  case $image in linux-binary-*) pkgs+=("${image/binary/modules}") ;; esac
  rm -rf "$d"; mkdir -p "$d/root" "$d/modules"
  for p in "${pkgs[@]}"; do
    v=$(deb_version "$p")
    deb_download "$p=$v" || die "fetching $p failed"
    # Debian 13 kernels keep vmlinuz beside the modules, older ones in /boot.
    dpkg-deb --fsys-tarfile "$(deb_file "$p" "$v")" | tar x -C "$d/root" --wildcards \
      './boot/vmlinuz*' '*/modules/*/vmlinuz' '*/drivers/virtio/*' '*/fs/fuse/*' '*/char/virtio_console.ko*' 2>/dev/null || true
    rm -f "$(deb_file "$p" "$v")"
  done
  cp "$(find "$d/root" -name 'vmlinuz*' -type f | head -1)" "$d/vmlinuz" || die "$image holds no kernel"
  local m f
  : >"$d/modules/order"
  for m in "${GUEST_MODULES[@]}"; do
    f=$(find "$d/root" -name "$m.ko" -o -name "$m.ko.xz" | head -1)
    case $f in
      '') continue ;;
      *.xz) xz -dc "$f" >"$d/modules/$m.ko" ;;
      *) cp "$f" "$d/modules/$m.ko" ;;
    esac
    echo "$m.ko" >>"$d/modules/order"
  done
  rm -rf "$d/root" "$BUILD/kernels/$series"
  echo "$image" >"$d/package"
  echo "$pinned 2" >"$d/.pin"
  mv "$d" "$BUILD/kernels/$series"
  say "kernel $series: $image, $(wc -l <"$BUILD/kernels/$series/modules/order") modules"
}
