# nvcc, headers and CUDA runtimes from Python wheels, laid out as toolkits under build/cuda/VERSION;
# sourced by setup.sh. Each folder has bin/nvcc, include/cuda.h, lib/libcudart_static.a and
# lib/libcudart.so.*. No GPU and no driver is needed.

cuda_pip() {
  local venv=$BUILD/cuda/venv
  (
    flock 7
    [ -x "$venv/bin/pip" ] || python3 -m venv "$venv" >/dev/null
  ) 7>"$BUILD/cuda/.venv.lock" || die "python3 -m venv failed: install python3-venv"
  retry 4 "$venv/bin/pip" --disable-pip-version-check --retries 5 "$@"
}

# cuda_wheels DEST REQUIREMENT... unpacks wheels into DEST without resolving dependencies.
cuda_wheels() {
  local dest=$1; shift
  cuda_pip install -q --no-deps --no-compile --no-cache-dir --target "$dest" "$@" || die "fetching $* failed"
}

# cuda_finish DIR links what nvcc looks for. libcudadevrt (kernels that launch kernels) is absent
# from the wheels;
# nvcc names it on every link line, so an empty archive stands in: a program that needs it fails to
# link.
cuda_finish() {
  local d=$1 so
  ln -sfn lib "$d/lib64"
  [ -f "$d/lib/libcudadevrt.a" ] || ar rcs "$d/lib/libcudadevrt.a"
  so=$(cd "$d/lib" && ls libcudart.so.* | head -1)
  ln -sfn "$so" "$d/lib/libcudart.so"
  chmod -R u+rwX "$d"; chmod +x "$d"/bin/* "$d"/nvvm/bin/* 2>/dev/null || true
  local f
  for f in bin/nvcc bin/ptxas bin/fatbinary bin/cudafe++ nvvm/bin/cicc include/cuda.h include/crt/host_config.h lib/libcudart_static.a; do
    [ -e "$d/$f" ] || die "the $(basename "$d") toolkit lacks $f"
  done
}

cuda_profile() {
  cat >"$1/bin/nvcc.profile" <<'P'
TOP              = $(_HERE_)/..
CICC_PATH        = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH            += $(CICC_PATH):$(_HERE_):
INCLUDES        += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/lib"
P
}

cuda_13_0() {
  local d=$BUILD/cuda/13.0.new
  rm -rf "$d" "$d.w"
  cuda_wheels "$d.w" "${PIN_CUDA_13_0[@]}"
  mv "$d.w/nvidia/cu13" "$d"; rm -rf "$d.w"
  cuda_finish "$d"
}

# cuda_from_wheels_and_debs VERSION WHEELS-ARRAY DEBS-ARRAY assembles an older toolkit.
cuda_from_wheels_and_debs() {
  local d=$BUILD/cuda/$1.new; local -n wheels=$2 debs=$3
  local row p suite v t=$d/deb
  rm -rf "$d" "$d.w"; mkdir -p "$d/bin" "$d/nvvm/bin" "$d/include" "$d/lib" "$t"
  cuda_wheels "$d.w" "${wheels[@]}" &
  local pip=$!
  for row in "${debs[@]}"; do
    read -r p suite v <<<"$row"
    deb_download "$p=$v" || die "fetching $p failed"
    # tar stops reading at the last wanted file; the broken pipe behind it is expected.
    case $p in
      nvidia-cuda-dev) dpkg-deb --fsys-tarfile "$(deb_file "$p" "$v")" 2>/dev/null | tar x -C "$t" --occurrence=1 \
        ./usr/lib/x86_64-linux-gnu/libcudadevrt.a ./usr/lib/x86_64-linux-gnu/libcudart_static.a || true ;;
      *) dpkg-deb --fsys-tarfile "$(deb_file "$p" "$v")" | tar x -C "$t" --wildcards './usr/bin/*' './usr/lib/nvidia-cuda-toolkit/bin/*' ;;
    esac
    rm -f "$(deb_file "$p" "$v")"
  done
  wait $pip || die "fetching $* failed"
  local n=$d.w/nvidia b=$t/usr/lib/nvidia-cuda-toolkit/bin
  cp -r "$n"/cuda_nvcc/include/. "$n"/cuda_runtime/include/. "$d/include/"
  [ -d "$n/cuda_cccl/include" ] && cp -r "$n/cuda_cccl/include/." "$d/include/"
  cp -r "$n/cuda_nvcc/nvvm/libdevice" "$d/nvvm/"
  # Not libcudadevrt.a: nvlink refuses device code newer than itself.
  find "$n/cuda_runtime/lib" -name 'libcudart*' -exec cp {} "$d/lib/" \;
  cp "$t"/usr/lib/x86_64-linux-gnu/*.a "$d/lib/" 2>/dev/null || true
  cp "$b/nvcc" "$d/bin/"; cp -r "$b/crt" "$d/bin/"; cp "$b/cicc" "$d/nvvm/bin/"
  # ptxas of the compiler's own version: it must know the PTX that cicc writes.
  local f
  for f in ptxas fatbinary cudafe++ nvlink bin2c cuobjdump nvdisasm; do cp "$t/usr/bin/$f" "$d/bin/"; done
  cuda_profile "$d"
  rm -rf "$t" "$d.w"
  cuda_finish "$d"
  cuda_fit_glibc "$d"
}

# cuda_fit_glibc DIR: glibc 2.41 and newer declare four functions that older toolkits declare too,
# and say that they do not throw. With an older glibc the toolkit's own declarations agree with each
# other as they are.
cuda_fit_glibc() {
  local glibc; glibc=$(getconf GNU_LIBC_VERSION | awk '{print $2}')
  [ "$(printf '%s\n' 2.41 "$glibc" | sort -V | head -1)" = 2.41 ] || return 0
  local f=$1/include/crt/math_functions.h old='^(extern __DEVICE_FUNCTIONS_DECL__ __device_builtin__ (double|float) +(sin|cos)pif?\((double|float) x\));'
  ! grep -qE "$old" "$f" || sed -Ei "s/$old/\1 noexcept (true);/" "$f"
}

# cuda_host_compiler installs what older toolkits' nvcc can read the headers of, where g++ is newer.
cuda_host_compiler() {
  local missing
  missing=$(gcc_for_nvcc 11.8)
  [ -n "$missing" ] && ! have "$missing" || return 0
  say "installing $missing: nvcc 11.8 and 12.4 do not read the headers of g++ $(g++ -dumpversion)"
  system_update
  system_install "$missing" || die "installing $missing failed: see $APT_DIR/install.log"
}

# setup_cuda_one VERSION
setup_cuda_one() {
  local v=$1 tag=${1//./_} d=$BUILD/cuda/$1 want
  local -n w=PIN_CUDA_$tag
  want="${w[*]} recipe 2"
  if stamped "$d/.pin" "$want"; then
    [ "$v" = 13.0 ] || cuda_fit_glibc "$d"
    return
  fi
  mkdir -p "$BUILD/cuda"
  cached cuda "$d" "$want" .pin fetch_cuda "$v" "$want"
  [ "$v" = 13.0 ] || cuda_fit_glibc "$d"
}

fetch_cuda() {
  local v=$1 want=$2 d=$BUILD/cuda/$1
  case $v in
    13.0) say "fetching nvcc and runtime 13.0 (105 MB of wheels, into build/cuda)"; cuda_13_0 ;;
    12.9) say "fetching runtime 12.9 and Debian's nvcc 12.4 (135 MB, into build/cuda)"; apt_ready
      cuda_from_wheels_and_debs 12.9 PIN_CUDA_12_9 PIN_CUDA_12_9_DEB ;;
    11.8) say "fetching nvcc and runtime 11.8 (880 MB, nearly all for one static library; 40 MB stay, in build/cuda)"; apt_ready
      cuda_from_wheels_and_debs 11.8 PIN_CUDA_11_8 PIN_CUDA_11_8_DEB ;;
    *) die "no recipe for CUDA $v" ;;
  esac
  rm -rf "$d"; mv "$d.new" "$d"
  echo "$want" >"$d/.pin"
  say "CUDA $v ready: build/cuda/$v/bin/nvcc"
}

# setup_cuda [VERSION...] prepares the named toolkits, all three by default, side by side.
setup_cuda() {
  local v pids=() p
  [ $# = 0 ] && set -- 13.0 12.9 11.8
  for v in "$@"; do setup_cuda_one "$v" & pids+=($!); done
  local rc=0
  for p in "${pids[@]}"; do wait "$p" || rc=1; done
  [ $rc = 0 ] || die "not all CUDA toolkits are there"
}
