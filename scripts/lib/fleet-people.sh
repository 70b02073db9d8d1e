# causeway-fleet on a real control plane, for scripts/fleet.sh; sourced after fleet.sh. The node has
# nothing else to do meanwhile.

fleet() { "$BUILD/bin/causeway-fleet" --kubeconfig "$kube/pki/admin.kubeconfig" "$@"; }

# refuses SAYS ARGS... : it fails, with these words.
refuses() {
  local says=$1; shift
  if fleet "$@" >"$kube/log/refuses" 2>&1; then die "causeway-fleet $* was to fail: $(cat "$kube/log/refuses")"; fi
  grep -qF -- "$says" "$kube/log/refuses" || die "causeway-fleet $*: $(cat "$kube/log/refuses"), not: $says"
}

# pod_with NAME CLAIM [COMMAND [NAMESPACE]] starts a pod that has a claim and runs a shell's
# command, or sleeps.
pod_with() {
  kubectl -n "${4:-default}" apply -f - >/dev/null <<T
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [{name: vgpu, resourceClaimName: $2}]
  containers:
  - {name: program, image: "causeway.test/program:1", imagePullPolicy: Never, command: [sh, -c, "${3:-exec sleep 1000}"], resources: {claims: [{name: vgpu}]}}
T
}

# told LOG TEXT: has the command in the background said so?
told() { grep -F -- "$2" "$kube/log/$1"; }

check_people() {
  local rc=0
  fleet ls >"$kube/log/ls"
  grep -qE "^$kube_node +Ready +gpu-.* Causeway Software GPU +0 B/2 GiB +0/100 +0 +-" "$kube/log/ls" || die "causeway-fleet ls: $(cat "$kube/log/ls")"
  refuses 'has no unit' claim people --memory 4
  refuses 'cap: 101' claim people --memory 1GiB --cap 101
  refuses 'use local or network' claim people --memory 1GiB --path far
  refuses 'there is no node node9' drain node9
  refuses 'no such file' --kubeconfig "$kube/none" ls
  fleet claim people --memory 4GiB --timeout "$((4 * ${PATIENCE:-1}))s" >"$kube/log/claim" 2>&1 || rc=$?
  [ $rc = 3 ] || die "causeway-fleet claim: status $rc, not 3: $(cat "$kube/log/claim")"
  told claim 'no pod names it' >/dev/null || die "it does not say that no pod names it: $(cat "$kube/log/claim")"
  told claim 'the largest GPU of the fleet has 2GiB' >/dev/null || die "it does not say that it is too large: $(cat "$kube/log/claim")"
  refuses 'there is a claim default/people already' claim people --memory 1GiB
  kubectl delete resourceclaim people >/dev/null
  kube_start claim fleet claim people --memory 256MiB --compute 10 --timeout 10m
  await 60 "the claim is made" kubectl get resourceclaim people
  pod_with people people
  wait "$(cat "$kube/pid/claim")" || die "causeway-fleet claim: $(cat "$kube/log/claim")"
  told claim "default/people has 256MiB of gpu-" >/dev/null || die "it does not say what it has: $(cat "$kube/log/claim")"
  await 60 "the pod runs" pod_is people Running
  [ "$(fleet ls --format json | jq -c '[.nodes[0].gpus[0].claimed, (.claims[] | .name, .state, .pods[0], .vgpus[0].compute)]')" = '[268435456,"people","InUse","people",10]' ] ||
    die "causeway-fleet ls: $(fleet ls --format json)"
  ok "causeway-fleet ls and claim: what is free and who has it; a claim waits until it has its GPU and says why; what can never be is refused by name"
}

# says NAMESPACE POD TEXT: does an event of the pod, or its status?
says() { kubectl -n "$1" get events,pods -o json | jq -e --arg pod "$2" --arg text "$3" 'any(.items[]; (.kind == "Event" and .involvedObject.name == $pod and (.message | contains($text))) or (.kind == "Pod" and .metadata.name == $pod and any(.status.conditions[]?; (.message // "") | contains($text))))'; }

