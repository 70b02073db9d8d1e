# A VM that moves between pods of two nodes with its claim for a GPU of another host, for
# scripts/fleet.sh --net --vm; sourced after fleet-net.sh. The pods have virt-launcher's shape and
# stock QEMU, whose monitor says what KubeVirt would have said.

# move_node makes the machine mover, which reaches gpu1 through node1, and has it be a node.
move_node() {
  ip netns add mover
  ip link add w2 type veth peer name w3 netns mover
  ip addr add 10.79.0.1/24 dev w2
  ip link set w2 up
  ip -n mover addr add 10.79.0.2/24 dev w3
  ip -n mover link set w3 up
  ip -n mover link set lo up
  ip -n mover route add default via 10.79.0.1
  ip -n gpu1 route add 10.79.0.0/24 via 10.78.0.1
  echo 1 >/proc/sys/net/ipv4/ip_forward # of this network's own
  mkdir -p "$kube/mover"
  echo 0123456789abcdef0123456789abcde2 >"$kube/mover/machine-id"
  printf 'run_dir = "%s"\nstate_dir = "%s"\nlog_dir = "%s"\n' "$kube/mover/run" "$kube/mover/state" "$kube/mover/causewaylog" >"$kube/mover.toml"
  { net_identity mover; printf 'listen = ":7744"\n[remote]\nservers = ["gpu1"]\n'; } >>"$kube/mover.toml"
  kube_start causewayd-mover on_machine mover "$BUILD/bin/causeway" daemon --config "$kube/mover.toml"
  await 20 "mover's causewayd answers" at_mover gpus --json
  net_node three mover 10.79.0.2 10.79.0.1 mover "$kube/vm.tar" "$kube/program.tar"
  net_driver three mover "$kube/mover/run"
  kubectl label node mover causeway.dev/fabric=f1 >/dev/null
}
at_mover() { "$BUILD/bin/causeway" "$1" --run-dir "$kube/mover/run" "${@:2}"; }

