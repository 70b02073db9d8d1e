#!/usr/bin/env bash
# Builds the CUDA test programs of guest/tests with nvcc: every runtime, static and shared.
#
#   scripts/build-tests.sh [--only VARIANT]... [--jobs N] [--nvcc VERSION=PATH] [PROGRAM...]
#
# VARIANT is CUDA-KIND, e.g. 13.0-static, or a CUDA version alone; results are
# build/tests/VARIANT/PROGRAM.
# One object per program and CUDA version, linked twice. Up-to-date programs are skipped.
# Each program holds PTX (the software GPU executes it, newer GPUs compile it) and code for sm_90.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/cache.sh"

src=$ROOT/guest/tests
jobs=2 only=() programs=()
declare -A nvcc_of
while [ $# -gt 0 ]; do
  case $1 in
    --only) only+=("$2"); shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --nvcc) nvcc_of[${2%%=*}]=${2#*=}; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1" ;;
    *) programs+=("$1"); shift ;;
  esac
done
if [ ${#programs[@]} = 0 ]; then
  for f in "$src"/*.cu; do
    case $f in *_kernels.cu) ;; *) programs+=("$(basename "$f" .cu)") ;; esac
  done
fi
[ ${#only[@]} -gt 0 ] || only=(11.8 12.9 13.0)
# One at a time: two would write the same objects.
mkdir -p "$BUILD/tests"
exec 9>"$BUILD/tests/.lock"
flock 9

toolkit() { echo "$BUILD/cuda/$1"; }
nvcc_path() { echo "${nvcc_of[$1]:-$(toolkit "$1")/bin/nvcc}"; }

# newer TARGET SOURCE...: is TARGET there and newer than every source?
newer() {
  local t=$1 s; shift
  [ -e "$t" ] || return 1
  for s in "$@"; do [ "$t" -nt "$s" ] || return 1; done
}

# wanted VERSION PROGRAM: a source may say "needs: cuda X.Y".
wanted() {
  local need; need=$(sed -n 's/.*needs: cuda \([0-9.]*[0-9]\).*/\1/p' "$src/$2.cu" | head -1)
  [ -z "$need" ] || [ "$(printf '%s\n%s\n' "$need" "$1" | sort -V | head -1)" = "$need" ]
}

flags=(-O2 -Xptxas -suppress-stack-size-warning -std=c++17 -allow-unsupported-compiler -Wno-deprecated-gpu-targets
)

# device_code VERSION PROGRAM: flags for PTX, and machine code of the newest GPU made from it: one
# run of the compiler, not two, but for a source that asks for its architecture. One that needs more
# than the oldest says "ptx: 90", and "ptx only: cuda X.Y..." where that version's assembler is
# wrong.
device_code() {
  local arch code native=; arch=$(sed -n 's/.*ptx: \([0-9]*\).*/\1/p' "$src/$2.cu" | head -1)
  code=compute_${arch:=75}
  if grep -q __CUDA_ARCH__ "$src/$2.cu"; then
    native="-gencode arch=compute_90,code=sm_90"
  elif ! grep -q "ptx only:.*cuda.* $1\>" "$src/$2.cu"; then
    code+=,sm_90
  fi
  echo "-gencode arch=compute_$arch,code=[$code] $native"
}

# host_code VERSION: flags for the machine's own compiler.
host_code() {
  local gcc; gcc=$(gcc_for_nvcc "$1")
  [ -n "${nvcc_of[$1]:-}" ] || [ -z "$gcc" ] || echo "-ccbin $gcc"
}

# separate PROGRAM: is it compiled to relocatable device code? A source that launches kernels in
# kernels says "rdc".
separate() { grep -q '^// rdc' "$src/$1.cu"; }

# Link lines without nvcc: it would run nvlink and a second compilation for relocatable device code,
# which few have.
link() { # VERSION KIND OBJECT OUT
  local lib; lib=$(dirname "$(dirname "$(nvcc_path "$1")")")
  for lib in "$lib/lib" "$lib/lib64" "$lib/targets/x86_64-linux/lib"; do [ -e "$lib/libcudart_static.a" ] && break; done
  local args=(-o "$4" "$3")
  [ ! -f "${3%.o}.dlink" ] || args+=(-x none "${3%.o}.dlink" "$lib/libcudadevrt.a")
  [ "${3%-driver.o}" = "$3" ] || args+=("$stubs/libcuda.so")
  case $2 in
    static) args+=("$lib/libcudart_static.a" -ldl -lrt -lpthread) ;;
    shared) args+=("-L$lib" -lcudart -lpthread '-Wl,-rpath,$ORIGIN') ;;
  esac
  g++ "${args[@]}"
}

