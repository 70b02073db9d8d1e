# GPUs of another host over the network, for scripts/fleet.sh --net; sourced after fleet.sh. gpu1 is
# a GPU server in a network namespace of its own, node1 the node with the kubelet; two controllers
# run with the rights of host/fleet/deploy/causeway-fleet.yaml.

# on_gpu1 COMMAND... runs in gpu1's network, as a machine of that name.
on_gpu1() { on_machine gpu1 "$@"; }
# on_machine NAME COMMAND... runs in a machine's network, as it.
on_machine() { nsenter --net="/run/netns/$1" unshare --mount --uts sh -c 'hostname "$1"; mount --bind "$2" /etc/machine-id; shift 2; exec "$@"' sh "$1" "$kube/$1/machine-id" "${@:2}"; }
far() { "$BUILD/bin/causeway" "$1" --run-dir "$kube/gpu1/run" "${@:2}"; }
far_vgpus() { far ps --json | jq "$@"; }

# net_hosts makes gpu1 and the network between, and says in what node1's causewayd is started with
# where it is.
net_hosts() {
  local h
  mkdir -p "$kube/gpu1"
  ip netns add gpu1
  ip link add w0 type veth peer name w1 netns gpu1
  ip addr add 10.78.0.1/24 dev w0
  ip link set w0 up
  ip -n gpu1 addr add 10.78.0.2/24 dev w1
  ip -n gpu1 link set w1 up
  ip -n gpu1 link set lo up
  echo 0123456789abcdef0123456789abcde1 >"$kube/gpu1/machine-id"
  { cat /etc/hosts; printf '10.78.0.2 gpu1\n10.78.0.1 %s\n10.79.0.2 mover\n' "$kube_node"; } >"$kube/hosts"
  mount --bind "$kube/hosts" /etc/hosts
  "$BUILD/bin/causeway" ca init --dir "$kube/ca" >/dev/null
  for h in gpu1 "$kube_node" mover causeway-fleet; do
    "$BUILD/bin/causeway" ca issue --dir "$kube/ca" "$h" >/dev/null
    mkdir -p "$kube/pki/$h"
    cp "$kube/ca/ca.pem" "$kube/ca/revoked" "$kube/pki/$h"
    cp "$kube/ca/$h.pem" "$kube/pki/$h/host.pem"
    cp "$kube/ca/$h-key.pem" "$kube/pki/$h/host-key.pem"
  done
  { net_identity "$kube_node"; printf 'listen = ":7744"\n[remote]\nservers = ["gpu1"]\n'; } >"$kube/remote.toml"
  printf 'run_dir = "%s"\nstate_dir = "%s"\nlog_dir = "%s"\n[placement]\nsoftware_memory = "2GiB"\n' "$kube/gpu1/run" "$kube/gpu1/state" "$kube/gpu1/log" >"$kube/gpu1.toml"
  { net_identity gpu1; printf '[remote]\nallow = ["%s", "mover"]\nfleet = ["causeway-fleet"]\nlisten = ":7745"\n[metrics]\nlisten = "10.78.0.2:9435"\n' "$kube_node"; } >>"$kube/gpu1.toml"
  net_gpu1_up
}
net_identity() { printf '[migration]\nca = "%s"\ncertificate = "%s"\nkey = "%s"\n' "$kube/pki/$1/ca.pem" "$kube/pki/$1/host.pem" "$kube/pki/$1/host-key.pem"; }
net_gpu1_up() {
  kube_start causewayd-gpu1 on_gpu1 "$BUILD/bin/causeway" daemon --config "$kube/gpu1.toml"
  await 20 "gpu1's causewayd answers" far gpus --json
}

net_controller() { # NAME [ARGS...]
  kube_start "$1" "$BUILD/bin/causeway-fleet" --kubeconfig "$kube/pki/fleet.kubeconfig" -n causeway controller --config "$kube/hosts.yaml" --interval 1s --patience 6s \
    --ca "$kube/pki/causeway-fleet/ca.pem" --certificate "$kube/pki/causeway-fleet/host.pem" --key "$kube/pki/causeway-fleet/host-key.pem" "${@:2}"
}
net_offered() { kubectl get resourceslices -o json | jq -e '[.items[] | select(.spec.pool.name == "fleet/gpu1") | .spec.devices[]?] | length == 1'; }
net_device() { kubectl get resourceslices -o json | jq -e '.items[] | select(.spec.pool.name == "fleet/gpu1").spec.devices[0] | '"$1"; }
leader_of() { kubectl -n causeway get lease causeway-fleet -o jsonpath='{.spec.holderIdentity}'; }

