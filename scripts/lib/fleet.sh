# What scripts/fleet.sh starts beside Kubernetes, and what it checks; sourced after common.sh and
# kube.sh.

passed=0
ok() { printf '[%3ds] ok      %s\n' "$SECONDS" "$*"; passed=$((passed + 1)); }

causeway() { "$BUILD/bin/causeway" "$1" --run-dir "$kube/run" "${@:2}"; }

causewayd_up() {
  printf 'run_dir = "%s"\nstate_dir = "%s"\nlog_dir = "%s"\n[placement]\nsoftware_memory = "2GiB"\n' "$kube/run" "$kube/state" "$kube/causewaylog" >"$kube/causewayd.toml"
  [ ! -f "$kube/remote.toml" ] || cat "$kube/remote.toml" >>"$kube/causewayd.toml" # fleet-net.sh's
  kube_start causewayd "$BUILD/bin/causeway" daemon --config "$kube/causewayd.toml"
  await 20 "causewayd answers" causeway gpus --json
}

# driver_token makes the kubeconfig of the service account on this node, as docs/KUBERNETES.md does.
driver_token() { kube_config dra "$(kubectl -n causeway create token causeway-dra --bound-object-kind Node --bound-object-name "$kube_node" --duration 8760h)"; }

# as_driver CONFIG SAYS COMMAND... is refused with these words.
as_driver() {
  local config=$1 says=$2
  shift 2
  if "$kube_bin/kube" kubectl --kubeconfig "$kube/pki/$config.kubeconfig" "$@" >"$kube/log/as_driver" 2>&1; then return 1; fi
  grep -F -- "$says" "$kube/log/as_driver"
}

# slice NAME DRIVER SPEC [POOL] prints a ResourceSlice's file.
slice() {
  printf 'apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: %s}\nspec: {driver: %s, pool: {name: "%s", generation: 1, resourceSliceCount: 1}, devices: [], %s}\n' "$1" "$2" "${4:-$kube_node}" "$3" >"$kube/slice-$1.yaml"
  echo "$kube/slice-$1.yaml"
}

# What the driver's account may not: another node's slices, those of no node, other drivers';
# without a node's name in the token nothing.
check_rights() {
  local own
  kube_config unbound "$(kubectl -n causeway create token causeway-dra)"
  kubectl create -f "$(slice others gpu.causeway.dev 'nodeName: other')" >/dev/null
  own=$(kubectl get resourceslices -o json | jq -r --arg n "$kube_node" '.items[] | select(.spec.nodeName == $n).metadata.name')
  await 30 "the policy holds" as_driver unbound 'names no node' create --dry-run=server -f "$(slice mine gpu.causeway.dev "nodeName: $kube_node")"
  as_driver dra 'writes no ResourceSlice of other' create -f "$(slice more gpu.causeway.dev 'nodeName: other')" >/dev/null || die "another node's slice: $(cat "$kube/log/as_driver")"
  as_driver dra 'writes no ResourceSlice of other' delete resourceslice others >/dev/null || die "deletion of another node's slice: $(cat "$kube/log/as_driver")"
  as_driver dra 'writes no ResourceSlice of other' annotate resourceslice others a=b >/dev/null || die "change of another node's slice: $(cat "$kube/log/as_driver")"
  as_driver dra 'writes no ResourceSlice of no node' create -f "$(slice net gpu.causeway.dev 'allNodes: true')" >/dev/null || die "a slice of no node: $(cat "$kube/log/as_driver")"
  as_driver dra 'writes no ResourceSlice of gpu.example.com' create -f "$(slice foreign gpu.example.com "nodeName: $kube_node")" >/dev/null || die "another driver's slice: $(cat "$kube/log/as_driver")"
  as_driver dra 'writes no ResourceSlice of the pool fleet/gpu1' create -f "$(slice pool gpu.causeway.dev "nodeName: $kube_node" fleet/gpu1)" >/dev/null || die "a slice of another's pool: $(cat "$kube/log/as_driver")"
  as_driver unbound 'names no node' delete resourceslice "$own" >/dev/null || die "deletion without a node: $(cat "$kube/log/as_driver")"
  as_driver dra 'forbidden' get secrets -A >/dev/null || die "secrets: $(cat "$kube/log/as_driver")"
  kubectl delete resourceslice others >/dev/null
  ok "the driver's account writes its own node's slices, and no others: not another node's, none of no node or of another pool, no other driver's; nothing without a node's name in its token"
}

