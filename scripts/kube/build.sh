#!/usr/bin/env bash
# Builds what a Kubernetes node and control plane are made of into build/kube, once per machine: kube (etcd and Kubernetes' programs in one binary),
# containerd, its shim and ctr. Cold it takes some 13 minutes of CPU time on two cores; what is there already is left alone.
#
#   scripts/kube/build.sh
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"
kubernetes=v1.36.3 containerd=v2.4.2
out=$BUILD/kube
mkdir -p "$out"
exec 9>"$out/.lock"; flock 9
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false

# as PROGRAM MARK: is it there, built from this?
current() { [ -x "$out/$1" ] && [ "$(cat "$out/.$1" 2>/dev/null)" = "$2" ]; }

mark=$(cat "$ROOT/scripts/kube/main.go" "$ROOT/scripts/kube/go.mod" | cksum)
if ! current kube "$mark"; then
  x=k8s.io/component-base/version
  (cd "$ROOT/scripts/kube" && nice go build -trimpath -o "$out/kube" \
    -ldflags "-s -w -X $x.gitVersion=$kubernetes -X $x.gitMajor=1 -X $x.gitMinor=36 -X $x.gitTreeState=clean" .)
  echo "$mark" >"$out/.kube"
fi
if ! current containerd "$containerd"; then
  GOBIN=$out nice go install -trimpath -ldflags '-s -w' \
    github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}@$containerd
  echo "$containerd" >"$out/.containerd"
fi
