# Causeway in a cluster as host/fleet/deploy has it, for scripts/fleet.sh --deploy; sourced after
# fleet.sh, fleet-vm.sh and fleet-net.sh.

# deploy_overlay TAG writes host/fleet/deploy as this cluster needs it: folders of a node that
# shares its machine, and the API server by its own address, for nothing here forwards those of
# Services.
deploy_overlay() {
  local base=$kube/overlay
  mkdir -p "$base"
  cat >"$base/kustomization.yaml" <<T
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [$(realpath --relative-to="$base" "$ROOT/host/fleet/deploy")]
images:
- {name: causeway.dev/causeway-dra, newName: causeway.test/causeway-dra, newTag: "$1"}
- {name: causeway.dev/causeway-fleet, newName: causeway.test/causeway-fleet, newTag: "$1"}
patches:
- target: {kind: DaemonSet, name: causeway-dra}
  patch: |-
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: KUBERNETES_SERVICE_HOST, value: 10.77.0.1}}
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: KUBERNETES_SERVICE_PORT, value: "6443"}}
    - {op: add, path: /spec/template/spec/containers/0/args, value: ["--run-dir=$kube/run", "--lib=$BUILD/lib", "--cdi=$kube/cdi", "--plugins=$kube/kubelet/plugins/gpu.causeway.dev",
        "--registry=$kube/kubelet/plugins_registry", "--pod-resources=$kube/kubelet/pod-resources/kubelet.sock", "--interval=1s"]}
    - {op: replace, path: /spec/template/spec/containers/0/volumeMounts, value: [{name: run, mountPath: "$kube/run", mountPropagation: HostToContainer}, {name: libraries, mountPath: "$BUILD/lib"},
        {name: cdi, mountPath: "$kube/cdi"}, {name: plugins, mountPath: "$kube/kubelet/plugins"}, {name: registry, mountPath: "$kube/kubelet/plugins_registry"}, {name: pods, mountPath: "$kube/kubelet/pod-resources", readOnly: true}]}
    - {op: replace, path: /spec/template/spec/volumes, value: [{name: run, hostPath: {path: "$kube/run", type: Directory}}, {name: libraries, hostPath: {path: "$BUILD/lib", type: Directory}},
        {name: cdi, hostPath: {path: "$kube/cdi"}}, {name: plugins, hostPath: {path: "$kube/kubelet/plugins", type: Directory}}, {name: registry, hostPath: {path: "$kube/kubelet/plugins_registry", type: Directory}}, {name: pods, hostPath: {path: "$kube/kubelet/pod-resources", type: Directory}}]}
- target: {kind: Deployment, name: causeway-w.*}
  patch: |-
    - {op: add, path: /spec/template/spec/containers/0/env, value: [{name: KUBERNETES_SERVICE_HOST, value: 10.77.0.1}, {name: KUBERNETES_SERVICE_PORT, value: "6443"}]}
- target: {kind: Deployment, name: causeway-fleet}
  patch: |-
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: KUBERNETES_SERVICE_HOST, value: 10.77.0.1}}
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: KUBERNETES_SERVICE_PORT, value: "6443"}}
    - {op: add, path: /spec/template/spec/hostAliases, value: [{ip: 10.78.0.2, hostnames: [gpu1]}]}
T
}

# deploy_images TAG builds the images and gives them to containerd.
deploy_images() {
  local f
  PACKAGE_VERSION=$1 "$ROOT/scripts/package/images.sh" causeway.test >>"$kube/log/images"
  for f in causeway-dra causeway-fleet; do
    "$kube_bin/ctr" -a "$kube/c.sock" -n k8s.io images import --snapshotter overlayfs "$BUILD/images-oci/$f.tar" >/dev/null
  done
}

# monitored: an overlay can name what Prometheus' operator reads, too, whose kinds this cluster has
# not.
monitored() {
  local base; base=$(realpath --relative-to="$kube/monitored" "$ROOT/host/fleet/deploy")
  mkdir -p "$kube/monitored"
  echo "resources: [$base, $base/monitoring]" >"$kube/monitored/kustomization.yaml"
  kubectl kustomize "$kube/monitored" 2>"$kube/log/monitored" | grep '^kind: ServiceMonitor' >/dev/null
}

rolled_out() { kubectl -n causeway rollout status "$1" --timeout=1s && [ "$(kubectl -n causeway get "$1" -o json | jq '.spec.template.spec.containers[0].image | endswith("'":$2"'")')" = true ]; }

