# The driver's nvidia-smi from Debian, under build/nvidia-smi: a test runs it against our
# libnvidia-ml.so.1. Optional.

setup_nvidia_smi() {
  local dest=$BUILD/nvidia-smi version
  apt_ready
  version=$(deb_version nvidia-smi)
  [ -n "$version" ] || die "the mirror has no package nvidia-smi (section non-free)"
  stamped "$dest/.stamp" "$version" || cached nvidia-smi "$dest" "$version" .stamp fetch_nvidia_smi "$dest" "$version"
}

fetch_nvidia_smi() {
  local dest=$1 version=$2
  say "fetching nvidia-smi $version (0.5 MB, into build/nvidia-smi)"
  deb_download nvidia-smi || die "download of nvidia-smi $version failed"
  rm -rf "$dest"; mkdir -p "$dest"
  dpkg-deb -x "$(deb_file nvidia-smi "$version")" "$dest/deb"
  mv "$(find "$dest/deb" -path '*/nvidia/*/nvidia-smi' -type f | head -1)" "$dest/nvidia-smi"
  rm -rf "$dest/deb"
  echo "$version" >"$dest/.stamp"
}
