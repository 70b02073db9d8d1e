# NVRTC and nvJitLink from their Python wheels, under build/nvrtc: a test compiles with them.
# Optional; needs no GPU.

setup_nvrtc() {
  local dest=$BUILD/nvrtc want="${PIN_NVRTC[*]}"
  stamped "$dest/.stamp" "$want" || cached nvrtc "$dest" "$want" .stamp fetch_nvrtc "$dest" "$want"
}

fetch_nvrtc() {
  local dest=$1
  say "fetching NVRTC and nvJitLink (130 MB, into build/nvrtc)"
  mkdir -p "$BUILD/cuda"
  rm -rf "$dest"
  cuda_wheels "$dest" "${PIN_NVRTC[@]}"
  echo "$2" >"$dest/.stamp"
}