# move_pod NAME NODE [ARGS...]: a pod of the VM; own_pod of one with a GPU of its node.
move_pod() { pod_of movepod "$@"; }
own_pod() { pod_of ownmove "$@"; }
pod_of() {
  local t args="-monitor unix:/var/run/kubevirt/virtiofs-containers/monitor,server=on,wait=off ${*:4}"
  t=$(<"$ROOT/scripts/kube/$1.yaml")
  shift
  t=${t//ARGS/$args} t=${t//NAME/$1} t=${t//NODE/$2} t=${t//MOVE/$kube/move}
  printf '%s\n' "$t" | kubectl apply -f - >/dev/null
}
# sockets POD: the folder with its sockets; FOLDER is its node's.
sockets() { echo "$1/kubelet/pods/$(kubectl get pod "$2" -o jsonpath='{.metadata.uid}')/volumes/kubernetes.io~empty-dir/sockets"; }
# monitor FOLDER POD COMMAND; a socket's path may have 107 bytes, so it is called from its folder.
monitor() (cd "$(sockets "$1" "$2")" && timeout 60 python3 "$ROOT/scripts/lib/hmp.py" monitor "$3")
moved_rounds() { cat "$1/podlogs/default_$2_"*/*/*.log 2>/dev/null | grep -c '@round [0-9]* 0' || true; }
rounds_pass() { [ "$(moved_rounds "$1" "$2")" -gt "$3" ]; }
qemu_migration() { monitor "$kube" "$1" 'info migrate' | tr -d '\r' | grep -qi "^\(migration \)\?status: *$2"; }
move_reservation() { jq -r '[.reservations[] | select(.of == "default/vm-net")] | length as $n | .[0] | "\($n) \(.host) \(.heir // "-") \(.moved // 0)"' "$kube/gpu1/run/fleet.json"; }
move_is() { [ "$(move_reservation)" = "$1" ]; }
claim_says() { kubectl get resourceclaim vm-net -o json | jq -r '.status.devices[0].conditions[] | select(.type == "causeway.dev/LeaseReady").message' | grep -F -- "$1"; }
# promised: what gpu1 has promised of its GPU.
promised() { far gpus --json | jq '.[0].promised'; }
# waits_at_mover POD: QEMU there waits for the VM, by a vGPU that has no lease.
waits_at_mover() { [ -S "$kube/move/incoming" ] && [ -S "$(sockets "$kube/three" "$1")/monitor" ] && at_mover ps --json | jq -e '.[0].upstream | .lost and (.error | contains("until its VM is at mover"))'; }

check_net_move() {
  local n before worker
  guest_run='exec /app/rounds streams'
  fleet_vm_image "$kube/vm.tar"
  "$kube_bin/ctr" -a "$kube/c.sock" -n k8s.io images import --snapshotter overlayfs "$kube/vm.tar" >/dev/null
  mkdir -m 777 "$kube/move"
  kubectl apply -f "$ROOT/host/fleet/deploy/causeway-fleet-moves.yaml" >/dev/null
  printf 'nodes: {causeway.dev/fabric: f1}\nhosts:\n- {name: gpu1, moves: true}\n' >"$kube/hosts.yaml"
  await 30 "claims of gpu1 bind to no node" net_device '.bindsToNode != true'
  move_node
  rm "$kube/vm.tar"
  move_pod source "$kube_node"
  await 60 "the claim has its lease" move_is "1 $kube_node - 0"
  await 240 "the guest's program computes" rounds_pass "$kube" source 2
  worker=$(far_vgpus '[.[].status.sessions[].worker] | sort')
  before=$(promised)

  move_pod first mover -incoming unix:/move/incoming
  await 60 "gpu1 lets mover take the lease over" move_is "1 $kube_node mover 0"
  await 90 "QEMU waits in the other node's pod" waits_at_mover first
  claim_says "for the node mover if the VM moves there" >/dev/null || die "the claim: $(kubectl get resourceclaim vm-net -o yaml)"
  [ "$(promised)" = "$before" ] || die "gpu1 promises $(promised), $before before"
  monitor "$kube" source 'migrate_set_capability return-path on' >/dev/null
  monitor "$kube/three" first 'migrate_set_capability return-path on' >/dev/null
  monitor "$kube" source 'migrate_set_parameter max-bandwidth 1M' >/dev/null
  monitor "$kube" source 'migrate -d unix:/move/incoming' >/dev/null
  await 30 "the lease's keys go ahead" eval '[ "$(jq -r .id "$kube"/run/claim-*/gpu0.lease | sort -u | grep -cFx "$(jq -r .id "$kube"/mover/run/claim-*/gpu0.lease)")" = 1 ]'
  monitor "$kube" source migrate_cancel >/dev/null
  n=$(moved_rounds "$kube" source)
  await 60 "the program goes on where it was" rounds_pass "$kube" source "$n"
  kubectl delete pod first --wait=false >/dev/null
  await 60 "the other node is to have nothing" move_is "1 $kube_node - 0"
  await 60 "its pod is gone" pod_gone first
  [ "$(at_mover ps --json | jq length)" = 0 ] || die "left on mover: $(at_mover ps)"
  ok "a VM with a GPU of another host, held by pods of two nodes: a migration that is called off leaves the lease on $kube_node, its program computes on, and nothing is left on the other node"

  rm -f "$kube/move/incoming"
  move_pod second mover -incoming unix:/move/incoming
  await 90 "QEMU waits in the other node's pod" waits_at_mover second
  monitor "$kube/three" second 'migrate_set_capability return-path on' >/dev/null
  monitor "$kube" source 'migrate_set_parameter max-bandwidth 4G' >/dev/null
  monitor "$kube" source 'migrate -d unix:/move/incoming' >/dev/null
  await 120 "the VM has moved: $(monitor "$kube" source 'info migrate' | head -n 3 | tr '\n' ' ')" qemu_migration source completed
  monitor "$kube" source 'info migrate' | tr -d '\r' | sed -n 's/^[dD]owntime[^:]*: *\([0-9]*\).*/\1/p' | head -n 1 >"$kube/downtime"
  await 120 "the same program computes there, all results right" rounds_pass "$kube/three" second 2
  await 60 "the lease is mover's" move_is "1 mover - 1"
  [ "$(far_vgpus '[.[].status.sessions[].worker] | sort')" = "$worker" ] || die "the workers on gpu1 are others: $worker, $(far ps -a)"
  [ "$(promised)" = "$before" ] || die "gpu1 promises $(promised), $before before"
  await 30 "the claim says so" claim_says "for the node mover"
  await 30 "$kube_node is refused" eval 'vgpus -e "any(.[]; .upstream.lost and (.upstream.error | contains(\"mover\")))"'
  kubectl delete pod source --wait=false >/dev/null
  await 60 "the first pod is gone" pod_gone source
  n=$(moved_rounds "$kube/three" second)
  await 60 "the program computes on" rounds_pass "$kube/three" second "$n"
  ok "it moves, with its program: every result right, the same worker on gpu1 and its memory promised once, the lease is mover's and $kube_node is refused; QEMU stood $(<"$kube/downtime") ms"
  kubectl delete pod second --wait=false >/dev/null
  kubectl delete resourceclaim vm-net --wait=false >/dev/null
  await 60 "the second pod is gone" pod_gone second
  await 60 "only the other claim is left on gpu1" reserved 1
  await 30 "and its lease" has_lease 1
}

