# A host of plain libvirt in the fleet, for scripts/fleet.sh --agent; sourced after fleet.sh and
# libvirtd.sh: causeway-fleet agent with a node's rights, a real libvirtd, and a VM whose guest runs
# CUDA programs one after the other, CPU emulated.

agent_host=vmhost1

agent_up() {
  kube_start agent env LIBVIRT_DEFAULT_URI=qemu:///system "$BUILD/bin/causeway-fleet" --kubeconfig "$kube/pki/agent.kubeconfig" agent --node "$agent_host" --address 10.77.0.1 \
    --causeway "$BUILD/bin/causeway" --run-dir "$kube/run" --records "$kube/agent" --interval 1s --timeout 10s
}

# placeholder NAME DOMAIN MEMORY [CLASS]
placeholder() {
  local t
  t=$(<"$ROOT/scripts/kube/placeholder.yaml")
  t=${t//NAME/$1} t=${t//DOMAIN/$2} t=${t//MEMORY/$3}
  printf '%s\n' "${t//causeway-libvirt/${4:-causeway-libvirt}}" | kubectl apply -f - >/dev/null
}

agent_domain() {
  local kernel=6.12 base
  base=$BUILD/images/base-$kernel.cpio
  [ -f "$base" ] || "$ROOT/images/build-initramfs.sh" $kernel "$base"
  cat >"$kube/run.sh" <<'T'
#!/bin/sh
mkdir -p /run/causeway
while true; do
  # A device that goes between two programs leaves a mount with nothing in it.
  [ -e /run/causeway/info ] || ! grep -q ' /run/causeway virtiofs ' /proc/mounts || { echo @failed; umount -l /run/causeway; }
  [ -e /run/causeway/info ] || mount -t virtiofs gpu0 /run/causeway 2>/dev/null || { sleep 0.2; continue; }
  if /app/vectoradd | grep -q PASSED; then echo @passed; else echo @failed; umount -l /run/causeway; fi
  sleep 0.2
done
T
  chmod 755 "$kube/run.sh"
  "$ROOT/images/build-initramfs.sh" --layer "$kube/layer" "$BUILD/tests/13.0-static/vectoradd:/app/vectoradd" "$kube/run.sh:/app/run"
  cat "$base" "$kube/layer" >"$kube/initrd"
  cat >"$kube/vm1.xml" <<T
<domain type='qemu'>
  <name>vm1</name>
  <memory unit='MiB'>512</memory>
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <vcpu>2</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type>
    <kernel>$BUILD/kernels/$kernel/vmlinuz</kernel><initrd>$kube/initrd</initrd><cmdline>$guest_append</cmdline></os>
  <features><acpi/></features>$tcg_cpu_xml
  <devices>
    <emulator>$(command -v qemu-system-x86_64)</emulator>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'/>
    <controller type='pci' index='2' model='pcie-root-port'/>
    <controller type='usb' model='none'/>
    <serial type='file'><source path='$kube/log/console' append='on'/><target type='isa-serial' port='0'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
T
}

console() { grep -c "^@$1" "$kube/log/console" 2>/dev/null || true; }
passes_more() { [ "$(console passed)" -gt "$1" ]; }
fails_more() { [ "$(console failed)" -gt "$1" ]; }
pod_event() { kubectl get events -o json | jq -e --arg pod "$1" --arg text "$2" 'any(.items[]; .involvedObject.kind == "Pod" and .involvedObject.name == $pod and (.message | contains($text)))'; }
domain_has() { [ "$(virsh dumpxml vm1 $1 | grep -c "$kube/run/claim-")" = "$2" ]; }
none_of_the_agent() { [ "$(vgpus length)" = 0 ] && domain_has '' 0 && domain_has --inactive 0 && ! compgen -G "$kube/agent/*"; }

check_agent() {
  local n
  kubectl apply -f "$ROOT/host/fleet/deploy/causeway-dra.yaml" -f "$ROOT/host/fleet/deploy/causeway-agent.yaml" >/dev/null
  export LIBVIRT_DEFAULT_URI=qemu:///system
  private_folders "$kube/libvirt"
  kube_start libvirtd libvirtd
  await 30 "libvirtd answers" virsh version
  agent_up
  await 30 "the host is a node" node_is "$agent_host" True
  await 30 "its GPU is published" gpu_published
  [ "$(kubectl get node "$agent_host" -o json | jq -c '[.spec.taints[0].key, .status.allocatable.cpu]')" = '["causeway.dev/agent","0"]' ] || die "the node: $(kubectl get node "$agent_host" -o yaml)"
  ok "causeway-fleet agent, with a node's rights and no kubelet: the Node is ready, has its taint and no cpu, and its GPU is published"
  agent_domain
  placeholder first vm1 512Mi
  await 60 "the pod says what it waits for" pod_event first 'no such domain: vm1'
  [ "$(kubectl get pod first -o jsonpath='{.spec.nodeName} {.status.phase}')" = "$agent_host Pending" ] || die "the pod: $(kubectl get pod first -o yaml)"
  virsh -q define "$kube/vm1.xml"
  virsh -q start vm1
  await 120 "the pod runs" pod_is first Running
  [ "$(vgpus -c '[.[0].spec | .memory, .share, .programs]')" = '[536870912,2500,null]' ] || die "limits: $(causeway ps --json)"
  await 180 "the guest's program passes" passes_more 0
  ok "the scheduler placed the pod, the agent waited for the domain, had causewayd make its vGPU and libvirt plug it in: a CUDA program in the running guest passes"
  placeholder second vm1 1800Mi
  await 30 "one that does not fit waits" pod_event second 'cannot allocate all claims'
  placeholder third vm1 64Mi causeway
  await 60 "a claim for a container is refused" pod_is third Failed
  await 30 "it says why" pod_event third 'is for a container'
  placeholder fourth '' 64Mi
  await 60 "a pod without a domain is refused" pod_is fourth Failed
  kubectl delete pod second third fourth --wait=false >/dev/null
  ok "what does not fit waits; a claim for a container and a pod that names no domain have failed and say why"
  kube_stop agent KILL
  kube_stop causewayd KILL
  n=$(console passed)
  await 60 "programs go on without them" passes_more "$n"
  causewayd_up
  agent_up
  virsh -q destroy vm1
  virsh -q start vm1
  n=$(console passed)
  await 180 "after a restart of the VM programs pass" passes_more "$n"
  pod_is first Running || die "the pod: $(kubectl get pod first -o yaml)"
  [ "$(vgpus '[.[] | select(.spec.memory == 536870912)] | length')" = 1 ] || die "vGPUs: $(causeway ps)"
  ok "agent and causewayd killed: programs go on; the VM restarts and has its vGPU, the same one"
  n=$(console failed)
  kubectl delete pod first --wait=false >/dev/null
  await 60 "the pod goes" pod_gone first
  await 30 "nothing is left" none_of_the_agent
  await 60 "the guest's program fails" fails_more "$n"
  ok "the pod is deleted: libvirt takes the device out of the running guest and of the definition, the vGPU is gone, the guest's next program gets an error"
  placeholder again vm1 256Mi
  await 60 "the pod runs" pod_is again Running
  n=$(console passed)
  await 120 "the guest has a GPU again" passes_more "$n"
  kube_stop agent KILL
  kubectl delete pod again --force --grace-period=0 >/dev/null 2>&1
  agent_up
  await 60 "nothing is left" none_of_the_agent
  ok "a pod that was deleted by force while the agent was away: its vGPU is taken back when the agent is there"
  kube_stop agent
  await 90 "the node is not ready" eval '! node_is "$agent_host" True'
  kubectl delete node "$agent_host" >/dev/null
  await 60 "its slices go with it" eval '[ "$(kubectl get resourceslices -o json | jq ".items | length")" = 0 ]'
  virsh -q destroy vm1
  ok "without the agent the node is not ready; a deleted node leaves no slice"
}
