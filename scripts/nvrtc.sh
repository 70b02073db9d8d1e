#!/usr/bin/env bash
# NVRTC and nvJitLink, unmodified, and the compile cache that they find through cuGetExportTable:
# guest/tests/nvrtc_cache.py on the software GPU.
#
#   scripts/nvrtc.sh [--native] [LIBNVRTC [LIBNVJITLINK]]      default: build/nvrtc, from
#       scripts/setup.sh nvrtc
#
# --native asks the machine's own driver the same. Where there is no NVRTC it says so and ends with
# status 77.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
runner=("$BUILD/bin/causeway" run --gpu soft --)
[ "${1:-}" = --native ] && { runner=(); shift; }
libs=("$@")
[ $# -gt 0 ] || mapfile -t libs < <(compgen -G "$BUILD/nvrtc/nvidia/*/lib/libnvrtc.so.1?"; compgen -G "$BUILD/nvrtc/nvidia/*/lib/libnvJitLink.so.1?")
lib=${libs[0]:-}
if [ ! -f "$lib" ]; then
  say "skipped: no libnvrtc; scripts/setup.sh nvrtc fetches it"
  exit 77
fi
# libnvrtc looks for its built-in headers by name.
LD_LIBRARY_PATH=$(dirname "$lib")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout 1200 "${runner[@]}" python3 "$ROOT/guest/tests/nvrtc_cache.py" "${libs[@]}"
