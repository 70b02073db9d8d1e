# NVRTC and nvJitLink from their Python wheels, under build/nvrtc: a test compiles with them. Optional; needs no GPU.

setup_nvrtc() {
  local dest=$BUILD/nvrtc want="${PIN_NVRTC[*]}"
  stamped "$dest/.stamp" "$want" && return
  say "fetching NVRTC and nvJitLink (130 MB, into build/nvrtc)"
  mkdir -p "$BUILD/cuda"
  rm -rf "$dest"
  cuda_wheels "$dest" "${PIN_NVRTC[@]}"
  echo "$want" >"$dest/.stamp"
}
