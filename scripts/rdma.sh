#!/usr/bin/env bash
# Boots a VM that has an RDMA device without any hardware, soft RoCE under Debian's full kernel,
# runs a command in it and returns its status.
#
#   scripts/rdma.sh [options] -- COMMAND [ARG...]
#   scripts/rdma.sh [options] --check       proves the device: rping and ib_write_bw
#   scripts/rdma.sh [options] --registers   prints what memory the device registers: dma-bufs, pages
#                                           on demand (needs a C compiler)
#
#   --pair            two VMs with a wire between them; both run COMMAND, which looks at RDMA_ROLE
#                     (server, client). Lines are marked with it
#   --kernel SERIES   6.12 (default) or 7.2
#   --file SRC[:DEST] one more file for the guest (default DEST: /app/NAME); may repeat
#   --socket, --share, --device, --accel, --mem, --smp, --timeout, --stall, --make-image, --quiet:
#   as scripts/vm.sh has them (--mem 768M here)
#
# COMMAND is a file of this machine, copied to /app, or a name looked up in the guest: busybox,
# rdma-core's programs, perftest, rdma; iproute2 as /usr/bin/ip and /usr/bin/tc. It finds
# RDMA_DEVICE, RDMA_ADDRESS, RDMA_PEER, RDMA_GID_INDEX and RDMA_ROLE (images/rdma-up). libibverbs
# and librdmacm lie where programs look. scripts/setup.sh rdma fetches what is missing. There is no
# other way to the device: its kernel modules are in no cloud kernel.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/rdma.sh"

series=6.12 pair= check= args=() files=()
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) series=$2; shift 2 ;;
    --pair) pair=1; shift ;;
    --check | --registers) check=$1; shift ;;
    --file) files+=(--file "$2"); shift 2 ;;
    --socket | --share | --device | --accel | --mem | --smp | --timeout | --stall | --make-image) args+=("$1" "$2"); shift 2 ;;
    --quiet) args+=("$1"); shift ;;
    --) shift; break ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
[ -z "$check" ] || [ $# = 0 ] || die "$check runs its own command"
case $check in
  --check) set -- "$ROOT/images/rdma-check" ;;
  --registers) set -- "$BUILD/bin/rdma-registers" ;;
esac
[ $# -gt 0 ] || die "nothing to run: see $0 --help"
rdma_setup "$series"

if [ "$check" = --registers ]; then
  mkdir -p "$BUILD/bin"
  cc -O1 -Wall -I "$BUILD/rdma/include" -o "$1" "$ROOT/scripts/rdma/registers.c" -L "$BUILD/rdma/lib" -libverbs -ldl -Wl,-rpath-link,"$BUILD/rdma/lib"
fi
command=$1; shift
case $command in
  */*)
    [ -f "$command" ] || die "$command is not a file"
    files+=(--file "$command")
    command=/app/$(basename "$command") ;;
esac
files+=("${rdma_guest[@]}")

# vm ROLE COMMAND... goes on as one VM that runs it, beside the options.
vm() {
  local role=$1; shift
  exec "$ROOT/scripts/vm.sh" --kernel "$series-full" --mem 768M "${args[@]}" "${files[@]}" "${wire[@]}" -- sh /app/rdma-up "$role" "$@"
}

wire=()
if [ -z "$pair" ]; then
  vm alone "$command" "$@"
fi

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-rdma.XXXXXX")
client=
on_exit '[ -z "$client" ] || kill "$client" 2>/dev/null || true; rm -rf "$tmp"'
# The client's QEMU wants the server's socket to be there.
wire=(--nic "client:$tmp/wire")
(
  for _ in {1..3000}; do [ ! -S "$tmp/wire" ] || break; sleep 0.1; done
  vm client "$command" "$@"
) > >(sed -u 's/^/client: /') 2>&1 &
client=$!
wire=(--nic "server:$tmp/wire")
server_rc=0 client_rc=0
(vm server "$command" "$@") > >(sed -u 's/^/server: /') 2>&1 || server_rc=$?
wait "$client" || client_rc=$?
client=
[ "$server_rc" = 0 ] || exit "$server_rc"
exit "$client_rc"
