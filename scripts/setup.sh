#!/usr/bin/env bash
# Installs what Causeway's build, tests and demo need. Idempotent; says each step before doing it.
#
#   scripts/setup.sh all | base | demo | qemu | libvirt | kernels [SERIES...] | cuda [VERSION...] |
#   go-tools | nvidia-smi | nvrtc | promtool |
#                    clang-format | guest | rdma [SERIES...]
#
# Only QEMU, g++ and the like are installed on the machine; the rest goes under build/. Further
# Debian suites come
# from the mirror that apt already uses; elsewhere CAUSEWAY_DEBIAN_MIRROR names one.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/pins.sh"
. "$ROOT/scripts/lib/apt.sh"
. "$ROOT/scripts/lib/cache.sh"
. "$ROOT/scripts/lib/setup-qemu.sh"
. "$ROOT/scripts/lib/setup-libvirt.sh"
. "$ROOT/scripts/lib/setup-kernels.sh"
. "$ROOT/scripts/lib/setup-cuda.sh"
. "$ROOT/scripts/lib/setup-nvidia-smi.sh"
. "$ROOT/scripts/lib/setup-promtool.sh"
. "$ROOT/scripts/lib/setup-clang-format.sh"
. "$ROOT/scripts/lib/setup-nvrtc.sh"
. "$ROOT/scripts/lib/setup-rdma.sh"


setup_go_tools() {
  have go || die "Go is missing: install Go $(awk '/^go /{print $2}' "$ROOT/go.mod") or newer and put it in PATH"
  local want; want=$(cksum <"$ROOT/go.sum")
  stamped "$BUILD/.go-modules" "$want" && return
  say "fetching Go modules named in go.mod"
  (cd "$ROOT" && retry 4 go mod download) || die "go mod download failed"
  # Fetches what tests of those modules import too; what it finds, lint says, without the network.
  (cd "$ROOT" && go mod tidy -diff >/dev/null 2>&1) || true
  echo "$want" >"$BUILD/.go-modules"
}

# setup_mmdebstrap installs what makes Debian systems. Nothing may run side by side with it: a
# machine's apt may be set up to delete what it has fetched at each of its runs.
setup_mmdebstrap() { (. "$ROOT/images/lib.sh"; image_tools); }

# setup_vms installs what starts VMs, one after the other: both are packages.
setup_vms() { setup_qemu; setup_libvirt; }

# setup_guest makes the Debian guest of scripts/guest.sh.
setup_guest() { "$ROOT/images/build-debian.sh"; }

# setup_package makes the Debian that packages are tested in; that takes root.
setup_package() { [ "$(id -u)" != 0 ] || "$ROOT/scripts/package/test.sh" --prepare; }

# together runs steps side by side and fails if one does.
together() {
  setup_system
  local pids=() p step
  for step in "$@"; do
    # A step is a command line: it is split on purpose.
    # shellcheck disable=SC2086
    $step & pids+=($!)
  done
  local rc=0
  for p in "${pids[@]}"; do wait "$p" || rc=1; done
  [ $rc = 0 ] || die "setup is not complete: run it again once the cause above is gone"
}

# What a stock Debian may lack, by the program that tells: PROGRAM PACKAGE...
ORDINARY_TOOLS=('g++ g++' 'ar binutils' 'make make' 'xz xz-utils' 'git git' 'python3 python3' 'ps procps' 'ip iproute2' 'script bsdutils')
# What the test's stages need beside those.
TEST_TOOLS=('rpm rpm' 'depmod kmod' 'jq jq')

# setup_system [ROW...] installs the ordinary tools that are missing, before anything runs side by
# side.
setup_system() {
  local row missing=()
  for row in "${ORDINARY_TOOLS[@]}" "$@"; do
    # shellcheck disable=SC2206
    have "${row%% *}" || missing+=(${row#* })
  done
  [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] || missing+=(ca-certificates)
  python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
  [ ${#missing[@]} = 0 ] && return
  have apt-get || die "these are missing: ${missing[*]}; install them"
  say "installing ${missing[*]}"
  system_update
  system_install "${missing[@]}" || die "installing ${missing[*]} failed: see $APT_DIR/install.log"
}

[ "$(uname -sm)" = 'Linux x86_64' ] || die "Causeway builds on Linux x86_64, this is $(uname -sm)"
mkdir -p "$BUILD"
# One setup at a time: two would unpack over each other.
exec 9>"$BUILD/.setup.lock"
flock -n 9 || { say "another setup.sh is running: waiting for it"; flock 9; }

what=$*
case ${1:-all} in
  all) setup_system "${TEST_TOOLS[@]}"; setup_mmdebstrap; cuda_host_compiler; together setup_vms setup_cuda setup_kernels setup_go_tools setup_clang_format setup_promtool setup_guest setup_rdma setup_package ;;
  base) setup_system "${TEST_TOOLS[@]}"; setup_go_tools; setup_clang_format ;;
  demo) together setup_qemu 'setup_cuda 13.0' 'setup_kernels 6.12' setup_go_tools ;;
  qemu) setup_qemu ;;
  libvirt) setup_libvirt ;;
  kernels) shift; setup_kernels "$@" ;;
  cuda) shift; setup_system; cuda_host_compiler; setup_cuda "$@" ;;
  go-tools) setup_go_tools ;;
  nvidia-smi) setup_nvidia_smi ;;
  nvrtc) setup_system; setup_nvrtc ;;
  promtool) setup_promtool ;;
  clang-format) setup_system; setup_clang_format ;;
  guest) setup_guest ;;
  rdma) shift; setup_system "${TEST_TOOLS[@]}"; setup_image_tools; setup_rdma "$@" ;;
  -h | --help | help) header; exit ;;
  *) header >&2; exit 2 ;;
esac
say "setup ${what:-all}: ready"