driver_up() {
  kube_start dra "$BUILD/bin/causeway-dra" --node "$kube_node" --kubeconfig "$kube/pki/dra.kubeconfig" --run-dir "$kube/run" --lib "$BUILD/lib" \
    --cdi "$kube/cdi" --plugins "$kube/kubelet/plugins/gpu.causeway.dev" --registry "$kube/kubelet/plugins_registry" --pod-resources "$kube/kubelet/pod-resources/kubelet.sock" --interval 1s
}

gpu_published() { kubectl get resourceslices -o json | jq -e '.items | length == 1 and (.[0].spec.devices | length == 1)'; }

# fleet_image OUT is an image with CUDA programs and what they need of a C library, and nothing of
# ours: that comes with the claim.
fleet_image() {
  local files=("$(command -v busybox):bin/busybox" "$BUILD/tests/13.0-static/vectoradd:bin/vectoradd" "$BUILD/tests/13.0-static/rounds:bin/rounds") f
  gcc -O1 -o "$kube/allocate" "$ROOT/scripts/kube/allocate.c" "$BUILD/lib/libcuda.so.1"
  files+=("$kube/allocate:bin/allocate" /lib64/ld-linux-x86-64.so.2:lib64/ld-linux-x86-64.so.2)
  for f in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libgcc_s.so.1 libstdc++.so.6; do
    files+=("/lib/x86_64-linux-gnu/$f:lib/x86_64-linux-gnu/$f")
  done
  python3 "$ROOT/scripts/kube/image.py" "$1" causeway.test/program:1 "${files[@]}"
}