# stub_libcuda makes a library to link against: the names that the programs use, under the real
# one's soname.
# It is never loaded: programs find Causeway's libcuda.so.1 or the machine's own.
stubs=$BUILD/tests/stubs
stub_libcuda() { # OBJECT...
  mkdir -p "$stubs"
  nm -u "$@" | awk '$1 == "U" && $2 ~ /^cu[A-Z]/ {print "int " $2 "(void) { return 999; }"}' | sort -u >"$stubs/libcuda.c.new"
  if ! cmp -s "$stubs/libcuda.c.new" "$stubs/libcuda.c" || [ ! -f "$stubs/libcuda.so" ]; then
    gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$stubs/libcuda.so" -x c "$stubs/libcuda.c.new"
    mv "$stubs/libcuda.c.new" "$stubs/libcuda.c"
  fi
}

object() { # VERSION PROGRAM: prints its path
  local o=$BUILD/tests/obj/$1/$2
  grep -q '"driver.h"' "$src/$2.cu" && o=$o-driver
  echo "$o.o"
}

# compiled_by VERSION PROGRAM names the cache's entry of its object: the toolkit as it was fetched,
# the flags, the compiler for the host's part, and all that the source may include. A compiler that
# was named by hand is not known well enough.
compiled_by() {
  [ -z "${nvcc_of[$1]:-}" ] && [ -f "$(toolkit "$1")/.pin" ] || return 0
  local host h own headers=(); host=$(gcc_for_nvcc "$1")
  for h in "$src"/*.h; do # rounds.h and rounds_training.h are of the program rounds alone
    own=$(basename "$h" .h) own=${own%%_*}
    [ -f "$src/$own.cu" ] && [ "$own" != "$2" ] || headers+=("$h")
  done
  cache_entry nvcc "$2 $(cat "$(toolkit "$1")/.pin") $("${host:-g++}" --version | head -1)" "$0" "$src/$2.cu" "${headers[@]}" "$src/driverapi_kernels.cu"
}

# compile VERSION PROGRAM makes its object, and beside it what launches of kernels in kernels need,
# or takes both from another checkout.
compile() {
  local o entry; o=$(object "$1" "$2"); entry=$(compiled_by "$1" "$2")
  if [ -n "$entry" ] && { ! separate "$2" || cache_take "$entry.dlink" "${o%.o}.dlink"; } && cache_take "$entry.o" "$o"; then
    echo "$2" >>"$taken"
    return
  fi
  run_nvcc "$1" "$2" "$o" || return 1
  [ -n "$entry" ] || return 0
  ! separate "$2" || cache_give "$entry.dlink" "${o%.o}.dlink"
  cache_give "$entry.o" "$o"
}

run_nvcc() { # VERSION PROGRAM OBJECT
  local v=$1 p=$2 o=$3 nvcc; nvcc=$(nvcc_path "$1")
  # Named from the root: programs print __FILE__.
  # shellcheck disable=SC2046
  (cd "$ROOT" && "$nvcc" "${flags[@]}" $(host_code "$v") $(device_code "$v" "$p") $(! separate "$p" || echo -rdc=true) -I"$BUILD/tests/obj/$v" -c -o "$o.new" "guest/tests/$p.cu") || return 1
  if separate "$p"; then
    cp "$o.new" "${o%.o}.part.o" # nvcc knows objects by their ending
    # shellcheck disable=SC2046
    "$nvcc" $(host_code "$v") -Wno-deprecated-gpu-targets -gencode arch=compute_90,code=sm_90 -dlink -o "${o%.o}.dlink.o" "${o%.o}.part.o" -lcudadevrt || return 1
    rm "${o%.o}.part.o"
    mv "${o%.o}.dlink.o" "${o%.o}.dlink"
  fi
  mv "$o.new" "$o"
}

# The fatbin that driverapi and library embed, as a header.
fatbin_header() { # VERSION
  local d=$BUILD/tests/obj/$1 nvcc; nvcc=$(nvcc_path "$1")
  mkdir -p "$d"
  newer "$d/driverapi_fatbin.h" "$src/driverapi_kernels.cu" "$nvcc" "$0" && return
  # shellcheck disable=SC2046
  "$nvcc" "${flags[@]}" $(host_code "$1") $(device_code "$1" driverapi_kernels) -fatbin -o "$d/driverapi.fatbin" "$src/driverapi_kernels.cu"
  { echo 'alignas(8) static const unsigned char driverapi_fatbin[] = {'
    od -An -v -tx1 "$d/driverapi.fatbin" | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g'; echo '};'; } >"$d/driverapi_fatbin.h.new"
  mv "$d/driverapi_fatbin.h.new" "$d/driverapi_fatbin.h"
}

# pool runs at most $jobs commands at once and remembers a failure.
running=0 failed=
pool() {
  if [ "$running" -ge "$jobs" ]; then wait -n || failed=1; running=$((running - 1)); fi
  "$@" & running=$((running + 1))
}
drain() { while [ "$running" -gt 0 ]; do wait -n || failed=1; running=$((running - 1)); done; [ -z "$failed" ] || die "building the test programs failed"; }

versions=$(printf '%s\n' "${only[@]%-*}" | sort -uV)
compiled=0 linked=0 taken=$BUILD/tests/taken
: >"$taken"
for v in $versions; do
  [ -x "$(nvcc_path "$v")" ] || die "no nvcc for CUDA $v: run scripts/setup.sh cuda $v"
  fatbin_header "$v"
  for p in "${programs[@]}"; do
    [ -f "$src/$p.cu" ] || die "guest/tests/$p.cu is missing"
    wanted "$v" "$p" || continue
    o=$(object "$v" "$p")
    newer "$o" "$src/$p.cu" "$src"/*.h "$src/driverapi_kernels.cu" "$0" "$(nvcc_path "$v")" && continue
    [ "$compiled" -gt 0 ] || say "making test programs, CUDA$(printf ' %s' $versions)"
    compiled=$((compiled + 1))
    pool compile "$v" "$p"
  done
done
drain
mapfile -t driver_objects < <(find "$BUILD/tests/obj" -name '*-driver.o')
[ ${#driver_objects[@]} = 0 ] || stub_libcuda "${driver_objects[@]}"
for v in $versions; do
  for kind in static shared; do
    case " ${only[*]} " in *" $v "* | *" $v-$kind "*) ;; *) continue ;; esac
    d=$BUILD/tests/$v-$kind
    mkdir -p "$d"
    if [ "$kind" = shared ]; then
      for so in "$(toolkit "$v")"/lib/libcudart.so.*; do [ -f "$d/$(basename "$so")" ] || cp "$so" "$d/"; done
    fi
    for p in "${programs[@]}"; do
      wanted "$v" "$p" || continue
      o=$(object "$v" "$p")
      newer "$d/$p" "$o" && continue
      linked=$((linked + 1))
      pool link "$v" "$kind" "$o" "$d/$p"
    done
  done
done
drain
again=$(wc -l <"$taken")
say "test programs: $((compiled - again)) compiled, $linked linked$([ "$again" = 0 ] || echo ", $again objects are another checkout's ($CACHE)")"
[ $((compiled - again)) = 0 ] || cache_prune
