# Slurm and causewayd in a copy of this machine, for scripts/slurm.sh; sourced after common.sh.

shards=32
passed=0
ok() { printf '[%3ds] ok      %s\n' "$SECONDS" "$*"; passed=$((passed + 1)); }

# slurm_apart WHERE SCRIPT runs it again with mounts, processes and a host name of its own, and a
# folder for the copy, and cleans up behind it, also when it is interrupted.
slurm_apart() {
  local rc=0 apart
  export SLURM_COPY
  SLURM_COPY=$(mktemp -d)
  SLURM_PLACE=$1 unshare --mount --pid --uts --fork --kill-child "$2" &
  apart=$!
  trap 'kill -KILL $apart' INT TERM HUP # and with it all of its processes
  wait $apart || rc=$?
  trap '' INT TERM HUP
  rmdir "$SLURM_COPY"
  exit $rc
}

# slurm_copy_of_machine SCRIPT runs it once more, in a copy of all folders, with Slurm installed and
# without a network beyond.
slurm_copy_of_machine() {
  local copy=$SLURM_COPY
  mount -t tmpfs -o size=4g slurm "$copy" && mkdir "$copy"/{changes,work,root}
  mount -t overlay -o "lowerdir=/,upperdir=$copy/changes,workdir=$copy/work" slurm "$copy/root"
  mount -t proc proc "$copy/root/proc"
  mount --rbind /dev "$copy/root/dev" && mount --rbind /sys "$copy/root/sys"
  mount -t tmpfs run "$copy/root/run" && mount -t tmpfs tmp "$copy/root/tmp" && chmod 1777 "$copy/root/tmp"
  mkdir -p "$copy/root$ROOT" && mount --bind "$ROOT" "$copy/root$ROOT"
  printf '#!/bin/sh\nexit 101\n' >"$copy/root/usr/sbin/policy-rc.d" && chmod 755 "$copy/root/usr/sbin/policy-rc.d"
  say "installing slurm-wlm and munge in a copy of this machine"
  DEBIAN_FRONTEND=noninteractive retry 3 chroot "$copy/root" sh -c \
    'apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm slurmctld slurmd munge' >"$copy/log" 2>&1 || { tail -20 "$copy/log" >&2; die "they are not installed"; }
  cd / # the checkout's mount is the copy's now
  SLURM_PLACE=inside exec unshare --net chroot "$copy/root" "$ROOT/${1##"$ROOT"/}"
}

