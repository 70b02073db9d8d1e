#!/usr/bin/env bash
# Kubernetes on this machine: a control plane, a kubelet with containerd, causewayd and
# causeway-dra, and pods that use the software GPU.
#
#   scripts/fleet.sh [--short|--deploy|--page|--net|--agent] [--vm] [--scale HOSTS CLAIMS [PROFILE]]
#
#   --short   what `make test` runs of it (its stage cluster): two nodes, pods with claims, and what
#             is refused; status 77 and a reason where the machine has not what it takes
#   --page    nothing but the fleet's page, in a browser, over hollow nodes; takes chromium and
#             prometheus (Debian's)
#   --deploy  host/fleet/deploy in place of programs started by hand: images, the webhook for
#             KubeVirt, the page, an upgrade, and what is left when it is deleted
#   --net     GPUs of another host over the network, and nothing else: a GPU server in a network
#             namespace of its own, two controllers, what is lost and what is fenced (6 minutes)
#   --agent   a host of plain libvirt in place of a kubelet: causeway-fleet agent, libvirtd, and a
#             VM that gets its vGPU by a pod (3 minutes); takes libvirt (scripts/setup.sh libvirt)
#   --scale   a control plane alone, with so many hosts of 8 GPUs that are not there, and claims of
#             mixed sizes: how long that takes, what is stranded, what it costs. PROFILE is one of
#             host/fleet/deploy/scheduler.yaml
#   --vm      also QEMU in a pod, with a Linux guest that runs a CUDA program; with --net also one
#             that moves between nodes with a GPU of another host
#
# With PATIENCE=N in the environment each wait may be N times as long, on a machine with much else
# to do.
# Takes root, control groups of version 1, and what `make kube` installs and builds once: runc,
# containernetworking-plugins and busybox-static (Debian's), Kubernetes, etcd and containerd. What
# runs, is mounted and is connected is the script's own and ends with it. Prints one line for each
# check.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/kube.sh"
. "$ROOT/scripts/lib/fleet.sh"
. "$ROOT/scripts/lib/fleet-people.sh"
. "$ROOT/scripts/lib/fleet-vm.sh"
. "$ROOT/scripts/lib/fleet-net.sh"
. "$ROOT/scripts/lib/fleet-move.sh"
. "$ROOT/scripts/lib/fleet-scale.sh"
. "$ROOT/scripts/lib/fleet-deploy.sh"
. "$ROOT/scripts/lib/fleet-page.sh"
. "$ROOT/scripts/lib/libvirtd.sh"
. "$ROOT/scripts/lib/fleet-agent.sh"

short= vm= net= deploy= page= agent= scale=()
while [ $# -gt 0 ]; do
  case $1 in
    --short) short=1; shift ;;
    --vm) vm=1; shift ;;
    --net) net=1; shift ;;
    --deploy) deploy=1; shift ;;
    --page) page=1; shift ;;
    --agent) agent=1; shift ;;
    --scale) scale=("${@:2:3}"); shift $(($# < 4 ? $# : 4)); [ ${#scale[@]} -ge 2 ] || die "--scale HOSTS CLAIMS [PROFILE]" ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
# lacks WHAT: the machine has not what this takes. To make test that is no fault of what is tested.
lacks() {
  [ -z "$short" ] || { echo "0 passed, 0 failed, 1 skipped: $1"; exit 77; }
  die "$1"
}
[ "$(id -u)" = 0 ] || lacks "this takes root: it makes name spaces and control groups"
[ -w /sys/fs/cgroup/cpuset ] || lacks "this takes control groups of version 1"
unshare --mount --net --pid --fork true 2>/dev/null || lacks "no name spaces can be made here"
for tool in runc busybox ip jq openssl gcc curl /usr/lib/cni/ptp; do have $tool || lacks "$tool is missing: run make kube (once, some 13 minutes of CPU time)"; done
[ -z "$short" ] || [ -x "$kube_bin/kube" ] || lacks "Kubernetes is not built on this machine: run make kube (once, some 13 minutes of CPU time)"
for tool in ${agent:+libvirtd virsh qemu-system-x86_64}; do have $tool || die "$tool is missing: run scripts/setup.sh libvirt qemu"; done
for tool in ${page:+chromium prometheus}; do have $tool || die "$tool is missing: apt-get install chromium prometheus"; done
for f in bin/causeway lib/libcuda.so.1 tests/13.0-static/vectoradd; do [ -e "$BUILD/$f" ] || die "build/$f is missing: run make build and scripts/build-tests.sh"; done
if [ -z "${KUBE_FOLDER:-}" ]; then
  "$ROOT/scripts/kube/build.sh"
  make -s -C "$ROOT" fleet
  rc=0; kube_apart "$0" ${short:+--short} ${vm:+--vm} ${net:+--net} ${deploy:+--deploy} ${page:+--page} ${agent:+--agent} ${scale:+--scale "${scale[@]}"} || rc=$?
  exit $rc
fi
kube=$KUBE_FOLDER

[ ${#scale[@]} = 0 ] || scale_settings
case ${scale[*]}$page/$short in
  /) kube_manager_more+=(--node-monitor-grace-period 20s) ;;   # a frozen node is known so by then
  /1) kube_manager_more+=(--node-monitor-grace-period 300s) ;; # and one that waits for its turn is none, beside other tests
esac
say "control plane"
kube_control_plane
if [ ${#scale[@]} -gt 0 ]; then
  run_scale "${scale[@]}"
  exit
fi
if [ -n "$page" ]; then
  check_browser
  echo "$passed passed, 0 failed"
  exit
fi
if [ -n "$agent" ]; then
  say "causewayd, libvirtd and causeway-fleet agent"
  causewayd_up
  check_agent
  echo "$passed passed, 0 failed"
  exit
fi
fleet_image "$kube/program.tar"
say "node"
kube_node_up "$kube/program.tar"
[ -z "$net$deploy$short" ] || net_hosts
say "causewayd and causeway-dra"
causewayd_up
if [ -n "$deploy" ]; then
  say "host/fleet/deploy"
  check_deploy
  check_controller
  check_accounts
  check_page
  check_kubevirt
  [ -z "$vm" ] || check_launcher
  check_upgrade
  check_uninstall
  echo "$passed passed, 0 failed"
  exit
fi
kubectl apply -f "$ROOT/host/fleet/deploy/causeway-dra.yaml" >/dev/null
driver_token
driver_up
await 30 "the GPU is published" gpu_published
ok "the node's GPU is published: $(kubectl get resourceslices -o json | jq -r '.items[0].spec.devices[0] | "\(.attributes.model.string), memory \(.capacity.memory.value), compute \(.capacity.compute.value)"')"

if [ -n "$net" ]; then
  check_net
  echo "$passed passed, 0 failed"
  exit
fi

check_rights

if [ -n "$short" ]; then
  check_bad_input
  pods
  check_container
  check_waiting
  check_refused
  check_restarts
  [ -z "$vm" ] || check_vm
  net_begin
  check_net_both
  check_net_end
  echo "$passed passed, 0 failed"
  exit
fi

say "people"
check_people
check_drain
check_bad_input

say "pods"
pods
check_container
check_waiting
check_refused
check_restarts
check_reboot
check_fence
check_end
[ -z "$vm" ] || check_vm
echo "$passed passed, 0 failed"
