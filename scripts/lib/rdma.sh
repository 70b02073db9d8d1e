# Guests with an RDMA device (scripts/rdma.sh), and the two scripts that run CUDA programs in them:
# scripts/verbs.sh and scripts/vf-guest.sh. Sourced.

# rdma_guest: what each such guest has, as options of scripts/vm.sh.
# shellcheck disable=SC2034
rdma_guest=(--file "$ROOT/images/rdma-up" --file "$BUILD/rdma/bin:/usr/bin" --file "$BUILD/rdma/lib:/usr/lib/x86_64-linux-gnu" --file "$BUILD/rdma/etc/libibverbs.d:/etc/libibverbs.d")

# rdma_setup SERIES fetches what is missing for them.
rdma_setup() { "$ROOT/scripts/setup.sh" rdma "$1" 2>&1 | { grep -v ': ready$' || true; } >&2; }

# rdma_options LINES DEFAULTS [ARG...] reads "[--kernel SERIES] [PROGRAM...]": sets kernel, and
# programs. --help shows the script's lines 2 to LINES.
rdma_options() {
  local lines=$1 defaults=$2; shift 2
  kernel=6.12 programs=()
  while [ $# -gt 0 ]; do
    case $1 in
      --kernel) [ $# -gt 1 ] || die "--kernel takes a series"; kernel=$2; shift 2 ;;
      -h | --help) sed -n "2,${lines}s/^# \{0,1\}//p" "$0"; exit ;;
      -*) die "unknown option $1: see $0 --help" ;;
      *) programs+=("$1"); shift ;;
    esac
  done
  [ ${#programs[@]} -gt 0 ] || read -ra programs <<<"$defaults"
}

# rdma_programs sets CAUSEWAY, and files to programs, what they should print, and rounds, as options
# of scripts/vm.sh.
rdma_programs() {
  local p variant=13.0-static tests=$BUILD/tests/13.0-static
  CAUSEWAY=$BUILD/bin/causeway
  [ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
  # shellcheck disable=SC2034
  files=()
  for p in "${programs[@]}" rounds; do
    [ -x "$tests/$p" ] || die "no test program $p: run scripts/build-tests.sh"
    files+=(--file "$tests/$p:/app/tests/$p")
    [ "$p" = rounds ] || files+=(--file "$(expected $variant "$p"):/app/expected/$p.txt")
  done
}
