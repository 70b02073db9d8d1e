#!/usr/bin/env bash
# Slurm on this machine: Debian's slurmctld and slurmd, causewayd with the software GPU, and jobs
# that hold parts of it.
#
#   scripts/slurm.sh
#
# Takes root and Debian's archive: slurm-wlm and munge are installed into a copy of this machine's
# folders that lies in memory (overlayfs) and ends with the script, as do its processes, mounts and
# network. Prints one line for each check.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/slurm.sh"

case ${1:-} in
  -h | --help) header; exit ;;
  '') ;;
  *) die "unknown option $1: see $0 --help" ;;
esac
[ "$(id -u)" = 0 ] || die "this takes root: it makes name spaces and installs packages in a copy of this machine"
for f in bin/causeway lib/libcuda.so.1 tests/13.0-static/vectoradd; do [ -e "$BUILD/$f" ] || die "build/$f is missing: run make build and scripts/build-tests.sh"; done
case ${SLURM_PLACE:-} in
  '') slurm_apart outside "$0" ;;
  outside) slurm_copy_of_machine "$0" ;;
  inside) ;;
esac

say "Slurm"
slurm_up
say "causewayd and a GPU server"
causewayd_up
gcc -O1 -o /usr/local/bin/allocate "$ROOT/scripts/kube/allocate.c" "$BUILD/lib/libcuda.so.1"
install "$BUILD/tests/13.0-static/vectoradd" /usr/local/bin/vectoradd
check_config
check_part
check_two
check_apart
check_whole
check_refused
check_names
check_ends
check_restarts
check_licenses
check_fault
echo "$passed passed, 0 failed"
