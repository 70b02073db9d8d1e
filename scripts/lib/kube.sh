# A Kubernetes cluster of one node on this machine, for scripts/fleet.sh; sourced after common.sh.
# Everything runs in the name spaces of the script (kube_apart), so its processes, mounts and
# network end with it; what is left is $kube, its folder, and the control groups: kube_clean removes
# them.
#
# The kubelet would set three sysctls of the whole machine: files with the wanted values lie over
# them. Its paths are short: a socket's may have 107 bytes.

kube_bin=$("$ROOT/scripts/kube/build.sh" --folder) || true # it may not be built yet
kube_node=node1 kube_node_ip=10.77.0.1
kube_manager_more=() kube_scheduler_more=() # arguments
kube_controllers="cpu cpuacct cpuset memory devices freezer blkio pids systemd"

# kube_apart SCRIPT ARGS... runs the script again, in name spaces of its own, and cleans up behind
# it, also when it is interrupted. All that runs there has the folder's lock.
kube_apart() {
  local rc=0 apart
  kube_sweep
  export KUBE_FOLDER KUBE_GROUP
  KUBE_FOLDER=$(mktemp -d /tmp/cwk.XXXX)
  KUBE_GROUP=causeway-kube-${KUBE_FOLDER##*.}
  exec 8>"$KUBE_FOLDER/.new"
  flock 8
  mv "$KUBE_FOLDER/.new" "$KUBE_FOLDER/.lock"
  unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private "$@" &
  apart=$!
  exec 8>&-
  trap 'kill -KILL $apart' INT TERM HUP # and with it all of its processes
  wait $apart || rc=$?
  trap '' INT TERM HUP
  flock -w 60 "$KUBE_FOLDER/.lock" true || say "there are processes left in $KUBE_GROUP"
  [ $rc = 0 ] || { mkdir -p "$BUILD/logs/fleet"; cp "$KUBE_FOLDER"/log/* "$BUILD/logs/fleet" 2>/dev/null; say "logs are in build/logs/fleet"; }
  kube_clean "$KUBE_FOLDER"
  return $rc
}

# kube_clean FOLDER removes what a script has left that has ended: its folder and its control
# groups, which the kernel gives up a moment after their last process.
kube_clean() {
  local group=causeway-kube-${1##*.} c try
  for try in 1 2 3 4 5 6 7 8 9 10; do
    for c in $kube_controllers unified; do # runc makes the last by itself where both versions are mounted
      [ ! -d "/sys/fs/cgroup/$c/$group" ] || find "/sys/fs/cgroup/$c/$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    compgen -G "/sys/fs/cgroup/*/$group" >/dev/null || break
    sleep 0.3
  done
  rm -rf "$1"
}

# kube_sweep removes what scripts left that were killed.
kube_sweep() {
  local lock
  for lock in /tmp/cwk.????/.lock; do
    [ ! -e "$lock" ] || ! flock -n "$lock" true || kube_clean "${lock%/.lock}"
  done
}

kubectl() { "$kube_bin/kube" kubectl --kubeconfig "$kube/pki/admin.kubeconfig" "$@"; }

# await SECONDS WHAT COMMAND... waits until the command succeeds; PATIENCE times as long on a
# machine with much else to do.
await() {
  local most=$(($1 * ${PATIENCE:-1})) what=$2 end; shift 2
  end=$((SECONDS + most))
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { echo "error: not within $most s: $what" >&2; kube_state >&2; exit 1; }
    sleep 0.2
  done
}

# kube_state says in eight lines what there is when something did not come: the pods, the newest
# events, and what causeway-dra warned of.
kube_state() {
  {
    timeout 10 kubectl get pods -A -o json | jq -r '"pods: " + ([.items[] | "\(.metadata.name) \(.status.phase) on \(.spec.nodeName // "no node")\(.status.conditions // [] | map(select(.status != "True") | " \(.reason)") | add // "")"] | join(", "))'
    timeout 10 kubectl get events -A -o json | jq -r '[.items[] | select(.type == "Warning")] | sort_by(.lastTimestamp // .eventTime // "") | .[-4:][] | "\(.lastTimestamp // .eventTime) \(.involvedObject.kind) \(.involvedObject.name): \(.message)"'
    grep -h WARN "$kube/log/dra" | tail -n 3
  } 2>&1 | tr -d '\r' | cut -c1-210 | sed 's/^/  /' || true
}

# kube_start NAME COMMAND... starts a program; its id is in pid/NAME, what it says in log/NAME. It
# has a session of its own: of a group that loses its shell the kernel wakes those that a check has
# stopped.
kube_start() {
  local name=$1 apart=(); shift
  [ "$(type -t "$1")" != file ] || apart=(setsid)
  "${apart[@]}" "$@" >>"$kube/log/$name" 2>&1 &
  echo $! >"$kube/pid/$name"
}

# kube_stop NAME SIGNAL ends one and waits for it.
kube_stop() {
  local pid; pid=$(cat "$kube/pid/$1")
  kill "-${2:-TERM}" "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
}

# kube_config NAME TOKEN [ADDRESS] writes how a program reaches the API server.
kube_config() {
  cat >"$kube/pki/$1.kubeconfig" <<T
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://${3:-127.0.0.1}:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: "$2"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
T
}

# Nothing forwards Services' addresses here: the API server calls webhooks by their pods'
# (--enable-aggregator-routing).

# kube_control_plane starts etcd, the API server, the controllers and the scheduler.
kube_control_plane() {
  local u
  mkdir -p "$kube"/{pki,pid,log} /run/netns
  mount -t tmpfs none /run/netns # names of networks end with these name spaces
  ip link set lo up
  ip link add d0 type veth peer name d1
  ip link set d1 up
  ip addr add 10.77.0.1/24 dev d0
  ip link set d0 up
  ip route add default via 10.77.0.254 dev d0 # to nowhere: the API server wants one
  openssl genrsa -out "$kube/pki/sa.key" 2048 2>/dev/null
  for u in 'admin,admin,admin,"system:masters"' 'scheduler,system:kube-scheduler,scheduler' 'manager,system:kube-controller-manager,manager' \
    "node,system:node:$kube_node,node,\"system:nodes\"" 'node2,system:node:gpu1,node2,"system:nodes"' \
    'agent,system:node:vmhost1,agent,"system:nodes"' 'mover,system:node:mover,mover,"system:nodes"'; do
    echo "${u%%,*}-token,${u#*,}"
    kube_config "${u%%,*}" "${u%%,*}-token"
  done >"$kube/pki/tokens.csv"
  kube_start etcd "$kube_bin/kube" etcd --data-dir "$kube/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
  kube_apiserver
  kube_start manager "$kube_bin/kube" controller-manager --kubeconfig "$kube/pki/manager.kubeconfig" "${kube_manager_more[@]}" --leader-elect=false --bind-address 127.0.0.1 \
    --service-account-private-key-file "$kube/pki/sa.key" --root-ca-file "$kube/pki/apiserver/apiserver.crt" --use-service-account-credentials
  kube_start scheduler "$kube_bin/kube" scheduler --kubeconfig "$kube/pki/scheduler.kubeconfig" "${kube_scheduler_more[@]}" --leader-elect=false --bind-address 127.0.0.1
  await 60 "controllers work" kubectl get serviceaccount default
}

kube_apiserver() {
  kube_start apiserver "$kube_bin/kube" apiserver --etcd-servers http://127.0.0.1:2379 --secure-port 6443 --bind-address 0.0.0.0 \
    --advertise-address 10.77.0.1 --cert-dir "$kube/pki/apiserver" --service-account-key-file "$kube/pki/sa.key" \
    --service-account-signing-key-file "$kube/pki/sa.key" --service-account-issuer https://fleet.test --token-auth-file "$kube/pki/tokens.csv" \
    --authorization-mode Node,RBAC --enable-aggregator-routing --enable-admission-plugins NodeRestriction --service-cluster-ip-range 10.96.0.0/16 --anonymous-auth=false
  await 240 "the API server is ready" kubectl get --raw /readyz
}

# kube_node_up IMAGE... starts containerd with images, and the kubelet.
kube_node_up() {
  local c s
  for c in $kube_controllers; do mkdir -p "/sys/fs/cgroup/$c/$KUBE_GROUP"; done
  for s in cpus mems; do cat /sys/fs/cgroup/cpuset/cpuset.$s >"/sys/fs/cgroup/cpuset/$KUBE_GROUP/cpuset.$s"; done
  mount --make-rshared /
  for s in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
    echo "${s#*=}" >"$kube/sysctl.${s##*/}"
    mount --bind "$kube/sysctl.${s##*/}" "/proc/sys/${s%%=*}"
  done
  mkdir -p "$kube"/{c,s,cni,cdi,kubelet/plugins,kubelet/plugins_registry,podlogs}
  kube_node_files
  kube_start containerd env PATH="$kube_bin:$PATH" "$kube_bin/containerd" -c "$kube/containerd.toml"
  await 30 "containerd answers" "$kube_bin/ctr" -a "$kube/c.sock" version
  for c; do "$kube_bin/ctr" -a "$kube/c.sock" -n k8s.io images import --snapshotter overlayfs "$c" >/dev/null; done
  kube_kubelet
  await 60 "the node is ready" kubectl wait --for=condition=Ready "node/$kube_node" --timeout=1s
}

kube_kubelet() {
  kube_start kubelet env PATH="$kube_bin:$PATH" "$kube_bin/kube" kubelet --config "$kube/kubelet.yaml" --kubeconfig "$kube/pki/node.kubeconfig" \
    --root-dir "$kube/kubelet" --cert-dir "$kube/pki" --hostname-override "$kube_node" --node-ip "$kube_node_ip"
}

kube_node_files() {
  cat >"$kube/cni/10-ptp.conflist" <<T
{"cniVersion":"0.4.0","name":"fleet","plugins":[{"type":"ptp","ipam":{"type":"host-local","dataDir":"$kube/ipam","ranges":[[{"subnet":"10.77.11.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
T
  cat >"$kube/containerd.toml" <<T
version = 3
root = "$kube/c"
state = "$kube/s"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs","io.containerd.snapshotter.v1.zfs","io.containerd.snapshotter.v1.devmapper","io.containerd.snapshotter.v1.erofs","io.containerd.snapshotter.v1.blockfile","io.containerd.tracing.processor.v1.otlp","io.containerd.nri.v1.nri"]
[grpc]
  address = "$kube/c.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "causeway.test/program:1"
[plugins.'io.containerd.cri.v1.runtime']

  cdi_spec_dirs = ["$kube/cdi"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "$kube/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "$(command -v runc)"
      SystemdCgroup = false
T
  cat >"$kube/kubelet.yaml" <<T
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$KUBE_GROUP
containerRuntimeEndpoint: unix://$kube/c.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
readOnlyPort: 0
healthzPort: 0
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
featureGates: {KubeletInUserNamespace: true}
evictionHard: {memory.available: "100Mi"}
imageGCHighThresholdPercent: 100
podLogsDir: $kube/podlogs
nodeStatusUpdateFrequency: 4s
syncFrequency: 10s
clusterDNS: []
resolvConf: /dev/null
T
}