# A VM with a GPU of its own node: each of its pods has a claim of its own, and the state of its
# programs goes from device process to device process, most of it ahead of the VM.
check_own_move() {
  local n ahead at=virt-launcher-train # as KubeVirt calls a VM's pods, with five characters behind it
  sed -i 's/^listen = ":7744"$/&\npeers = ["mover"]/' "$kube/causewayd.toml"
  kube_signal causewayd HUP
  own_pod $at-aaaaa "$kube_node"
  await 240 "the guest's program computes" rounds_pass "$kube" $at-aaaaa 2
  await 60 "the claim says that it has a session" condition_says $at-aaaaa SessionsOpen
  own_begin $at-bbbbb 8M
  await 120 "its memory goes ahead" ahead
  monitor "$kube" $at-aaaaa migrate_cancel >/dev/null
  n=$(moved_rounds "$kube" $at-aaaaa)
  await 60 "the program goes on where it was" rounds_pass "$kube" $at-aaaaa "$n"
  kubectl delete pod $at-bbbbb --wait=false >/dev/null
  await 60 "the other node's pod is gone" pod_gone $at-bbbbb
  await 30 "nothing is left on the other node" eval '[ "$(at_mover ps --json | jq length)" = 0 ]'
  ok "a VM with a GPU of its node, and another pod with a claim of its own on another node: a migration that is called off leaves the program where it was, and nothing on the other node"

  own_begin $at-ccccc 8M
  await 120 "its memory goes ahead" ahead
  monitor "$kube" $at-aaaaa 'migrate_set_parameter max-bandwidth 4G' >/dev/null
  await 120 "the VM has moved: $(monitor "$kube" $at-aaaaa 'info migrate' | head -n 3 | tr '\n' ' ')" qemu_migration $at-aaaaa completed
  monitor "$kube" $at-aaaaa 'info migrate' | tr -d '\r' | sed -n 's/^[dD]owntime[^:]*: *\([0-9]*\).*/\1/p' | head -n 1 >"$kube/downtime"
  await 120 "the same program computes there, all results right" rounds_pass "$kube/three" $at-ccccc 2
  [ "$(at_mover ps --json | jq -c '[.[] | [(.gpu != null), (.status.sessions | length), .spec.migratable]]')" = '[[true,1,true]]' ] || die "mover: $(at_mover ps --json)"
  await 60 "the other claim says that it has a session" condition_says $at-ccccc SessionsOpen
  ahead=$(vgpus '[.[] | select(.spec.migratable).status.copied] | add / 1024 | floor')
  kubectl delete pod $at-aaaaa --wait=false >/dev/null
  await 60 "the first pod is gone" pod_gone $at-aaaaa
  await 60 "and its vGPU" eval '[ "$(vgpus "[.[] | select(.spec.migratable)] | length")" = 0 ]'
  n=$(moved_rounds "$kube/three" $at-ccccc)
  await 60 "the program computes on" rounds_pass "$kube/three" $at-ccccc "$n"
  ok "it moves, with its program, to the GPU of the other node that its other claim has: every result right; $ahead KiB of GPU memory went ahead, QEMU stood $(<"$kube/downtime") ms"
  kubectl delete pod $at-ccccc --wait=false >/dev/null
  await 60 "the other pod is gone" pod_gone $at-ccccc
  kubectl delete resourceclaimtemplate vm-own --wait=false >/dev/null
  await 30 "nothing is left on the other node" eval '[ "$(at_mover ps --json | jq length)" = 0 ]'
}
# own_begin POD BANDWIDTH has the VM begin to move to that pod of the other node.
own_begin() {
  rm -f "$kube/move/incoming"
  own_pod "$1" mover -incoming unix:/move/incoming
  await 90 "QEMU waits in the other node's pod" eval '[ -S "$kube/move/incoming" ] && [ -S "$(sockets "$kube/three" '"$1"')/monitor" ]'
  await 30 "by its vGPU" eval 'at_mover ps --json | jq -e "length == 1 and .[0].status.connected"'
  monitor "$kube" $at-aaaaa 'migrate_set_capability return-path on' >/dev/null
  monitor "$kube/three" "$1" 'migrate_set_capability return-path on' >/dev/null
  monitor "$kube" $at-aaaaa "migrate_set_parameter max-bandwidth $2" >/dev/null
  monitor "$kube" $at-aaaaa 'migrate -d unix:/move/incoming' >/dev/null
}
# ahead: all GPU memory of the VM went ahead once.
ahead() { vgpus -e 'any(.[]; .spec.migratable and .status.copy.way == "out" and .status.copy.rounds >= 1)'; }
condition_says() { [ -n "$(condition "$1" "$2")" ]; }

# move_end: what comes next is of one node.
move_end() {
  local n
  for n in kubelet containerd; do kill "$(<"$kube/three/pid/$n")"; done
  kube_stop dra-three
  kube_stop causewayd-mover
  kubectl delete node mover >/dev/null
  printf 'nodes: {causeway.dev/fabric: f1}\nhosts:\n- {name: gpu1}\n' >"$kube/hosts.yaml"
  await 30 "claims of gpu1 bind to a node again" net_device '.bindsToNode == true'
}
