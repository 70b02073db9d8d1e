#!/usr/bin/env bash
# Builds what a Kubernetes node and control plane are made of, once per user and version, for all
# checkouts: kube (etcd and Kubernetes' programs in one binary), containerd, its shim and ctr. Cold
# it takes some 13 minutes of CPU time on two cores and 220 MB in ~/.cache/causeway/kube
# (lib/cache.sh); what is there already is left alone.
#
#   scripts/kube/build.sh [--folder]      --folder prints the folder alone, with status 1 where it
#                                         is not built
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"
. "$ROOT/scripts/lib/cache.sh"
kubernetes=v1.36.3 containerd=v2.4.2
cd "$ROOT/scripts/kube"
cache=${CACHE:-$BUILD}/kube
made_of=$({ cat main.go go.mod go.sum; echo "containerd $containerd, recipe 1"; } | cksum)
out=$cache/$kubernetes-${made_of%% *}
if [ "${1:-}" = --folder ]; then
  echo "$out"
  [ -x "$out/kube" ]
  exit
fi
[ ! -x "$out/kube" ] || exit 0
mkdir -p "$cache"
exec 9>"$cache/.lock"; flock 9
[ ! -x "$out/kube" ] || exit 0 # somebody else has built it meanwhile

# The folder gets its name when all is in it, and is never written again: clusters of other
# checkouts run from it.
new=$out.new
rm -rf "$new"; mkdir "$new"
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
say "Kubernetes $kubernetes and containerd $containerd are built once, to $out: some 13 minutes of CPU time"
x=k8s.io/component-base/version
nice go build -trimpath -o "$new/kube" -ldflags "-s -w -X $x.gitVersion=$kubernetes -X $x.gitMajor=1 -X $x.gitMinor=36 -X $x.gitTreeState=clean" .
GOBIN=$new nice go install -trimpath -ldflags '-s -w' github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}@$containerd
mv "$new" "$out"
