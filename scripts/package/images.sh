#!/usr/bin/env bash
# Builds the container images of causeway-dra and causeway-fleet without a registry, as OCI layouts
# in tar files.
#
#   scripts/package/images.sh [PREFIX]      PREFIX/causeway-dra:VERSION and
#                                           PREFIX/causeway-fleet:VERSION, by default
#                                           causeway.dev/...; they come to build/images-oci/
#
# An image is one static program and nothing else. The same commit gives the same bytes. Into a node
# without a registry:
#   ctr -n k8s.io images import build/images-oci/causeway-dra.tar
# and into a registry:
#   skopeo copy oci-archive:build/images-oci/causeway-dra.tar docker://REGISTRY/causeway-dra:VERSION
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"
case ${1:-} in -h | --help) header; exit ;; esac
prefix=${1:-causeway.dev} version=${PACKAGE_VERSION:-$("$ROOT/scripts/package/version.sh")}
tag=${version//[^A-Za-z0-9_.-]/-}
[ -x "$BUILD/bin/causeway-dra" ] && [ -x "$BUILD/bin/causeway-fleet" ] || make -s -C "$ROOT" fleet
mkdir -p "$BUILD/images-oci"
# causeway-dra talks to sockets of root, the other to nobody.
python3 "$ROOT/scripts/kube/image.py" --bare --user 0 --entrypoint /causeway-dra "$BUILD/images-oci/causeway-dra.tar" "$prefix/causeway-dra:$tag" "$BUILD/bin/causeway-dra:causeway-dra"
python3 "$ROOT/scripts/kube/image.py" --bare --user 65532 --entrypoint /causeway-fleet "$BUILD/images-oci/causeway-fleet.tar" "$prefix/causeway-fleet:$tag" "$BUILD/bin/causeway-fleet:causeway-fleet"
for f in causeway-dra causeway-fleet; do echo "build/images-oci/$f.tar  $prefix/$f:$tag  $(du -h "$BUILD/images-oci/$f.tar" | cut -f1)"; done
