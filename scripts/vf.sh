#!/usr/bin/env bash
# Shows `causeway vf` on virtual functions of a NIC: QEMU's igb, which has SR-IOV, under Debian's
# full kernel with its drivers, an emulated IOMMU and VFIO.
#
#   scripts/vf.sh [options of scripts/rdma.sh]
#
# Each line is a check (images/vf-check); the status is 0 if all passed. What only a ConnectX has
# (GUIDs, RDMA, link state) docs/VF.md lists.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"

case ${1:-} in -h | --help) header; exit ;; esac
[ -x "$CAUSEWAY" ] || die "$CAUSEWAY is missing: run make build"
exec "$ROOT/scripts/rdma.sh" --device intel-iommu --device pcie-root-port,id=nic,bus=pcie.0,chassis=9 --device igb,bus=nic \
  --file "$CAUSEWAY" "$@" -- "$ROOT/images/vf-check"