# await SECONDS WHAT COMMAND... until it succeeds.
await() {
  local until=$((SECONDS + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $until ] || { tail -n 8 /tmp/*.log >&2 || true; die "not in time: $what"; }
    sleep 0.1
  done
}

causeway() { "$BUILD/bin/causeway" "$@"; }
vgpus() { causeway ps --json | jq "$@"; }
no_vgpus() { [ "$(vgpus '[.[] | select(.spec.vm | startswith("slurm-"))] | length')" = 0 ] && [ -z "$(ls /run/causeway-slurm 2>/dev/null)" ]; }
# as USER COMMAND...
as() { runuser -u "$1" -- "${@:2}"; }
# job SECONDS SRUN-OPTION... -- COMMAND... as alice.
job() { timeout "$1" runuser -u alice -- srun --quiet --chdir=/ "${@:2}"; }
node_is() { sinfo -N -h -o %T | grep -q "$1"; }

slurm_up() {
  hostname n1
  ip link set lo up # and one that is not: Slurm looks names up only where there is one
  ip link add wire type veth peer name other && ip link set other up && ip address add 192.0.2.1/24 dev wire && ip link set wire up
  echo '192.0.2.1 n1' >>/etc/hosts
  mkdir -p /run/munge /var/spool/slurmctld /var/spool/slurmd && chown munge /run/munge && chmod 755 /run/munge
  as munge /usr/sbin/munged
  useradd -m alice && useradd -m bob
  ln -sfn "$BUILD/lib" /usr/lib/causeway
  # shellcheck disable=SC2016
  printf '#!/bin/sh\nexec >>/tmp/prolog.log 2>&1\nexec %s slurm prolog --shards %d --license causeway --license-memory 256MiB\n' "$BUILD/bin/causeway" $shards >/etc/slurm/prolog
  printf '#!/bin/sh\nexec >>/tmp/prolog.log 2>&1\nexec %s slurm epilog --license causeway\n' "$BUILD/bin/causeway" >/etc/slurm/epilog
  printf '#!/bin/sh\nexec %s slurm task-prolog\n' "$BUILD/bin/causeway" >/etc/slurm/task-prolog
  chmod 755 /etc/slurm/{prolog,epilog,task-prolog}
  cat >/etc/slurm/slurm.conf <<T
ClusterName=test
SlurmctldHost=n1
SlurmUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
Licenses=causeway:8
PrologFlags=Alloc
Prolog=/etc/slurm/prolog
Epilog=/etc/slurm/epilog
TaskProlog=/etc/slurm/task-prolog
KillWait=2
ReturnToService=2
MailProg=/bin/true
SlurmctldLogFile=/tmp/slurmctld.log
SlurmdLogFile=/tmp/slurmd.log
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
NodeName=n1 CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=1000 Gres=gpu:2,shard:$((2 * shards))
PartitionName=all Nodes=n1 Default=YES State=UP OverSubscribe=NO
T
  echo 'SlurmdParameters=config_overrides' >>/etc/slurm/slurm.conf
  printf 'Name=gpu File=/dev/null\nName=gpu File=/dev/zero\nName=shard Count=%d\n' $((2 * shards)) >/etc/slurm/gres.conf
  slurmctld && slurmd
  await 20 "the node is idle" node_is idle
}

causewayd_up() {
  local pki="ca = '/tmp/pki/ca.pem'\ncertificate = '/tmp/pki/n1.pem'\nkey = '/tmp/pki/n1-key.pem'\n"
  causeway ca init --dir /tmp/pki >/dev/null && causeway ca issue --dir /tmp/pki n1 192.0.2.1 >/dev/null
  printf "[placement]\nsoftware_memory = '2GiB'\nsoftware_gpus = 2\n[migration]\n$pki[remote]\nservers = ['192.0.2.1']\n" >/tmp/node.toml
  printf "run_dir = '/run/server'\nstate_dir = '/run/server/state'\nlog_dir = '/run/server/log'\n[placement]\nsoftware_memory = '2GiB'\n[migration]\n$pki" >/tmp/server.toml
  causeway serve --config /tmp/server.toml --listen 192.0.2.1:7745 --allow n1 >/tmp/server.log 2>&1 &
  node_daemon
}
node_daemon() {
  "$BUILD/bin/causeway" daemon --config /tmp/node.toml >>/tmp/causewayd.log 2>&1 & daemon=$!
  await 20 "causewayd answers" causeway gpus --json
}
kill_daemon() { kill -9 "$daemon"; wait "$daemon" 2>/dev/null || true; }

check_config() {
  causeway slurm config --shards $shards >/tmp/config
  grep -q "^NodeName=n1 Gres=gpu:2,shard:$((2 * shards)) " /tmp/config && grep -q "^NodeName=n1 Name=shard Count=$((2 * shards))$" /tmp/config || die "causeway slurm config: $(cat /tmp/config)"
  ok "causeway slurm config prints the node's lines"
}

check_part() {
  job 60 --gres=shard:8 -- bash -c 'vectoradd && allocate 256 400; nvidia-smi; env' >/tmp/out 2>&1 || die "the job fails: $(cat /tmp/out /tmp/prolog.log)"
  grep -q PASSED /tmp/out || die "the program does not pass: $(cat /tmp/out)"
  grep -q '^256 MiB: 0$' /tmp/out && grep -q '^400 MiB: 2$' /tmp/out || die "memory does not end at a quarter: $(cat /tmp/out)"
  grep -q '/    512MiB' /tmp/out && grep -q '^CUDA_VISIBLE_DEVICES=0$' /tmp/out || die "nvidia-smi or the environment: $(cat /tmp/out)"
  await 20 "nothing is left" no_vgpus
  ok "srun --gres=shard:8, of $shards: a CUDA program passes, memory ends at a quarter of the GPU's 2 GiB (out of memory), nvidia-smi shows it; nothing is left"
}

# hold SECONDS SRUN-OPTION... is a job in the background that has a session all that time; its
# output is /tmp/held-$held.
held=0
hold() {
  held=$((held + 1))
  job 120 "${@:2}" -- bash -c "vectoradd >/dev/null && echo holds && sleep $1 && vectoradd" >/tmp/held-$held 2>&1 &
  hold_pid=$!
  await 60 "job $held runs" grep -q holds /tmp/held-$held
}
own_job() { squeue -h -t RUNNING -o %A | head -n 1; }

check_two() {
  hold 600 --gres=shard:16
  [ "$(vgpus -c '[.[0].spec | .memory, .share, .programs]')" = '[1073741824,500,true]' ] || die "limits: $(vgpus -c '.[0].spec')"
  job 60 --gres=shard:24 -- bash -c 'vectoradd; allocate 1200' >/tmp/out 2>&1 || die "a second job: $(cat /tmp/out)"
  grep -q PASSED /tmp/out && grep -q '^1200 MiB: 0$' /tmp/out || die "the second job's GPU is not the other one: $(cat /tmp/out)"
  ok "a second job that does not fit on the first's GPU has the other, whose memory it can use"
}

check_apart() {
  local socket=/run/causeway/slurm-$(own_job)/gpu0.d/programs/session
  as alice env CAUSEWAY=unix:$socket LD_LIBRARY_PATH=/usr/lib/causeway vectoradd >/tmp/out 2>&1 || die "alice does not reach her own: $(cat /tmp/out)"
  ! as bob env CAUSEWAY=unix:$socket LD_LIBRARY_PATH=/usr/lib/causeway vectoradd >/tmp/out 2>&1 || die "bob uses alice's vGPU"
  ! as bob ls "${socket%/*}" >/tmp/out 2>&1 || die "bob sees into it"
  ! as alice touch "${socket%/*}/x" 2>/dev/null || die "alice changes the folder"
  ok "the job's user reaches its vGPU, another user does not"
  scancel "$(own_job)"; wait "$hold_pid" 2>/dev/null || true
  await 20 "nothing is left of a cancelled job" no_vgpus
  await 20 "the node is idle" node_is idle
  ok "a cancelled job's vGPU goes"
}

check_whole() {
  job 60 --gres=gpu:1 -- bash -c 'vectoradd; allocate 1500' >/tmp/out 2>&1 || die "a whole GPU: $(cat /tmp/out)"
  grep -q PASSED /tmp/out && grep -q '^1500 MiB: 0$' /tmp/out || die "a whole GPU: $(cat /tmp/out)"
  ok "srun --gres=gpu:1 has all of a GPU"
}

# refused TEXT SRUN-OPTION...: the task does not begin, its output says why, and the node stays as
# it is.
refused() {
  local want=$1; shift
  ! job 60 "$@" -- echo began >/tmp/out 2>&1 || die "a job that is to be refused succeeds: $(cat /tmp/out)"
  grep -q "$want" /tmp/out && ! grep -q '^began' /tmp/out || die "what it says: $(cat /tmp/out /tmp/prolog.log)"
  await 20 "the node is idle" node_is idle
  await 20 "nothing is left" no_vgpus
}
check_refused() {
  refused 'one GPU on each node, and this job has 2' --gres=gpu:2
  ok "two GPUs for a job: its output says why not, and the node is not drained"
  causeway create other --gpu soft --memory 2GiB --programs >/dev/null
  causeway create other2 --gpu soft/1 --memory 2GiB --programs >/dev/null
  refused 'memory' --gres=shard:8
  causeway delete other >/dev/null && causeway delete other2 >/dev/null
  ok "GPUs that somebody beside Slurm has filled: the job says so"
}

check_names() {
  local out
  job 60 --gres=shard:1 --job-name=$'x|gres:shard:32|causeway:8|1\n1|gres:gpu:1|N/A|1' --comment='|gres/gpu:1' -- vectoradd >/tmp/out 2>&1 && grep -q PASSED /tmp/out || die "names: $(cat /tmp/out /tmp/prolog.log)"
  grep -q 'slurm-' /tmp/causewayd.log || true
  out=$(as alice sbatch --parsable --chdir=/tmp --array=1-3 --gres=shard:2 --output=/tmp/array-%a --wrap 'vectoradd; allocate 200')
  await 60 "an array's jobs end" eval "[ -z \"\$(squeue -h -j $out)\" ]"
  for i in 1 2 3; do grep -q PASSED /tmp/array-$i && grep -q '^200 MiB: 2$' /tmp/array-$i || die "array $i: $(cat /tmp/array-$i /tmp/prolog.log)"; done
  await 20 "nothing is left" no_vgpus
  ok "a job whose name reads like Slurm's own words, and an array of three by sbatch"
}

check_ends() {
  job 60 --gres=shard:4 -- bash -c 'setsid sleep 300 & vectoradd; kill -9 $$' >/tmp/out 2>&1 || true
  grep -q PASSED /tmp/out || die "a job that kills itself: $(cat /tmp/out)"
  await 40 "nothing is left of a job that killed itself" no_vgpus
  hold 600 --gres=shard:4
  pkill -9 -x slurmstepd || true
  scancel "$(own_job)" 2>/dev/null || true
  await 60 "nothing is left of a job whose step daemon was killed" no_vgpus
  kill "$hold_pid" 2>/dev/null || true
  await 60 "the node is idle" node_is idle
  ok "jobs that end by kill -9, of themselves and of their step daemon, leave nothing"
}

check_restarts() {
  hold 6 --gres=shard:4
  kill_daemon && node_daemon
  pkill -9 -x slurmd && sleep 0.2 && slurmd
  wait "$hold_pid" || die "the job fails: $(cat /tmp/held-$held)"
  grep -q PASSED /tmp/held-$held || die "its program does not pass: $(cat /tmp/held-$held)"
  await 60 "nothing is left" no_vgpus
  await 30 "the node is idle" node_is idle
  ok "causewayd and slurmd killed while a job runs: its vGPU is there until its end, and goes then"
  kill_daemon
  job 60 --gres=shard:4 -- vectoradd >/tmp/out 2>&1 & local late=$!
  sleep 2
  node_daemon
  wait $late || die "a job that begins while causewayd restarts: $(cat /tmp/out /tmp/prolog.log)"
  await 20 "nothing is left" no_vgpus
  ok "a job that begins while causewayd is away waits for it"
}

check_licenses() {
  await 20 "the server is known" eval "causeway gpus --all | grep -q '^192.0.2.1'"
  job 60 --licenses=causeway:2 -- bash -c 'vectoradd; allocate 200 400; nvidia-smi -L' >/tmp/out 2>&1 || die "licences: $(cat /tmp/out /tmp/prolog.log)"
  grep -q PASSED /tmp/out && grep -q '^200 MiB: 0$' /tmp/out && grep -q '^400 MiB: 2$' /tmp/out || die "licences: $(cat /tmp/out)"
  await 20 "nothing is left" no_vgpus
  await 20 "the server has its lease back" eval "[ \"\$(causeway ps --run-dir /run/server --json | jq length)\" = 0 ]"
  refused 'not both' --licenses=causeway:2 --gres=shard:1
  ok "srun --licenses=causeway:2: a GPU of the network, 512 MiB of it; the lease ends with the job"
}

check_fault() {
  kill_daemon
  ! job 90 --gres=shard:4 -- vectoradd >/tmp/out 2>&1 || die "a job without causewayd succeeds"
  await 60 "the node is drained" node_is drain
  grep -q 'causewayd' /tmp/prolog.log || die "the prolog's log: $(cat /tmp/prolog.log)"
  ok "without causewayd for half a minute the node is drained, and the prolog says why"
}