# wrote POD prints what the pod's containers wrote: this pod's, not those of one of its name before.
wrote() { cat "$kube/podlogs/default_$1_$(kubectl get pod "$1" -o jsonpath='{.metadata.uid}')"/*/*.log; }
# said POD TEXT: is it in that?
said() { wrote "$1" | grep -- "$2"; }
# times POD TEXT: how often?
times() { wrote "$1" 2>/dev/null | grep -c -- "$2" || true; }
more_than() { [ "$(times "$1" "$2")" -gt "$3" ]; }
pod_is() { [ "$(kubectl get pod "$1" -o jsonpath='{.status.phase}')" = "$2" ]; }
pod_gone() { ! kubectl get pod "$1"; }
event() { kubectl get events -o json | jq -e --arg kind "$1" --arg text "$2" 'any(.items[]; .involvedObject.kind == $kind and (.message | contains($text)))'; }
vgpus() { causeway ps --json | jq "$@"; }
no_vgpus() { [ "$(vgpus length)" = 0 ] && ! compgen -G "$kube/cdi/*" && ! compgen -G "$kube/run/claim-*"; }

# has_half_a_gib POD: it asked for 256 MiB and then for 400 of the claim's 512 (allocate 256 400),
# and had the first alone.
has_half_a_gib() {
  await 20 "it asks for memory" said "$1" '400 MiB: '
  said "$1" '256 MiB: 0' >/dev/null || die "256 MiB of 512 are not had: $(wrote "$1" | head -20)"
  said "$1" '400 MiB: 2' >/dev/null || die "400 MiB more are not refused: $(wrote "$1" | head -20)"
}

# pods makes those of pods.yaml, the first before all others: of two that do not fit together either
# may have its turn first.
pods() {
  kubectl apply -l turn=first -f "$ROOT/scripts/kube/pods.yaml" >/dev/null
  await 60 "the first pod is placed" eval '[ -n "$(kubectl get pod first -o jsonpath="{.spec.nodeName}")" ]'
  kubectl apply -f "$ROOT/scripts/kube/pods.yaml" >/dev/null
}

check_container() {
  await 60 "the first pod's program passes" said first PASSED
  has_half_a_gib first
  await 20 "nvidia-smi" said first '/    512MiB'
  [ "$(vgpus -c '[.[0].spec | .memory, .share, .cap, .sessions, .programs]')" = '[536870912,2500,80,4,true]' ] || die "limits: $(vgpus -c '.[0].spec')"
  await 40 "the pod's status says how its GPU is" healthy first
  ok "a container without a VM: a CUDA program passes, its memory ends at the claim's (out of memory), nvidia-smi shows it; share 2500, cap 80 %"
}

health_is() { kubectl get pod "$1" -o json | jq -e --arg is "$2" 'any(.status.containerStatuses[0].allocatedResourcesStatus[]?.resources[]?; .health == $is)'; }
healthy() { health_is "$1" Healthy; }

check_waiting() {
  await 30 "the second pod waits" says default second 'cannot allocate all claims'
  pod_is second Pending || die "the second pod runs: both do not fit"
  [ "$(vgpus length)" = 1 ] || die "a vGPU without a claim: $(causeway ps)"
  ok "a claim that does not fit waits, and its pod says so"
}

check_refused() {
  await 30 "the claim says why" event ResourceClaim 'unknown field "share"'
  await 30 "the pod says why" event Pod 'unknown field "share"'
  await 30 "a claim of the container with two says so" event ResourceClaim 'two claims in one container'
  await 30 "its pod says so" event Pod 'two claims in one container'
  [ "$(vgpus length)" = 1 ] || die "a vGPU for it: $(causeway ps)"
  kubectl delete pod foreign both --wait=false >/dev/null
  await 60 "the refused pod goes" pod_gone foreign
  await 60 "the pod with two claims in a container goes" pod_gone both
  ok "parameters that are none of ours, and two claims in one container, are refused by name, on the claim and on the pod, which can be deleted"
}

check_restarts() {
  local pid n name
  pid=$(vgpus '.[0].pid')
  kube_stop dra
  kube_stop causewayd KILL
  n=$(times first PASSED)
  await 30 "the program goes on without them" more_than first PASSED "$n"
  causewayd_up
  driver_up
  await 30 "the GPU is published again" gpu_published
  # The kubelet asks again for what is prepared when it begins anew.
  kube_stop kubelet
  kube_kubelet
  n=$(times first PASSED)
  await 60 "the program goes on" more_than first PASSED "$n"
  [ "$(vgpus '.[0].pid')" = "$pid" ] || die "its vGPU is another: $(causeway ps)"
  name=$(vgpus -r '.[0].spec.vm')
  kube_stop dra
  kubectl delete pod first --wait=false >/dev/null
  await 30 "its container ends" no_session
  [ "$(vgpus -r '.[0].spec.vm')" = "$name" ] || die "its vGPU is gone before the claim was taken back"
  driver_up
  await 60 "the pod goes when causeway-dra is back" pod_gone first
  ok "restarts of causeway-dra, causewayd and the kubelet: programs go on with their vGPU; a pod that is deleted meanwhile goes when the driver is back"
  await 60 "the claim that waited has its GPU" pod_is second Succeeded
  await 30 "nothing is left" no_vgpus
  ok "the claim that waited is served when there is room, its program passes, and its vGPU is gone with it"
}
no_session() { [ "$(vgpus '.[0].status.sessions | length')" = 0 ]; }

# the_first counts the vGPUs of the first pod's claim.
the_first='[.[] | select(.spec.memory == 536870912)] | length'

# A reboot ends all processes and empties /run; the kubelet's and the pods' objects stay.
check_reboot() {
  local v
  kubectl apply -f "$ROOT/scripts/kube/pods.yaml" >/dev/null 2>&1 || true
  await 60 "the pod is back" said first PASSED
  [ "$(vgpus "$the_first")" = 1 ] || die "vGPUs: $(causeway ps)"
  kube_stop kubelet KILL
  kube_stop dra KILL
  kube_stop causewayd KILL
  for v in $(jq -r .pid "$kube"/run/claim-*/*.json); do kill -9 "$v" 2>/dev/null || true; done
  for v in $("$kube_bin/ctr" -a "$kube/c.sock" -n k8s.io tasks ls -q); do "$kube_bin/ctr" -a "$kube/c.sock" -n k8s.io tasks kill -s KILL "$v" >/dev/null 2>&1 || true; done
  rm -rf "$kube/run" "$kube"/cdi/*
  v=$(times first PASSED)
  causewayd_up
  kube_kubelet
  driver_up
  await 120 "the pod's container runs again" more_than first PASSED "$v"
  [ "$(vgpus "$the_first")" = 1 ] || die "vGPUs: $(causeway ps)"
  ok "after a reboot the claim is prepared again, once, and the pod's program passes"
}

# The node freezes, but for what runs in its containers, and is declared out of service: its pods
# and claims are gone then. What is left of it has to have nothing, with no word of the kubelet.
check_fence() {
  local log begin p
  fleet claim fenced --memory 256MiB --no-wait >/dev/null
  pod_with fenced fenced 'rounds streams; echo rounds ended: $?; sleep 1000'
  await 60 "its program computes" said fenced '@round [2-9]'
  log=$(echo "$kube/podlogs/default_fenced_$(kubectl get pod fenced -o jsonpath='{.metadata.uid}')"/*/*.log)
  for p in kubelet dra causewayd; do kube_signal $p STOP; done
  await 120 "the node is not ready" node_is "$kube_node" Unknown
  kubectl taint node "$kube_node" node.kubernetes.io/out-of-service=nodeshutdown:NoExecute >/dev/null
  await 60 "the pod is gone" pod_gone fenced
  await 30 "its claim has nothing" eval '[ -z "$(kubectl get resourceclaim fenced -o jsonpath="{.status.allocation}")" ]'
  ! grep -q 'rounds ended' "$log" || die "the program ended before anybody could end it: $(tail -3 "$log")"
  for p in dra causewayd; do kube_signal $p CONT; done
  begin=$SECONDS
  await 40 "the old session's program gets an error" grep 'rounds ended: [1-9]' "$log"
  await 20 "the vGPU is gone" eval '[ "$(vgpus "[.[] | select(.spec.memory == 268435456)] | length")" = 0 ]'
  ok "a frozen node is declared out of service: when causeway-dra runs again it ends the old session, with the kubelet frozen still, $((SECONDS - begin)) s later; the container's program: $(tail -n 2 "$log" | head -n 1 | cut -d' ' -f4- | cut -c 1-90)"
  kube_signal kubelet CONT
  await 60 "the node is ready" node_is "$kube_node" True
  kubectl taint node "$kube_node" node.kubernetes.io/out-of-service- >/dev/null
  pod_with again fenced 'vectoradd; sleep 1000'
  await 90 "the same claim serves another pod" said again PASSED
  kubectl delete pod again --wait=false >/dev/null
  await 60 "the pod goes" pod_gone again
  kubectl delete resourceclaim fenced >/dev/null
  ok "the node is back: the same claim serves another pod"
}
node_is() { [ "$(kubectl get node "$1" -o json | jq -r '.status.conditions[] | select(.type == "Ready").status')" = "$2" ]; }
kube_signal() { kill "-$2" "$(cat "$kube/pid/$1")"; }

check_end() {
  kubectl delete pod --all --wait=false >/dev/null
  await 90 "all pods are gone" no_pods
  await 30 "nothing is left" no_vgpus
  kubectl delete resourceclaims --all --wait=false >/dev/null
  ok "when pods are deleted no vGPU, specification or folder is left"
}
no_pods() { [ "$(kubectl get pods -o json | jq '.items | length')" = 0 ]; }