# What can never be says so where its owner looks, and nothing is made of it.
check_bad_input() {
  local n
  await 30 "amounts are judged" eval '! odd_claim less causeway -1Gi && grep -q "memory of a claim" "$kube/log/odd"'
  for n in 0 -1 1000000Ei 9223372036854775808; do
    ! odd_claim odd causeway "$n" && grep -q 'memory of a claim' "$kube/log/odd" || die "a claim of $n: $(cat "$kube/log/odd")"
  done
  ! odd_claim odd causeway 1Gi 101 && grep -q 'compute of a claim' "$kube/log/odd" || die "a claim of 101 hundredths: $(cat "$kube/log/odd")"
  odd_claim classless none 64Mi || die "$(cat "$kube/log/odd")"
  odd_claim half causeway 1.5Gi || die "an amount that is none odd: $(cat "$kube/log/odd")"
  odd_claim large causeway 3Gi 100 || die "$(cat "$kube/log/odd")"
  odd_claim mine causeway 64Mi || die "$(cat "$kube/log/odd")"
  kubectl create namespace other >/dev/null
  await 60 "pods can be made there" kubectl -n other get serviceaccount default
  pod_with classless classless
  pod_with large large
  pod_with theirs mine '' other
  await 60 "a class that does not exist is named" says default classless 'none does not exist'
  await 60 "a claim that is too large waits" says default large 'cannot allocate all claims'
  await 60 "a pod that names another namespace's claim is shown" told_of_theirs
  kubectl get resourceclaim mine -o json | jq -e '.status.reservedFor == null' >/dev/null || die "another namespace's pod has the claim"
  [ "$(vgpus length)" = 0 ] || die "a vGPU for one of them: $(causeway ps)"
  kubectl delete namespace other --wait=false >/dev/null
  kubectl delete pod --all --wait=false >/dev/null
  await 60 "the pods go" no_pods
  kubectl delete resourceclaims --all >/dev/null
  ok "amounts that are negative, nothing or beyond all numbers are refused by the API server; a class that does not exist and a claim that is too large by events of the pod; a pod that names another namespace's claim by causeway-fleet ls"
}
told_of_theirs() { fleet ls | grep -F 'other/theirs names the claim mine, which its namespace has not'; }
# odd_claim NAME CLASS MEMORY [COMPUTE]
odd_claim() {
  kubectl create -f - >"$kube/log/odd" 2>&1 <<T
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: $1}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: $2, capacity: {requests: {memory: "$3", compute: "${4:-0}"}}}}]}}
T
}

check_drain() {
  local rc=0
  if "$BUILD/bin/causeway-fleet" --kubeconfig "$kube/pki/dra.kubeconfig" drain "$kube_node" >"$kube/log/drain0" 2>&1; then die "a driver's account drains nodes"; fi
  told drain0 'it takes the right to update nodes' >/dev/null || die "$(cat "$kube/log/drain0")"
  fleet drain "$kube_node" --timeout "$((4 * ${PATIENCE:-1}))s" >"$kube/log/drain0" 2>&1 || rc=$?
  [ $rc = 3 ] || die "causeway-fleet drain: status $rc, not 3: $(cat "$kube/log/drain0")"
  fleet claim late --memory 64MiB --no-wait >/dev/null
  pod_with late late
  await 60 "the new claim waits for the taint" late_waits
  pod_is people Running || die "the pod that ran does not run any more"
  kube_start drain fleet drain "$kube_node" --timeout 10m
  await 60 "it says who is there" told drain "default/people (pods: people)"
  kubectl delete pod people --wait=false >/dev/null
  wait "$(cat "$kube/pid/drain")" || die "causeway-fleet drain: $(cat "$kube/log/drain")"
  await 60 "nothing is left on the node" no_vgpus
  pod_is late Pending || die "a pod came to the node that is drained"
  fleet drain "$kube_node" --undo >/dev/null
  await 60 "pods come again" pod_is late Running
  kubectl delete pod late --wait=false >/dev/null
  await 60 "the pod goes" pod_gone late
  await 30 "its vGPU goes" no_vgpus
  kubectl delete resourceclaims people late >/dev/null
  ok "causeway-fleet drain: no new pod comes, what runs goes on, it waits until the last claim is gone and says whose; --undo lets them come again"
}
late_waits() { fleet ls --format json | jq -e '.claims[] | select(.name == "late" and .state == "Waiting") | .why | contains("untolerated taint")'; }