check_deploy() {
  deploy_images one
  deploy_overlay one
  monitored || die "no overlay takes host/fleet/deploy/monitoring: $(cat "$kube/log/monitored")"
  kubectl label node "$kube_node" causeway.dev/gpus=true >/dev/null
  kubectl apply -k "$kube/overlay" >/dev/null
  await 90 "the driver's pod runs" rolled_out daemonset/causeway-dra one
  await 90 "the webhook's pods are ready" rolled_out deployment/causeway-webhook one
  await 90 "the page's pod is ready" rolled_out deployment/causeway-web one
  await 30 "the GPU is published" gpu_published
  kubectl apply --dry-run=client -o json -f "$ROOT/scripts/kube/pods.yaml" | jq '.items |= map(select(.metadata.name | . == "first" or . == "vgpu-512m"))' | kubectl apply -f - >/dev/null
  await 60 "a pod's program passes" said first PASSED
  ok "kubectl apply -k: images without a registry, causeway-dra as a DaemonSet, webhook and page as Deployments; a pod's program passes"
}

# controller_says TEXT: does one of the controller's pods, by its metrics?
controller_says() {
  local ip
  for ip in $(kubectl -n causeway get pods -l app=causeway-fleet -o json | jq -r '.items[] | select(.metadata.deletionTimestamp == null).status.podIP'); do
    ! curl -sf "http://$ip:9445/metrics" | grep -F -- "$1" || return 0
  done
  return 1
}

# The controller has no hosts until docs/KUBERNETES.md's step 3 is done, which is done here as it is
# written there.
check_controller() {
  await 90 "the controller's pods are ready without a host" rolled_out deployment/causeway-fleet one
  await 30 "one leads" controller_says 'causeway_fleet_controller_leads 1'
  ip -n gpu1 route add default via 10.78.0.1
  kubectl label node "$kube_node" causeway.dev/fabric=f1 >/dev/null
  printf 'nodes: {causeway.dev/fabric: f1}\nhosts:\n- {name: gpu1}\n' >"$kube/hosts.yaml"
  (cd "$kube" && mkdir -p docs && ln -sfn ../ca docs/pki && cd docs &&
    kubectl -n causeway create secret generic causeway-fleet-pki --from-file=pki/ca.pem --from-file=pki/revoked --from-file=host.pem=pki/causeway-fleet.pem --from-file=host-key.pem=pki/causeway-fleet-key.pem &&
    kubectl -n causeway create configmap causeway-fleet --from-file=../hosts.yaml) >/dev/null
  await 180 "the other host's GPU is offered" net_offered
  await 30 "metrics say that it answers" controller_says 'causeway_fleet_controller_host_up{host="gpu1"} 1'
  net_pod far 256Mi vectoradd
  await 90 "a program on the other host's GPU passes" said far PASSED
  await 30 "metrics say what was done" controller_says 'causeway_fleet_controller_acts_total{act="reserved",host="gpu1"} 1'
  kubectl delete pod far --wait=false >/dev/null
  await 60 "the pod goes" pod_gone far
  await 30 "its lease goes" no_lease
  ok "the controller as a Deployment: ready without hosts, by its probes; with a certificate and hosts.yaml as the page has it a pod uses another host's GPU; metrics of leader and hosts"
}

# launcher FILE is a recorded pod of KubeVirt's as this cluster can take it: its node is not
# labelled by KubeVirt and has no /dev/kvm.
launcher() {
  jq '.metadata.name = .metadata.generateName + "x1" | del(.metadata.generateName, .metadata.ownerReferences, .spec.nodeSelector, .spec.affinity, .spec.readinessGates, .spec.topologySpreadConstraints)
    | del(.spec.initContainers) | .spec.volumes |= map(select(.image == null)) | (.spec.volumes | map(.name)) as $v
    | .spec.containers |= map(.volumeMounts |= map(select(.name as $n | $v | index($n))) | del(.volumeDevices))
    | .spec.containers[0] |= (.image = "causeway.test/vm:1" | .imagePullPolicy = "Never" | .command = ["sh", "/boot/run"] | del(.args) | .resources = {requests: {memory: "1Gi"}})' \
    "$ROOT/host/fleet/kubevirt/testdata/$1.json"
}

