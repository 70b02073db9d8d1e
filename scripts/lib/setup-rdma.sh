# The guest of scripts/rdma.sh: Debian's full kernels, which have soft RoCE and NICs' drivers where
# the cloud kernels have none, and rdma-core with its tools. Sourced by setup.sh. Kernels go to
# build/kernels/SERIES-full as setup-kernels.sh lays them out, the rest to build/rdma: bin, lib
# (with libibverbs's providers), etc/libibverbs.d and include, for a guest that has Debian 12's C
# library.

# setup_rdma [SERIES...] prepares the named kernels, by default the one that scripts/rdma.sh boots.
setup_rdma() {
  local series suite pattern pinned row
  [ $# -gt 0 ] || set -- 6.12
  rdma_tools
  for series in "$@"; do
    row=$(printf '%s\n' "${PIN_FULL_KERNELS[@]}" | awk -v s="$series" '$1 == s')
    [ -n "$row" ] || die "there is no full kernel $series: setup.sh knows $(printf '%s\n' "${PIN_FULL_KERNELS[@]}" | awk '{printf "%s ", $1}')"
    read -r series suite pattern pinned <<<"$row"
    full_kernel "$series" "$pattern" "$pinned"
  done
}

# full_kernel SERIES PATTERN PINNED unpacks one. Its module list is what RDMA_MODULES need, in the
# order of their dependencies: the guest has no modprobe.
full_kernel() {
  local dest=$BUILD/kernels/$1-full stamp="$1 full $3 ${RDMA_MODULES[*]}"
  stamped "$dest/.pin" "$stamp" || cached kernels "$dest" "$stamp" .pin full_kernel_unpack "$@"
}

full_kernel_unpack() {
  local dest=$BUILD/kernels/$1-full stamp="$1 full $3 ${RDMA_MODULES[*]}" image pkgs p v tmp release
  say "fetching Debian's full kernel $1 (110 to 175 MB, of which 15 MB stay in build/kernels)"
  apt_ready
  image=$(deb_pick "$2" "$3") || exit 1
  pkgs=("$image")
  case $image in linux-binary-*) pkgs+=("${image/binary/modules}") ;; esac
  tmp=$dest.new
  rm -rf "$tmp"; mkdir -p "$tmp/root/usr/lib/modules" "$tmp/modules"
  ln -s usr/lib "$tmp/root/lib"
  for p in "${pkgs[@]}"; do
    v=$(deb_version "$p")
    deb_download "$p=$v" || die "fetching $p failed"
    dpkg-deb --fsys-tarfile "$(deb_file "$p" "$v")" | tar x -C "$tmp/root" --keep-directory-symlink --wildcards \
      --exclude='*/drivers/gpu/*' --exclude='*/drivers/media/*' --exclude='*/sound/*' './boot/vmlinuz*' '*/lib/modules/*' 2>/dev/null || true
    rm -f "$(deb_file "$p" "$v")"
  done
  release=$(ls "$tmp/root/usr/lib/modules")
  cp "$(find "$tmp/root" -name 'vmlinuz*' -type f | head -1)" "$tmp/vmlinuz" || die "$image holds no kernel"
  # It warns of lists of what is built in, which Debian 13 keeps in another package.
  depmod -b "$tmp/root" "$release" 2>"$tmp/depmod.log" || { cat "$tmp/depmod.log" >&2; die "depmod failed on $image: it needs kmod"; }
  full_modules "$tmp" "$release"
  rm -rf "$tmp/root" "$tmp/depmod.log" "$dest"
  echo "$image" >"$tmp/package"
  echo "$stamp" >"$tmp/.pin"
  mv "$tmp" "$dest"
  say "kernel $1-full: $image, $(wc -l <"$dest/modules/order") modules"
}

# full_modules DIR RELEASE copies the modules, decompressed. What a kernel has built in, or has not
# at all, it simply lacks.
full_modules() {
  local m f
  for m in "${RDMA_MODULES[@]}"; do
    modprobe -d "$1/root" -S "$2" --show-depends "$m" 2>/dev/null || true
  done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r f; do
    m=$(basename "${f%.xz}")
    case $f in *.xz) xz -dc "$f" >"$1/modules/$m" ;; *) cp "$f" "$1/modules/$m" ;; esac
    echo "$m"
  done >"$1/modules/order"
  [ -f "$1/modules/rdma_rxe.ko" ] || die "kernel $2 has no rdma_rxe"
}

rdma_tools() {
  local dest=$BUILD/rdma want="${RDMA_PACKAGES[*]} 3"
  stamped "$dest/.stamp" "$want" || cached rdma "$dest" "$want" .stamp rdma_tools_unpack "$dest" "$want"
}

rdma_tools_unpack() {
  local dest=$1 want=$2 tmp=$BUILD/rdma.new p f pkgs libs
  say "fetching rdma-core, perftest and iproute2 (5 MB, into build/rdma)"
  apt_ready
  rm -rf "$tmp"; mkdir -p "$tmp/root" "$tmp"/{bin,lib,etc}
  mapfile -t pkgs < <(apt-cache "${APT_OPTS[@]}" madison "${RDMA_PACKAGES[@]}" | awk '$6 ~ /^bookworm\// && !seen[$1]++ {print $1 "=" $3}')
  [ ${#pkgs[@]} = ${#RDMA_PACKAGES[@]} ] || die "the mirror lacks some of ${RDMA_PACKAGES[*]}"
  deb_download "${pkgs[@]}" || die "fetching rdma-core's packages failed"
  for p in "${pkgs[@]}"; do
    f=$(deb_file "${p%%=*}" "${p#*=}")
    dpkg-deb -x "$f" "$tmp/root" || die "unpacking $p failed"
    rm -f "$f"
  done
  cp -P "$tmp"/root/usr/bin/{ib_*,ibv_*,rping,rdma,ucmatose,raw_ethernet_*} "$tmp"/root/{bin/ip,sbin/tc,sbin/devlink} "$tmp/bin/"
  libs=("$tmp"/root/usr/lib/x86_64-linux-gnu "$tmp"/root/lib/x86_64-linux-gnu)
  find "${libs[@]}" -maxdepth 1 -name '*.so*' -exec cp -P {} "$tmp/lib/" \;
  cp -r "$tmp/root/usr/lib/x86_64-linux-gnu/libibverbs" "$tmp/lib/"
  cp -r "$tmp/root/etc/libibverbs.d" "$tmp/etc/"
  cp -r "$tmp/root/usr/include" "$tmp/include"
  rm -rf "$tmp/root" "$dest"
  echo "$want" >"$tmp/.stamp"
  mv "$tmp" "$dest"
}
