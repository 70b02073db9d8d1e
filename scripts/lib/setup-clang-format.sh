# clang-format from its Python wheel, under build/clang-format: lint holds the C against
# .clang-format. Sourced by setup.sh.

setup_clang_format() {
  local dest=$BUILD/clang-format
  stamped "$dest/.stamp" "$PIN_CLANG_FORMAT" || cached clang-format "$dest" "$PIN_CLANG_FORMAT" .stamp fetch_clang_format "$dest"
}

fetch_clang_format() {
  local dest=$1
  say "fetching clang-format (2 MB, into build/clang-format)"
  mkdir -p "$BUILD/cuda"
  rm -rf "$dest"
  cuda_wheels "$dest" "$PIN_CLANG_FORMAT"
  "$CLANG_FORMAT" --version >/dev/null || die "$PIN_CLANG_FORMAT does not run here"
  echo "$PIN_CLANG_FORMAT" >"$dest/.stamp"
}
