# NVRTC from its Python wheel, under build/nvrtc: a test compiles with it. Optional; needs no GPU.

setup_nvrtc() {
  local dest=$BUILD/nvrtc want="${PIN_NVRTC[*]}"
  stamped "$dest/.stamp" "$want" && return
  say "fetching NVRTC (90 MB, into build/nvrtc)"
  mkdir -p "$BUILD/cuda"
  rm -rf "$dest"
  cuda_wheels "$dest" "${PIN_NVRTC[@]}"
  echo "$want" >"$dest/.stamp"
}
