#!/usr/bin/env bash
# Fetches the test suites that packages bring along: CuPy's (its source package) and cuda-python's
# (its wheel of 12.6, the last that has them).
#
#   scripts/compat/suites/fetch.sh [--python 3.12] [DIR]     default: build/suites
#
# Needs pip and a package index. Point COMPAT_SUITES at DIR where the rows run; nothing of it is
# committed.
set -euo pipefail
. "$(dirname "$0")/../../lib/common.sh"

PIN_CUPY=14.2.0 PIN_CUDA_PYTHON=12.6.0
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])') dir=$BUILD/suites
while [ $# -gt 0 ]; do
  case $1 in
    --python) python=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) dir=$1; shift ;;
  esac
done
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$dir"
pip() { python3 -m pip --disable-pip-version-check -q "$@"; }

say "CuPy $PIN_CUPY's source package (4 MB)"
# The stub lets its set-up name the package without a CUDA toolkit.
CUPY_INSTALL_USE_STUB=1 retry 3 pip download --no-deps --no-binary cupy -d "$tmp" "cupy==$PIN_CUPY"
rm -rf "$dir/cupy"; mkdir -p "$dir/cupy"
tar xzf "$tmp/cupy-$PIN_CUPY.tar.gz" -C "$dir/cupy" --strip-components=1 --wildcards '*/tests' '*/pyproject.toml' '*/setup.cfg' 2>/dev/null ||
  tar xzf "$tmp/cupy-$PIN_CUPY.tar.gz" -C "$dir/cupy" --strip-components=1 --wildcards '*/tests' '*/pyproject.toml'

say "cuda-python $PIN_CUDA_PYTHON for Python $python (24 MB)"
rm -rf "$dir/cuda-python"
retry 3 pip install --no-deps --no-compile --target "$dir/cuda-python" --only-binary=:all: --python-version "$python" \
  --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 "cuda-python==$PIN_CUDA_PYTHON"
find "$dir/cuda-python" \( -name '*.cpp' -o -name '*.pyx' -o -name '*.pyx.in' -o -name '*.pxd' \) -delete
say "$dir: $(du -sh "$dir" | cut -f1)"