# asked FILE is what the API server makes of a recorded pod, without keeping it.
asked() { launcher "$1" | kubectl create --dry-run=server -o json -f - 2>"$kube/log/asked"; }
# unasked FILE SAYS: it is refused with these words.
unasked() { ! asked "$1" >/dev/null && grep -F -- "$2" "$kube/log/asked"; }
# moves VM SAYS: a migration of the VM is refused with these words; without SAYS it is let.
migration() { printf 'apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstanceMigration\nmetadata: {name: move-%s}\nspec: {vmiName: %s}\n' "$1" "$1" | kubectl create --dry-run=server -f - >"$kube/log/migration" 2>&1; }
stays() { ! migration "$1" && grep -F -- "$2" "$kube/log/migration"; }

check_kubevirt() {
  kubectl apply -f "$ROOT/scripts/kube/migrations.yaml" >/dev/null
  await 60 "the webhook answers" unasked train 'there is no such object: the ResourceClaimTemplate default/vgpu-16g'
  kubectl apply -f "$ROOT/scripts/kube/vmclaims.yaml" >/dev/null
  [ "$(asked train | jq -c '[[.spec.containers[].name], .spec.containers[0].resources.claims]')" = '[["compute"],[{"name":"vgpu"}]]' ] || die "the pod is not changed: $(cat "$kube/log/asked")"
  unasked two 'is for 1 GPUs of Causeway' >/dev/null || die "two filesystems for one GPU: $(cat "$kube/log/asked")"
  [ "$(asked plain | jq -c '[.spec.containers[].name]')" = '["compute"]' ] || die "a VM without vGPUs: $(cat "$kube/log/asked")"
  await 30 "migrations can be made" migration plain
  kubectl -n causeway scale deployment causeway-webhook --replicas 0 >/dev/null
  await 60 "nobody answers" unasked train 'failed calling webhook "pods.kubevirt.causeway.dev"'
  asked plain >/dev/null || die "a VM without vGPUs does not start while the webhook is down: $(cat "$kube/log/asked")"
  migration plain || die "a VM without vGPUs does not move while the webhook is down: $(cat "$kube/log/migration")"
  kubectl -n causeway scale deployment causeway-webhook --replicas 2 >/dev/null
  await 90 "the webhook is back" asked train
  ok "KubeVirt's recorded pods: virtiofsd goes and QEMU has the claim; what would not work is refused by name; with the webhook down VMs without vGPUs start and move as ever, those with wait"
}

# The VM's pod is that of train.json, with this machine's QEMU in place of virt-launcher.
check_launcher() {
  guest_run='for i in 1 2 3 4 5 6 7 8 9 10; do /app/vectoradd || exit 1; done; exec /app/vectoradd'
  fleet_vm_image "$kube/vm.tar"
  "$kube_bin/ctr" -a "$kube/c.sock" -n k8s.io images import --snapshotter overlayfs "$kube/vm.tar" >/dev/null
  rm "$kube/vm.tar"
  launcher train | kubectl create -f - >/dev/null
  await 240 "the guest's programs have sessions" stays train 'the VM stays where it is: programs in it have sessions with the GPU'
  await 30 "the page shows it" page '>open<'
  await 240 "the VM's pod ends" pod_is virt-launcher-train-x1 Succeeded
  said virt-launcher-train-x1 PASSED >/dev/null || die "the guest's program does not pass: $(wrote virt-launcher-train-x1 | tail -20)"
  await 30 "a VM that has ended may go" migration train
  kubectl delete pod virt-launcher-train-x1 --wait=false >/dev/null
  ok "a pod of virt-launcher's shape with QEMU: the guest's CUDA programs pass by KubeVirt's socket; while they have sessions the VM may not be migrated, afterwards it may"
}

pod_ip() { kubectl -n causeway get pods -l "app.kubernetes.io/name=$1" -o json | jq -r '[.items[] | select(.metadata.deletionTimestamp == null)][0].status.podIP'; }
# page TEXT: does the fleet's page have it?
page() { curl -sf "http://$(pod_ip causeway-web):8080/now" | grep -F -- "$1"; }

measured() { curl -sf "http://$1:8080/metrics" | grep -E "$2"; }

# may ACCOUNT VERB WHAT...: is it allowed to?
may() { kubectl auth can-i --as="system:serviceaccount:causeway:causeway-$1" --as-group=system:serviceaccounts "${@:2}" >/dev/null 2>&1; }

# allowed and denied take an account and what is asked, and end the script where the answer is
# another.
allowed() { may "$@" || die "causeway-$1 may not, and has to: ${*:2}"; }
denied() { ! may "$@" || die "causeway-$1 may, and has not to: ${*:2}"; }

