#!/usr/bin/env bash
# What scripts/fleet.sh takes of a machine (make kube): Debian's packages for a node, installed
# where they are missing, and Kubernetes, built once for a user.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"
. "$ROOT/scripts/lib/apt.sh"

missing=()
for row in 'runc runc' '/usr/lib/cni/ptp containernetworking-plugins' 'busybox busybox-static' 'ip iproute2' 'jq jq' 'openssl openssl' 'curl curl' 'gcc gcc'; do
  have "${row% *}" || missing+=("${row#* }")
done
if [ ${#missing[@]} -gt 0 ]; then
  say "installing ${missing[*]}"
  system_update
  system_install "${missing[@]}" || die "installing ${missing[*]} failed: see $APT_DIR/install.log"
fi
"$ROOT/scripts/kube/build.sh"
say "make kube: ready"