# net_pod NAME MEMORY COMMAND starts a pod with a claim for a GPU of another host.
net_pod() {
  local t
  t=$(<"$ROOT/scripts/kube/netpod.yaml")
  t=${t//NAME/$1} t=${t//MEMORY/$2}
  printf '%s\n' "${t//COMMAND/$3}" | kubectl apply -f - >/dev/null
}
# condition POD TYPE: what the status of the pod's claim says.
condition() { kubectl get resourceclaims -o json | jq -r --arg pod "$1" --arg type "$2" '.items[] | select(.metadata.ownerReferences[0].name == $pod).status.devices[0].conditions[]? | select(.type == $type and .status == "True").message'; }
has_lease() { [ "$(far_vgpus length)" = "${1:-1}" ]; }
no_lease() { [ "$(far_vgpus length)" = 0 ] && [ "$(jq '.reservations | length' "$kube/gpu1/run/fleet.json")" = 0 ]; }
reserved() { [ "$(jq '.reservations | length' "$kube/gpu1/run/fleet.json")" = "$1" ]; }
rounds='while true; do vectoradd | grep -o -e PASSED -e failed.* || echo ended; sleep 0.3; done'

# net_begin has a controller offer the GPU of gpu1.
net_begin() {
  say "GPUs of another host"
  kubectl apply -f "$ROOT/host/fleet/deploy/causeway-fleet.yaml" >/dev/null
  kubectl label node "$kube_node" causeway.dev/fabric=f1 >/dev/null
  kube_config fleet "$(kubectl -n causeway create token causeway-fleet --duration 8760h)"
  printf 'nodes: {causeway.dev/fabric: f1}\nhosts:\n- {name: gpu1}\n' >"$kube/hosts.yaml"
  net_controller fleet1
  await 30 "one leads" leader_of
  await 30 "the other host's GPU is offered" net_offered
  ok "causeway-fleet controller offers the GPU of gpu1: $(net_device '"\(.name), path \(.attributes.path.string), host \(.attributes.host.string), memory \(.capacity.memory.value)"')"
}

check_net() {
  net_begin
  kubectl apply --dry-run=server -f "$ROOT/host/fleet/deploy/causeway-fleet-deployment.yaml" >/dev/null
  check_net_rights
  check_quota
  check_net_pod
  [ -z "$vm" ] || { check_net_vm; check_net_move; check_own_move; move_end; }
  check_net_refused
  check_net_gone
  check_net_cut
  check_net_frozen
  check_net_leaders
  check_net_apiserver
  check_net_both
  check_net_end
}

check_net_rights() {
  kube_config dra "$(kubectl -n causeway create token causeway-fleet)"
  as_driver dra 'writes no ResourceSlice of the pool' create -f "$(slice others gpu.causeway.dev "nodeName: $kube_node")" >/dev/null || die "a node's slice: $(cat "$kube/log/as_driver")"
  as_driver dra 'writes no ResourceSlice of gpu.example.com' create -f "$(slice foreign gpu.example.com 'allNodes: true' fleet/x)" >/dev/null || die "another driver's slice: $(cat "$kube/log/as_driver")"
  as_driver dra forbidden get pods -A >/dev/null || die "pods: $(cat "$kube/log/as_driver")"
  as_driver dra forbidden get secrets -A >/dev/null || die "secrets: $(cat "$kube/log/as_driver")"
  driver_token
  ok "the controller's account writes its own pools' slices and no others, and reads no pods and no secrets"
}

check_net_pod() {
  net_pod net 512Mi 'vectoradd; allocate 256 400; nvidia-smi; rounds streams; echo "rounds ended: $?"; sleep 1000'
  await 60 "the program on the other host's GPU passes" said net PASSED
  has_half_a_gib net
  await 20 "nvidia-smi shows the claim's memory" said net '/    512MiB'
  said net 'Driver Version: [0-9]' >/dev/null || die "nvidia-smi does not know the driver: $(wrote net | head -40)"
  await 60 "a program computes in rounds" said net '@round [2-9]'
  [ "$(far_vgpus -c '[.[0].spec | .vm, .memory, .lease]')" = "[\"$kube_node\",536870912,\"$kube_node\"]" ] || die "gpu1: $(far ps)"
  [ "$(vgpus -r '.[0].spec.remote')" = gpu1 ] || die "node1: $(causeway ps)"
  await 40 "the pod's status says how its GPU is" healthy net
  [[ "$(condition net causeway.dev/LeaseReady)" == "gpu1 keeps 512"* ]] || die "the claim: $(kubectl get resourceclaims -o yaml)"
  ok "a pod on $kube_node uses the GPU of gpu1 over the network: LeaseReady says \"$(condition net causeway.dev/LeaseReady)\"; the program passes, its memory ends at the claim's, nvidia-smi shows it; its pod says that the GPU is well"
}

# QEMU in a pod, of virt-launcher's shape, with a GPU of gpu1: the guest's programs know nothing of
# it.
check_net_vm() {
  guest_run='for i in 1 2 3; do /app/vectoradd || exit 1; done; exec /app/vectoradd'
  fleet_vm_image "$kube/vm.tar"
  "$kube_bin/ctr" -a "$kube/c.sock" -n k8s.io images import --snapshotter overlayfs "$kube/vm.tar" >/dev/null
  rm "$kube/vm.tar"
  sed "s/deviceClassName: causeway,/&  selectors: [{cel: {expression: 'device.attributes[\"gpu.causeway.dev\"].path == \"network\"'}}],/" "$ROOT/scripts/kube/vmpod.yaml" | kubectl apply -f - >/dev/null
  await 60 "the VM's vGPU has its lease" has_lease 2
  await 240 "programs of the guest have sessions with gpu1" eval '[ "$(far_vgpus "[.[].status.sessions | length] | add")" -ge 2 ]'
  await 60 "the claim says so" eval '[ -n "$(condition vm SessionsOpen)" ]'
  await 240 "the VM's pod ends" pod_is vm Succeeded
  said vm PASSED >/dev/null && said vm '@causeway exit 0' >/dev/null || die "the guest's program does not pass: $(wrote vm | tail -20)"
  await 60 "its lease goes with the pod" has_lease 1
  kubectl delete pod vm --wait=false >/dev/null
  ok "QEMU in a pod with a GPU of gpu1, user 107 without capabilities: the guest's CUDA programs pass over the network, the claim says while they have sessions, and the lease goes with the pod"
}

# gpu1 promises memory to somebody else, behind the scheduler's back.
check_net_refused() {
  far create other --gpu soft --memory 1GiB >/dev/null
  await 20 "what is promised to others is not offered" net_offers_less
  far delete --force other >/dev/null
  await 20 "it is offered again" net_offers_all
  kubectl create -f - >/dev/null <<T
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: liar}
spec:
  driver: gpu.causeway.dev
  nodeName: $kube_node
  pool: {name: liar, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-lie
    allowMultipleAllocations: true
    bindsToNode: true
    bindingConditions: [causeway.dev/LeaseReady]
    bindingFailureConditions: [causeway.dev/LeaseRefused]
    attributes: {path: {string: lie}, uuid: {string: GPU-lie}}
    capacity: {memory: {value: 8Pi, requestPolicy: {default: 1Gi, validRange: {min: 1Mi}}}}
T
  sed -e 's/NAME/liar/g; s/MEMORY/1Pi/g; s/COMMAND/vectoradd/; s/== "network"/== "lie"/' "$ROOT/scripts/kube/netpod.yaml" | kubectl apply -f - >/dev/null
  await 40 "the claim of a GPU that nobody has says so" event ResourceClaim 'none of the fleet'
  kubectl delete pod liar --wait=false >/dev/null
  kubectl delete resourceslice liar >/dev/null
  sed -e 's/NAME/odd/g; s/MEMORY/64Mi/g; s/COMMAND/vectoradd/; s/^      requests:/      config: [{opaque: {driver: gpu.causeway.dev, parameters: {apiVersion: causeway.dev\/v1alpha1, kind: VGPU, share: 1}}}]\n&/' \
    "$ROOT/scripts/kube/netpod.yaml" | kubectl apply -f - >/dev/null
  await 30 "the claim says why" event ResourceClaim 'GPU host gpu1: request "gpu"'
  await 60 "its pod says so" event Pod 'unknown field \"share\"'
  reserved 1 || die "something is reserved for it: $(cat "$kube/gpu1/run/fleet.json")"
  kubectl delete pod odd --wait=false >/dev/null
  net_pod large 3Gi vectoradd
  await 30 "a claim of more than there is waits" says default large 'cannot allocate all claims'
  kubectl delete pod large --wait=false >/dev/null
  ok "memory that gpu1 promises to others is offered no more; a claim that got a device of a slice that lies, one with parameters that are none of ours, and one that asks for more than there is, say so, and their pods"
}
net_offers_less() { [ "$(net_device '.capacity.memory.value')" = '"1Gi"' ]; }
net_offers_all() { [ "$(net_device '.capacity.memory.value')" = '"2Gi"' ]; }

# The pod is deleted by force while its node's kubelet stands still, so its container runs on: gpu1
# takes the GPU from it.
check_net_gone() {
  local begin log
  log=$(echo "$kube/podlogs/default_net_$(kubectl get pod net -o jsonpath='{.metadata.uid}')"/*/*.log)
  kube_signal kubelet STOP
  kubectl delete pod net --force --grace-period=0 >/dev/null 2>&1
  begin=$SECONDS
  await 20 "gpu1 has taken it back" no_lease
  ok "a pod deleted by force while its node's kubelet stands: gpu1 ends the session $((SECONDS - begin)) s later, with no word of the node"
  await 40 "the container's program fails" grep 'rounds ended: [1-9]' "$log"
  ok "what runs on in the container gets device errors: $(tail -n 2 "$log" | head -n 1 | cut -d' ' -f4- | cut -c 1-100)"
  kube_signal kubelet CONT
  await 60 "nothing is left" no_vgpus
}

check_net_cut() {
  local n begin
  net_pod net 512Mi "rounds streams; echo rounds ended: \$?; $rounds"
  await 60 "the program computes" said net '@round [2-9]'
  ip link set w0 down
  begin=$SECONDS
  await 60 "the program gets errors" said net 'rounds ended: [1-9]'
  n=$((SECONDS - begin))
  await 30 "the GPU gets no new claims" net_tainted
  await 60 "the pod's status says that its GPU is not reached" health_is net Unhealthy
  await 60 "gpu1 has ended the lease" has_lease 0
  reserved 1 || die "the claim's room is gone with the link: $(cat "$kube/gpu1/run/fleet.json")"
  ok "the link is cut: the program gets errors after $n s, the GPU gets no new claims, gpu1 ends the lease $((SECONDS - begin)) s after the cut and keeps the room for the claim"
  n=$(times net PASSED)
  ip link set w0 up
  await 120 "programs pass again" more_than net PASSED "$n"
  has_lease 1 || die "leases: $(far ps)"
  await 30 "it is offered again" net_untainted
  await 60 "the pod's status says that it is well again" healthy net
  ok "the link is back: the same container's next program passes, by one new lease"
}
fails_now() { wrote net | tail -n 1 | grep -v PASSED; }
net_tainted() { net_device '.taints | length > 0'; }
net_untainted() { net_device '(.taints // []) | length == 0'; }

# The whole node stands still, as a machine that froze: what it has there ends by its term, the
# claim stays.
check_net_frozen() {
  local begin n p
  n=$(times net PASSED)
  for p in kubelet causewayd dra; do kube_signal $p STOP; done
  begin=$SECONDS
  await 60 "gpu1 has ended the lease" has_lease 0
  ok "a frozen node: gpu1 ends the lease $((SECONDS - begin)) s after its last word, and its memory is free for that claim alone"
  reserved 1 || die "reservations: $(cat "$kube/gpu1/run/fleet.json")"
  await 30 "the program gets errors" fails_now net
  for p in kubelet causewayd dra; do kube_signal $p CONT; done
  n=$(times net PASSED)
  await 120 "it passes when the node is back" more_than net PASSED "$n"
  has_lease 1 || die "leases: $(far ps)"
}

# Two controllers: the one that leads freezes, the other goes on, and the first one changes nothing
# when it wakes up.
check_net_leaders() {
  local was took
  net_controller fleet2
  was=$(leader_of)
  kube_signal fleet1 STOP
  took=$SECONDS
  await 60 "another leads" another_leads "$was"
  net_pod second 256Mi "$rounds"
  await 60 "it serves a claim" more_than second PASSED 0
  took=$((SECONDS - took))
  kube_signal fleet1 CONT
  sleep 3
  [ "$(leader_of)" != "$was" ] || die "the first one leads again"
  has_lease 2 || die "leases: $(far ps)"
  ok "two controllers: when the one that leads freezes the other serves claims $took s later, and the first one ends nothing when it wakes up; epoch $(jq .epoch "$kube/gpu1/run/fleet.json") at gpu1"
}
another_leads() { local now; now=$(leader_of); [ -n "$now" ] && [ "$now" != "$1" ]; }

check_net_apiserver() {
  local n m
  kube_stop apiserver KILL
  sleep 60
  has_lease 2 || die "leases without an API server: $(far ps)"
  kube_apiserver
  await 60 "the API server is back" kubectl get --raw /readyz
  await 90 "a controller leads again" leads_now
  n=$(times net PASSED); m=$(times second PASSED)
  await 30 "the programs went on" more_than net PASSED "$n"
  await 30 "both of them" more_than second PASSED "$m"
  has_lease 2 || die "leases: $(far ps)"
  reserved 2 || die "reservations: $(cat "$kube/gpu1/run/fleet.json")"
  net_pod third 256Mi vectoradd
  await 90 "a new claim is served" said third PASSED
  ok "an API server that is away for a minute: programs go on with their leases, none is lost and none twice; new claims are served when it is back"
}
leads_now() { local t; t=$(kubectl -n causeway get lease causeway-fleet -o jsonpath='{.spec.renewTime}'); [ "$(($(date +%s) - $(date -d "$t" +%s)))" -lt 5 ]; }

# net_node FOLDER NODE ADDRESS API TOKEN has a machine with a network of the node's name be a node,
# too: a kubelet and containerd there, which reach the API server at API.
net_node() (
  local to=$kube/$1 network=$2
  mkdir -p "$to"/{pki,pid,log}
  cp "$kube/pki/admin.kubeconfig" "$to/pki"
  kube=$to kube_node=$2 kube_node_ip=$3 KUBE_GROUP=$KUBE_GROUP/$1
  kube_config node "$5-token" "$4"
  kube_start() {
    local name=$1; shift
    nsenter --net="/run/netns/$network" "$@" >>"$kube/log/$name" 2>&1 &
    echo $! >"$kube/pid/$name"
  }
  kube_node_up "${@:6}"
)
# net_driver FOLDER NODE RUN-DIR ARGS... starts causeway-dra there.
net_driver() {
  kube_config "dra-$1" "$(kubectl -n causeway create token causeway-dra --bound-object-kind Node --bound-object-name "$2" --duration 8760h)"
  kube_start "dra-$1" "$BUILD/bin/causeway-dra" --node "$2" --kubeconfig "$kube/pki/dra-$1.kubeconfig" --run-dir "$3" --lib "$BUILD/lib" \
    --cdi "$kube/$1/cdi" --plugins "$kube/$1/kubelet/plugins/gpu.causeway.dev" --registry "$kube/$1/kubelet/plugins_registry" \
    --pod-resources "$kube/$1/kubelet/pod-resources/kubelet.sock" --interval 1s "${@:4}"
}
offered_both() { kubectl get resourceslices -o json | jq -e '[.items[] | select(.spec.pool.name == "fleet/gpu1") | .spec.devices[]? | select((.taints // []) | length == 0)] | length == 2'; }

# gpu1 is a node with a kubelet of its own: its GPU is for its own pods and for others', one way at
# a time.
check_net_both() {
  kubectl delete pod --all --wait=false >/dev/null
  await 90 "all pods are gone" no_pods
  await 30 "nothing is left on gpu1" no_lease
  net_node two gpu1 10.78.0.2 10.78.0.1 node2 "$kube/program.tar" # causeway-dra leaves it to the fleet to offer the GPU
  net_driver two gpu1 "$kube/gpu1/run" --offered-by-fleet
  printf 'nodes: {causeway.dev/fabric: f1}\nhosts:\n- {name: gpu1, local: true}\n' >"$kube/hosts.yaml"
  await 60 "the GPU is offered both ways" offered_both
  sed -e 's/NAME/own/g; s/MEMORY/256Mi/g; s/COMMAND/rounds streams/; s/== "network"/== "local"/; s/^  resourceClaims:/  nodeSelector: {kubernetes.io\/hostname: gpu1}\n&/' "$ROOT/scripts/kube/netpod.yaml" | kubectl apply -f - >/dev/null
  await 60 "a pod on gpu1 has its GPU" pod_is own Running
  [[ "$(far_vgpus -r '.[0].spec | "\(.vm) \(.lease)"')" == claim-*null ]] || die "gpu1: $(far ps)"
  net_pod turn 256Mi vectoradd
  await 30 "another node's pod waits for it" says default turn 'cannot allocate all claims'
  sleep 3
  pod_is turn Pending || die "the GPU is used both ways: $(far ps)"
  kubectl delete pod own --wait=false >/dev/null
  await 90 "it has the GPU when that is free" said turn PASSED
  ok "two nodes in two networks, each with a kubelet: gpu1's GPU is its own pod's, without a lease, and another node's pod has it over the network when that is gone, not before"
}

check_net_end() {
  local f
  kubectl delete pod --all --wait=false >/dev/null
  await 90 "all pods are gone" no_pods
  await 30 "nothing is left on the node" no_vgpus
  await 30 "nothing is left on gpu1" no_lease
  printf 'nodes: {causeway.dev/fabric: f1}\nhosts: []\n' >"$kube/hosts.yaml"
  await 30 "a host that left is not offered" net_left
  for f in fleet1 fleet2; do [ ! -f "$kube/pid/$f" ] || kube_stop $f; done
  ok "when pods are deleted nothing is left on either host; a host that the configuration does not name any more is not offered"
}
net_left() { kubectl get resourceslices -o json | jq -e 'all(.items[]; .spec.pool.name != "fleet/gpu1")'; }

quota_claim() { # NAME CLASS MEMORY
  kubectl -n quota create -f - >"$kube/log/quota" 2>&1 <<T
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: $1}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: $2, capacity: {requests: {${3:+memory: $3}}}}}]}}
T
}
quota_refused() { ! quota_claim "${@:2}" && grep -qF -- "$1" "$kube/log/quota"; }

# A namespace may have 4 claims of up to 1 GiB and 1 of up to 4 GiB: 8 GiB in all.
check_quota() {
  kubectl apply -f "$ROOT/host/fleet/deploy/quota.yaml" >/dev/null
  kubectl create namespace quota >/dev/null
  kubectl label namespace quota causeway.dev/quota=sizes >/dev/null
  kubectl -n quota create quota gpus --hard=causeway-1g.deviceclass.resource.k8s.io/devices=4,causeway-4g.deviceclass.resource.k8s.io/devices=1,causeway-16g.deviceclass.resource.k8s.io/devices=0,causeway-64g.deviceclass.resource.k8s.io/devices=0 >/dev/null
  await 30 "the policy holds" quota_refused 'a class with a size' plain causeway 1Gi
  await 30 "the quota is known" quota_ready
  quota_refused 'names its memory' none causeway-1g '' || die "a claim without memory: $(cat "$kube/log/quota")"
  quota_refused 'at most N GiB' large causeway-1g 1025Mi || die "more than the class's size: $(cat "$kube/log/quota")"
  quota_refused 'exceeded quota' other causeway-16g 1Gi || die "a class of which there is none: $(cat "$kube/log/quota")"
  local n
  for n in 1 2 3 4; do quota_claim "c$n" causeway-1g 1024Mi || die "claim $n of 4: $(cat "$kube/log/quota")"; done
  quota_refused 'exceeded quota' c5 causeway-1g 1Mi || die "the fifth: $(cat "$kube/log/quota")"
  quota_claim big causeway-4g 4Gi || die "one of 4 GiB: $(cat "$kube/log/quota")"
  quota_refused 'exceeded quota' big2 causeway-4g 64Mi || die "another of 4 GiB: $(cat "$kube/log/quota")"
  kubectl delete namespace quota --wait=false >/dev/null
  ok "ResourceQuota: a namespace with 4 x 1 GiB and 1 x 4 GiB has no more, whatever its claims name; a claim without a size, or above its class's, is refused by name"
}
quota_ready() { kubectl -n quota get quota gpus -o json | jq -e '.status.used | length == 4'; }