check_accounts() {
  local a
  allowed webhook update secrets/causeway-webhook-tls -n causeway
  allowed webhook get resourceclaimtemplates -A
  allowed webhook update mutatingwebhookconfigurations.admissionregistration.k8s.io/causeway-kubevirt
  allowed web list pods -A
  allowed dra update resourceclaims --subresource=status -A
  allowed fleet update resourceclaims --subresource=status -A
  for a in dra webhook web fleet; do
    denied $a get secrets -A
    denied $a create pods -A
    denied $a delete pods -A
    denied $a update resourceclaims -A
    denied $a update nodes
    denied $a patch deviceclasses
  done
  denied webhook get secrets/other -n causeway
  denied webhook update mutatingwebhookconfigurations.admissionregistration.k8s.io/other
  denied webhook update resourceclaims --subresource=status -A
  denied web get configmaps -A
  denied fleet get pods -A
  denied dra get pods -A
  denied fleet get namespaces/other
  denied dra arbitrary-node:update resourceclaims/gpu.causeway.dev --subresource=driver -A
  ok "accounts: each may what it has to and no more; none reads Secrets but the webhook its own, none touches pods"
}

check_page() {
  local ip; ip=$(pod_ip causeway-web)
  await 30 "the page shows the claim" page 'default/first-vgpu'
  await 30 "metrics say what it has" measured "$ip" "^causeway_fleet_gpu_claimed_memory_bytes\{.*node=\"$kube_node\"\} 5.36870912e\+08"
  curl -sf "http://$(pod_ip causeway-webhook):9444/metrics" | grep -q 'causeway_fleet_webhook_certificate_until_seconds 1' || die "the webhook has no metrics"
  ok "the page shows the fleet, by an account that may look and nothing else; metrics of both"
}

check_upgrade() {
  local pid n
  pid=$(vgpus '.[0].pid')
  deploy_images two
  deploy_overlay two
  n=$(times first PASSED)
  kubectl apply -k "$kube/overlay" >/dev/null
  await 120 "the driver's pod is the new one" rolled_out daemonset/causeway-dra two
  await 120 "the webhook's pods are the new ones" rolled_out deployment/causeway-webhook two
  await 120 "the controller's pods are the new ones" rolled_out deployment/causeway-fleet two
  await 30 "the program goes on" more_than first PASSED "$n"
  [ "$(vgpus '.[0].pid')" = "$pid" ] || die "its vGPU is another: $(causeway ps)"
  [ "$(kubectl get pod first -o jsonpath='{.status.containerStatuses[0].restartCount}')" = 0 ] || die "its container was started again"
  asked train >/dev/null || die "the webhook does not answer: $(cat "$kube/log/asked")"
  ok "an upgrade by kubectl apply -k: the running pod, its container and its vGPU are not touched"
}

# left prints all of Causeway's that the API server has.
left() {
  local kinds; kinds=$(kubectl api-resources --verbs=list -o name | grep -vE '^(events|componentstatuses|endpoints$)' | paste -sd,)
  kubectl get "$kinds" -A -o json --ignore-not-found | jq -r '.items[] | select((.metadata.name + (.metadata.namespace // "")) | test("causeway")) | .kind + " " + .metadata.name'
  kubectl get resourceslices -o json | jq -r '.items[] | select(.spec.driver == "gpu.causeway.dev") | "ResourceSlice " + .metadata.name'
}
nothing_left() { [ -z "$(left)" ]; }

check_uninstall() {
  [ "$(left | wc -l)" -gt 20 ] || die "this does not find what there is: $(left)"
  kubectl delete pod --all --wait=false >/dev/null
  await 90 "all pods are gone" no_pods
  kubectl delete resourceclaims,resourceclaimtemplates --all >/dev/null
  kubectl delete -k "$kube/overlay" --wait=false >/dev/null
  kubectl label node "$kube_node" causeway.dev/gpus- causeway.dev/fabric- >/dev/null
  await 180 "nothing of Causeway's is left in the cluster: $(left | tr '\n' ' ')" nothing_left
  await 30 "nothing is left on the node" no_vgpus
  ! compgen -G "$kube/kubelet/plugins_registry/*causeway*" >/dev/null || die "left: $(ls "$kube/kubelet/plugins_registry")"
  ! compgen -G "$kube/kubelet/plugins/gpu.causeway.dev/*.sock" >/dev/null || die "left: $(ls "$kube/kubelet/plugins/gpu.causeway.dev")"
  ok "kubectl delete -k leaves nothing of Causeway's: no object of any kind, no ResourceSlice, no vGPU, specification or socket on the node"
}
