#!/usr/bin/env bash
# A GPU server and a host whose programs and VMs use its GPU, as docs/REMOTE.md tells it:
# certificates, leases, limits, and what goes wrong.
#
#   scripts/remote.sh [--kernel SERIES] [--programs "P..."] [--gpu N|N,M|nested] [--here] [--image
#   FILE] [PHASE...]
#
#   --programs  of guest/tests, that run on the server's GPU, with and without a VM (default: a few;
#               all: every one)
#   --gpu       the servers' GPU, for the phases serversvm, serverslarge and serverskilled: this one
#               of the machine's, or one for each of the two; nested: the back end for real ones,
#               whose driver is our own libcuda.so.1 over the software GPU (scripts/nested.sh);
#               default: the software GPU
#   --here      no network namespaces: hosts have addresses of the loopback network
#   --image     what the VM boots (default: made for it)
#   PHASE       programs limits reset restart refuse lost servers (what is done by default; servers:
#               a vGPU moves between two GPU servers, what is refused, and the host's causewayd is
#               killed on the way), lapse, freeze: half a minute without a causewayd, or with one
#               and programs that stand still; vm: programs in a VM;
#               vmlost: a VM whose causewayds are restarted, and whose server is killed then;
#               many: 200 programs (MANY) of one vGPU at once, and what they take of both hosts;
#               move: a VM that moves to another host and back, by causeway migrate, and by QEMU's
#               monitor alone; moverdma: likewise by causeway migrate, while the bytes of the VM's
#               programs go by RDMA (MODES: of guest/tests/rounds), which a libibverbs of the tests
#               has between processes of this host (scripts/rdma/onehost); serversvm: programs of a
#               VM that move between two GPU servers; serverslarge: likewise, of which one has much
#               memory (LARGE: MiB), and how long they stand for that; serversthrottled: likewise,
#               of which one changes its memory (MIB) faster than the link carries it (RATE, as
#               tc(8) has it; it needs a network namespace), without --throttle and with it;
#               serverskilled: likewise, and the host's causewayd, or the server to which they go,
#               is killed in the middle
#
# Two hosts on one machine: network namespaces with a veth between them, each with a causewayd:
# gpu1, a GPU server with the software GPU, and hosta. The status is 0 if every check passed. Needs
# root.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/guest.sh"
. "$ROOT/scripts/lib/remote-move.sh"
. "$ROOT/scripts/lib/remote-rdma.sh"
. "$ROOT/scripts/lib/remote-servers.sh"

kernel=6.12 programs="vectoradd streams events pinned reduce" phases=() gpu=soft here= image=
while [ $# -gt 0 ]; do
  case $1 in
    --kernel) kernel=$2; shift 2 ;;
    --programs) programs=$2; shift 2 ;;
    --gpu) gpu=$2; shift 2 ;;
    --here) here=1; shift ;;
    --image) image=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) phases+=("$1"); shift ;;
  esac
done
[ ${#phases[@]} -gt 0 ] || phases=(programs limits reset restart refuse lost servers)
[ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
[ -n "$here" ] || [ "$(id -u)" = 0 ] || die "needs root, for network namespaces: see --here"
[ -n "$here" ] || have ip || die "ip is missing: install iproute2"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-remote.XXXXXX")
logs=$BUILD/logs/remote-gpus
rm -rf "$logs"; mkdir -p "$logs"
mkfifo "$tmp/never"; exec 9<>"$tmp/never" # for nap
declare -A net_pid=() daemon_pid=() address=([hosta]=10.78.0.1 [gpu1]=10.78.0.2 [hostm]=10.78.0.3 [gpu2]=10.78.0.4)
[ -z "$here" ] || for h in "${!address[@]}"; do address[$h]=127.78.0.${address[$h]##*.}; done
hosts="gpu1 hosta" variant=13.0-static job= qemu_pid= next_pid= held= outer=
cleanup() {
  local h
  [ -z "$outer" ] || end "$outer"
  [ -z "$held" ] || kill -CONT "$held" 2>/dev/null
  [ -z "$job" ] || end "$job"
  [ -z "$qemu_pid" ] || kill -9 "$qemu_pid" 2>/dev/null
  [ -z "$next_pid" ] || kill -9 "$next_pid" 2>/dev/null
  for h in hosta hostm gpu1 gpu2; do
    [ -z "${daemon_pid[$h]:-}" ] || timeout 20 "$CAUSEWAY" delete vm1 --run-dir "$tmp/$h" >/dev/null 2>&1
    end "${daemon_pid[$h]:-}"
    kill_tree "$h"
    cp -r "$tmp/$h/log" "$logs/$h" 2>/dev/null
    [ ! -f "$tmp/$h/scheduler.json" ] || kill "$(json "$tmp/$h/scheduler.json" pid)" 2>/dev/null
  done
  for h in "${!net_pid[@]}"; do kill "${net_pid[$h]}" 2>/dev/null; done
  rm -rf "$tmp"
}
on_exit cleanup

# --- hosts
# --------------------------------------------------------------------------------------------------------------

stay_on() { # HOST COMMAND...: becomes it
  [ -z "$here" ] || exec "${@:2}" 9>&-
  exec nsenter -t "${net_pid[$1]}" -n ${net_pid[$1.mounts]:+--mount="/proc/${net_pid[$1.mounts]}/ns/mnt"} -- "${@:2}" 9>&-
}
on() { (stay_on "$@"); }
cli() { on "$1" "$CAUSEWAY" "${@:2}" --run-dir "$tmp/$1"; }
json() { python3 -c 'import json,sys; v=json.load(open(sys.argv[1]) if sys.argv[1]!="-" else sys.stdin)
for k in sys.argv[2:]: v=v[int(k)] if isinstance(v,list) else (v or {}).get(k)
print("" if v is None else v)' "$@" 2>/dev/null; }
# vgpu HOST KEY FIELD...: of its account.
vgpu() { local host=$1 key=$2; shift 2; cli "$host" inspect "$key" --json 2>/dev/null | json - 0 "$@"; }
there=hosta/vm1:gpu0 # what vm1/gpu0 is at the server

networks() {
  local h
  [ -z "$here" ] || return 0
  for h in $hosts; do
    unshare --net sleep infinity 9>&- & net_pid[$h]=$!
  done
  until_true 5 apart
  on hosta ip link add name wire type veth peer name wire netns "${net_pid[gpu1]}" || die "no veth between the hosts"
  for h in $hosts; do
    on "$h" ip address add "${address[$h]}/24" dev wire && on "$h" ip link set wire up && on "$h" ip link set lo up || die "no network of $h"
  done
}
apart() { local h; for h in $hosts; do [ "$(readlink "/proc/${net_pid[$h]}/ns/net")" != "$(readlink /proc/self/ns/net)" ] || return; done; }

config() { # HOST: its configuration
  mkdir -p "$tmp/$1/pki"
  cp "$tmp/pki/ca.pem" "$tmp/pki/revoked" "$tmp/$1/pki/" && cp "$tmp/pki/$1.pem" "$tmp/$1/pki/host.pem" && cp "$tmp/pki/$1-key.pem" "$tmp/$1/pki/host-key.pem" || return
  printf '%s\n' "run_dir = '$tmp/$1'" "state_dir = '$tmp/$1/state'" "log_dir = '$tmp/$1/log'" '[devices]' "log = 'file'" 'verbose = true' "socket_owner = '0'" \
    '[placement]' "software_memory = '2GiB'" '[migration]' "ca = '$tmp/$1/pki/ca.pem'" "certificate = '$tmp/$1/pki/host.pem'" "key = '$tmp/$1/pki/host-key.pem'" \
    "listen = '${address[$1]}:7744'" '[remote]' "servers = ['${address[gpu1]}']" >"$tmp/$1.toml"
  [[ $1 != gpu* ]] || sed -i '$d' "$tmp/$1.toml"
  rdma_config "$1"
  [[ $1 != gpu* || $gpu != nested ]] || sed -i "s#^\[devices\]#[isolation]\nsandbox = 'off'\n&\nenvironment = { CAUSEWAY_OUTER = '$below', LD_LIBRARY_PATH = '$BUILD/lib' }#" "$tmp/$1.toml"
}
start_causewayd() { # HOST
  local what=(daemon) by=("$CAUSEWAY")
  [[ $1 != gpu* ]] || what=(serve --listen "${address[$1]}:7745" --allow hosta,hostb,hostm)
  [[ $1 != gpu* || $gpu != nested ]] || by=(env "CAUSEWAY_OUTER=$below" "LD_LIBRARY_PATH=$BUILD/lib" "$BUILD/nested/bin/causeway")
  stay_on "$1" "${by[@]}" "${what[@]}" --config "$tmp/$1.toml" -v >>"$logs/causewayd-$1.log" 2>&1 & daemon_pid[$1]=$!
  until_true 60 answers "$1"
}
answers() { [ -S "$tmp/$1/causewayd.sock" ] && cli "$1" ps >/dev/null 2>&1; }
kill_causewayd() { kill -9 "${daemon_pid[$1]}"; wait "${daemon_pid[$1]}" 2>/dev/null; daemon_pid[$1]=; }
# kill_tree HOST: device processes, and with them their workers, as if the machine had gone.
kill_tree() {
  local f p
  for f in "$tmp/$1"/*/*.json; do
    [ -f "$f" ] && p=$(json "$f" pid 2>/dev/null) && [[ $p =~ ^[1-9][0-9]+$ ]] && kill -9 $(tree "$p") 2>/dev/null
  done
}
tree() { local p; for p in "$@"; do echo "$p"; tree $(cat /proc/"$p"/task/*/children 2>/dev/null); done; }

run() { on hosta env CAUSEWAY_RUN_DIR="$tmp/hosta" "$CAUSEWAY" run --remote vm1 "$@"; }
create() { cli hosta create vm1 --remote "${1:-any}" --memory "${2:-512MiB}" "${@:3}" >"$tmp/said" 2>&1; } # [SERVER [MEMORY [ARGS...]]]
has_vgpu() { [ -n "$(vgpu hosta vm1 pid)" ] || create; }
said() { local rc=$?; tail -n 1 "$tmp/said" | cut -c 1-150; return $rc; }
gone() { [ -z "$(vgpu gpu1 $there pid)" ]; }
nothing_left() { gone && [ -z "$(ls "$tmp/hosta/vm1" "$tmp/gpu1/hosta" 2>/dev/null)" ]; }
renewed() { [ -n "$(vgpu hosta vm1 upstream state limits share)" ] && [ -z "$(vgpu hosta vm1 upstream error)" ]; }
# working: a program that computes in rounds, in the background; rounds: how many it has made.
begin() {
  run -- "$BUILD/tests/$variant/rounds" streams >"$tmp/rounds" 2>&1 & job=$!
  until_true 60 grep -q '^@round [2-9]' "$tmp/rounds"
}
rounds() { local n; n=$(sed -n 's/^@round \([0-9]*\) .*/\1/p' "$tmp/rounds" | tail -n 1); echo "${n:-0}"; }
beyond() { [ "$(rounds)" -gt "$1" ]; }
goes_on() { until_true 60 beyond "$(rounds)"; }
sessions() { vgpu "$1" "$2" status sessions | grep -c worker; }
failed_by() { until_true "$1" ended "$job"; }

# --- phases
# -------------------------------------------------------------------------------------------------------------

tests() { # LABEL ARGS...
  "$ROOT/scripts/run-tests.sh" --label "$1" --variants "$variant" --may-skip "cubemap greenctx managedpeers peer sparse mapped" "${@:2}" \
    $([ "$programs" = all ] || echo "$programs") >"$tmp/said" 2>&1
}

phase_programs() {
  cli hosta gpus --all >"$tmp/said" && grep -q "${address[gpu1]} .* ms .*Software GPU" "$tmp/said"; row "causeway gpus --all shows the server's" "$(keep grep -o '[0-9.]* ms' "$tmp/said")"
  create any; row "causeway create --remote any" "$(said)" || return
  [ "$(vgpu gpu1 $there spec limits memory)$(vgpu gpu1 $there spec memory)" = 536870912 ]; row "the server has it as a vGPU of its own" "$there"
  tests remote-run --runner "nsenter -t ${net_pid[hosta]} -n -- env CAUSEWAY_RUN_DIR=$tmp/hosta $CAUSEWAY run --remote vm1 --"; row "programs run there: $programs" "$(said)"
  on hosta python3 "$ROOT/scripts/lib/get.py" "${address[gpu1]}:7745" /v1/gpus >"$tmp/said" 2>/dev/null; [ $? = 1 ] && [ ! -s "$tmp/said" ]; row "who is no host is told nothing" ""
  grep -q 'hosta *vm1:gpu0' <<<"$(cli gpu1 ps)"; row "causeway ps of the server shows it" ""
  # Not through a pipe: grep leaves at the first match, and who still writes then fails.
  grep -q 'causeway_vgpu_server_info{host="hosta"' <<<"$(on gpu1 python3 "$ROOT/scripts/lib/get.py" "$tmp/gpu1/causewayd.sock" /metrics)"; row "so do its metrics" ""
}

phase_limits() {
  has_vgpu || { row "a vGPU on the server" "$(said)"; return; }
  ROUNDS_MIB=600 run -- "$BUILD/tests/$variant/rounds" idle >"$tmp/said" 2>&1
  grep -q cudaErrorMemoryAllocation "$tmp/said"; row "a program gets no more than the limit of 512 MiB" "$(said)"
  cli hosta limits vm1 --memory 1GiB >"$tmp/said" 2>&1 && [ "$(vgpu gpu1 $there spec memory)" = 1073741824 ]; row "causeway limits holds at the server" ""
  ! cli hosta limits vm1 --memory 3GiB >"$tmp/said" 2>&1 && grep -q "${address[gpu1]}.*do not fit" "$tmp/said"; row "more than there is is refused, by the server's name" ""
  ! cli hosta create vm2 --remote any --memory 3GiB >"$tmp/said" 2>&1 && grep -q 'MiB left' "$tmp/said"; row "so is a vGPU that finds no room" "$(said)"
  ! cli hosta create vm2 --remote gpu9 >"$tmp/said" 2>&1 && grep -q 'no GPU server "gpu9"' "$tmp/said"; row "and a server that is not configured" ""
  cli hosta create vm2 --remote any --memory 256MiB >/dev/null && cli gpu1 gpus drain soft >/dev/null && ! cli hosta create vm3 --remote any >"$tmp/said" 2>&1 && grep -q drained "$tmp/said"
  row "a server that is drained takes no other" ""
  cli gpu1 gpus resume soft >/dev/null && cli hosta delete vm2 >/dev/null && [ -z "$(vgpu gpu1 hosta/vm2:gpu0 pid)" ]; row "causeway delete ends the lease" ""
}

# other_connections: over how many others the server's workers have gone on.
other_connections() { grep -rhc 'goes on over another connection' "$tmp/gpu1/log" | awk '{n += $1} END {print n + 0}'; }
more_connections() { [ "$(other_connections)" -gt "$1" ]; }

phase_reset() {
  local h before
  has_vgpu && begin; row "a program computes" "" || return
  for h in hosta gpu1; do
    before=$(other_connections)
    if ! have ss || [ -n "$(on $h ss -K -t state established '( sport = :7745 or dport = :7745 )' 2>&1 >/dev/null)" ]; then
      say "this kernel or ss resets no connection: not tried"
      break
    fi
    until_true 60 more_connections "$before" && goes_on; row "connections are reset at $h: it goes on over another" "$(keep other_connections)"
  done
  end_rounds; until_true 60 grep -q '^@done [1-9][0-9]* 0 ' "$tmp/rounds"; row "it ends, all results right" "$(keep tail -n 1 "$tmp/rounds")"
  wait "$job" 2>/dev/null; job=
  until_true 60 renewed; row "the lease is renewed" ""
}

phase_restart() {
  has_vgpu && begin; row "a program computes" "" || return
  kill_causewayd hosta && start_causewayd hosta && goes_on && until_true 60 renewed; row "the host's causewayd is killed and started: it goes on, renewed" "epoch $(keep json "$tmp/hosta/vm1/gpu0.lease" epoch)"
  kill_causewayd gpu1 && start_causewayd gpu1 && goes_on && until_true 60 renewed; row "the server's causewayd is killed and started: it goes on, renewed" ""
  run -- "$BUILD/tests/$variant/vectoradd" >"$tmp/said" 2>&1; row "another program begins" ""
  end_rounds; until_true 60 grep -q '^@done [1-9][0-9]* 0 ' "$tmp/rounds"; row "the first one ends, all results right" "$(keep tail -n 1 "$tmp/rounds")"
  wait "$job" 2>/dev/null; job=
}
# end_rounds has the program of `run` come to its end.
end_rounds() { local p; for p in $(tree "$job"); do [ "$(cat "/proc/$p/comm" 2>/dev/null)" != rounds ] || kill -TERM "$p"; done; }

# stranger NAME: a host of that name with what is in $tmp/NAME-pki asks for the server's GPUs; the
# log says why it is refused.
stranger() { # NAME WHY
  local since; since=$(wc -l <"$logs/causewayd-gpu1.log")
  sed "/^listen = /d; s#$tmp/hosta/pki#$tmp/$1-pki#; s#$tmp/hosta#$tmp/$1#" "$tmp/hosta.toml" >"$tmp/$1.toml"
  stay_on hosta "$CAUSEWAY" daemon --config "$tmp/$1.toml" >>"$logs/causewayd-$1.log" 2>&1 & local pid=$!
  until_true 60 [ -S "$tmp/$1/causewayd.sock" ]
  on hosta "$CAUSEWAY" gpus --all --json --run-dir "$tmp/$1" >"$tmp/asked" 2>&1
  json "$tmp/asked" servers 0 error >"$tmp/said"
  end $pid
  [ ! -f "$tmp/$1/scheduler.json" ] || kill "$(json "$tmp/$1/scheduler.json" pid)" 2>/dev/null
  grep -q . "$tmp/said" && [ -z "$(json "$tmp/asked" servers 0 gpus)" ] && grep -q "$2" <<<"$(tail -n +$((since + 1)) "$logs/causewayd-gpu1.log")"
}
pki() { # NAME CA-FOLDER: its files, for stranger
  mkdir -p "$tmp/$1-pki" && cp "$2/$1.pem" "$tmp/$1-pki/host.pem" && cp "$2/$1-key.pem" "$tmp/$1-pki/host-key.pem" && cp "$tmp/pki/ca.pem" "$tmp/$1-pki/ca.pem"
}

phase_refuse() {
  has_vgpu
  ca issue hostc >/dev/null && pki hostc "$tmp/pki"; stranger hostc 'remote.allow does not name the host hostc'; row "a host that remote.allow does not name is refused" "$(said)"
  ca issue hostb >/dev/null && pki hostb "$tmp/pki" && ca revoke hostb >/dev/null && cp "$tmp/pki/revoked" "$tmp/gpu1/pki/"; stranger hostb 'the certificate is revoked: hostb'; row "one whose certificate is revoked" "$(said)"
  ca issue --days -1 hostd >/dev/null && pki hostd "$tmp/pki"; stranger hostd .; grep -q 'has expired' "$tmp/said"; row "one whose certificate has expired does not even call" "$(said)"
  "$CAUSEWAY" ca list --dir "$tmp/pki" >"$tmp/said" && grep -q 'hostb .*revoked' "$tmp/said" && grep -q 'hostd .*expired' "$tmp/said"; row "causeway ca list tells of both" ""
  renewed; row "hosta's lease is renewed all the while" ""
}
ca() { "$CAUSEWAY" ca "$1" --dir "$tmp/pki" "${@:2}"; }

phase_lost() {
  has_vgpu && begin; row "a program computes" "" || return
  kill_causewayd gpu1 && kill_tree gpu1; failed_by 60; row "the server is killed: the program gets a device error" "$(keep grep -am 1 -iE 'error|fail' "$tmp/rounds" | cut -c 1-100)"
  wait "$job" 2>/dev/null; job=
  until_true 60 eval '[ -n "$(vgpu hosta vm1 upstream error)" ]'; row "causeway inspect says so" "$(keep vgpu hosta vm1 upstream error | cut -c 1-120)"
  ! run -- "$BUILD/tests/$variant/vectoradd" >"$tmp/said" 2>&1 && grep -q "${address[gpu1]}" "$tmp/said"; row "another program is refused, with the server's name" "$(said)"
  start_causewayd gpu1; until_true 60 renewed; row "its server is back: the vGPU has another lease, and nobody did anything" "$(keep vgpu hosta vm1 upstream error)"
  run -- "$BUILD/tests/$variant/vectoradd" >"$tmp/said" 2>&1; row "a program computes again" ""
  cli hosta delete vm1 >"$tmp/said" 2>&1; row "the vGPU is deleted" ""
  until_true 60 nothing_left; row "nothing is left on either side" "$(keep ls "$tmp/hosta/vm1" "$tmp/gpu1/hosta" 2>/dev/null | tr '\n' ' ')"
}

phase_lapse() {
  create any; row "a vGPU on the server" "" || return
  begin; row "a program computes" "" || return
  local since; since=$(ms)
  kill_causewayd hosta; failed_by 120; lap; row "the host's causewayd is killed for good: the lease ends, and the program with it" "after $((took / 1000)) s"
  wait "$job" 2>/dev/null; job=
  until_true 60 gone; row "the server has all of it back" ""
  start_causewayd hosta; until_true 60 renewed; row "the host's next causewayd has another lease" "$(keep vgpu hosta vm1 upstream error)"
  cli gpu1 delete "$there" >"$tmp/said" 2>&1 && until_true 60 eval '[ "$(vgpu hosta vm1 upstream lost)" = True ]'; row "somebody ends that one at the server: it stays lost" "$(keep vgpu hosta vm1 upstream error)"
  cli hosta delete vm1 >"$tmp/said" 2>&1; row "the vGPU is deleted" ""
}

# frozen SIGNAL: the host's causewayd, its device process and its programs.
frozen() { kill "$1" $(tree "${daemon_pid[hosta]}" "$(json "$tmp/hosta/vm1/gpu0.json" pid)" "$job") 2>/dev/null; }
descriptors() { ls "/proc/${daemon_pid[gpu1]}/fd" | wc -l; }
# as_before N: so many descriptors as then, and the host's control connection, which may be idle for
# a minute; no device process.
as_before() { [ "$(descriptors)" -le $(($1 + 1)) ] && [ -z "$(pgrep -P "${daemon_pid[gpu1]}" -f 'causeway device')" ]; }

# A host that hangs for longer than a lease lasts, and wakes up.
phase_freeze() {
  local before pid; before=$(descriptors)
  create any; row "a vGPU on the server" "" || return
  begin; row "a program computes" "" || return
  pid=$(vgpu gpu1 $there pid)
  [ "$(tree "$pid" | wc -l)" -gt 1 ]; row "it has a worker on the server" ""
  local since; since=$(ms)
  frozen -STOP; until_true 120 gone; lap; row "the host stands still: the lease ends" "after $((took / 1000)) s"
  ended "$pid" && until_true 60 as_before "$before"; row "no process and no descriptor of it is left on the server" "$(keep descriptors) descriptors, $before before"
  [ "$(cli gpu1 gpus --json | json - 0 promised)" = 0 ]; row "its memory is promised to nobody" ""
  frozen -CONT; failed_by 60; row "the host goes on: its program gets a device error" ""
  wait "$job" 2>/dev/null; job=
  until_true 60 renewed; row "its causewayd has another lease" "$(keep vgpu hosta vm1 upstream error)"
  cli hosta delete vm1 >"$tmp/said" 2>&1; row "the vGPU is deleted" ""
}

# workers: the processes of the vGPU's sessions at the server. relays: what `causeway run` has
# beside each of the programs $busy.
workers() { cli gpu1 inspect $there --json 2>/dev/null | python3 -c 'import json, sys; print(*[s["worker"] for s in json.load(sys.stdin)[0]["status"]["sessions"] if s.get("worker")])'; }
relays() { local p; for p in $(tree "${busy[@]}"); do [[ " ${busy[*]} " = *" $p "* ]] || [ "$(cat "/proc/$p/comm" 2>/dev/null)" != exe ] || echo "$p"; done; }
# each PID...: what one of these takes on average, KiB of memory as far as it is no other process's.
# spent: the ms of CPU time of them all.
each() { local p; for p in "$@"; do cat "/proc/$p/smaps_rollup"; done 2>/dev/null | awk '/^Pss:/ {s += $2; n++} END {print n ? int(s / n) : ""}'; }
spent() { local p; for p in "$@"; do cat /proc/"$p"/task/*/schedstat; done 2>/dev/null | awk '{t += $1} END {printf "%d\n", t / 1e6}'; }
so_many() { [ "$(workers | wc -w)" = "$1" ]; }

# Many programs of one vGPU, each with a relay of its own.
phase_many() {
  local n=${MANY:-200} i since busy=() here=() far=() before after; before=$(descriptors)
  mkdir -p "$BUILD/life"; build_life "$BUILD/life/life" life gpu
  cli hosta create vm1 --remote any --memory 2GiB --sessions "$n" --user-sessions "$n" >"$tmp/said" 2>&1; row "a vGPU on the server, for $n programs" "$(said)" || return
  since=$(ms)
  for ((i = 0; i < n; i++)); do stay_on hosta env CAUSEWAY_RUN_DIR="$tmp/hosta" "$CAUSEWAY" run --remote vm1 -- "$BUILD/life/life" idle <&9 >"$tmp/many.$i" 2>&1 & busy+=("$!"); done
  ready_all() { [ "$(cat "$tmp"/many.* | grep -c '^@ready')" = "$n" ]; }
  until_true 300 ready_all; lap; row "$n programs at once have each opened a session and computed" "after $took ms"
  here=($(relays)) far=($(workers) "$(vgpu gpu1 $there pid)")
  [ "${#here[@]}" = "$n" ] && [ "${#far[@]}" = $((n + 1)) ]; row "so many relays here, and workers there" "${#here[@]}, ${#far[@]}"
  i=$(each "${here[@]}"); at_most "$i" $((16 << 10)); row "what a relay takes of the host's memory" "$i KiB"
  i=$(each "${far[@]}"); at_most "$i" $((24 << 10)); row "and a worker of the server's" "$i KiB, with the software GPU"
  i=$(spent "${here[@]}" "${busy[@]}" "${far[@]}"); nap 10; i=$(($(spent "${here[@]}" "${busy[@]}" "${far[@]}") - i))
  at_most "$i" 5000; row "10 s in which they rest" "$i ms of CPU, of all of both"
  ! run -- "$BUILD/tests/$variant/vectoradd" >"$tmp/said" 2>&1 && grep -q 'as many CUDA processes as it may' "$tmp/said"; row "another is refused, and told of the limit" "$(said)"
  since=$(ms); kill "${busy[@]}" 2>/dev/null; wait "${busy[@]}" 2>/dev/null
  until_true 60 so_many 0 && [ -z "$(relays)" ]; lap; row "all end at once: no relay and no worker is left" "after $took ms"
  run -- "$BUILD/tests/$variant/vectoradd" >"$tmp/said" 2>&1; row "another computes then" ""
  cli hosta delete vm1 >"$tmp/said" 2>&1; row "the vGPU is deleted" ""
  until_true 60 gone && after=$(descriptors) && [ "$after" -le $((before + 1)) ]; row "the server's causewayd has the descriptors of before" "$before -> $after"
}

phase_vm() {
  create any 1GiB; row "a vGPU on the server" "" || return
  tests remote-vm --vm "$kernel" --socket "$tmp/hosta/vm1/gpu0.sock"; row "unmodified programs in a VM: $programs" "$(said)"
  cli hosta delete vm1 >"$tmp/said" 2>&1; row "the vGPU is deleted" ""
}

# agent_vm boots a VM with the vGPU, which does what it is told.
agent_vm() {
  . "$ROOT/scripts/lib/rounds.sh"
  console_log=$logs/console.log
  rm -rf "$tmp/vm"; mkdir "$tmp/vm" # a VM of another phase had it
  needs_vm "$kernel"
  if [ -n "$image" ]; then cp "$image" "$tmp/initrd"; else rounds_image "$tmp/initrd"; fi
  guest_channel "$tmp/vm"
  "$qemu" -accel tcg,thread=multi -cpu "$tcg_cpu" -smp 2 -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on -machine q35,memory-backend=mem -nodefaults -display none "${channel[@]}" \
    -kernel "$BUILD/kernels/$kernel/vmlinuz" -initrd "$tmp/initrd" -append "$guest_append causeway.tag=gpu0" \
    -chardev "socket,id=gpu0,path=$tmp/hosta/vm1/gpu0.sock" -device vhost-user-fs-pci,chardev=gpu0,tag=gpu0,queue-size=1024 </dev/null >>"$logs/qemu.log" 2>&1 & qemu_pid=$!
  guest_up
}
computes() { guest ': >/tmp/r' && send '&./rounds streams >/tmp/r 2>&1'; } # a child opens its output when it runs: what the one before wrote must be gone by then
guest_goes_on() { guest 'n=$(grep -c ^@round /tmp/r); for i in $(seq 300); do [ "$(grep -c ^@round /tmp/r)" -le $((n + 1)) ] || break; usleep 100000; done; [ "$(grep -c ^@round /tmp/r)" -gt $((n + 1)) ]'; }
movable() { [ -n "$(vgpu hosta vm1 status sessions 0 worker)" ] && [ -z "$(vgpu hosta vm1 status sessions 0 unmovable)" ]; }

phase_vmlost() {
  create any 1GiB; row "a vGPU on the server" "" || return
  agent_vm; row "a VM with it" "" || return
  computes; guest_goes_on; row "a program computes in it" "" || return
  until_true 60 movable; row "causeway inspect knows of nothing that keeps the VM here" ""
  kill_causewayd hosta && start_causewayd hosta && guest_goes_on; row "the host's causewayd is killed and started: it goes on" ""
  kill_causewayd gpu1 && start_causewayd gpu1 && guest_goes_on; row "the server's causewayd is killed and started: it goes on" ""
  kill_causewayd gpu1 && kill_tree gpu1
  guest 'for i in $(seq 900); do kill -0 $! || break; usleep 100000; done 2>/dev/null; wait $!; [ $? != 0 ] && grep -v ^@ /tmp/r | head -n 1 | sed "s/^/@why /"; ! kill -0 $! 2>/dev/null'; row "the server is killed: the program ends" ""
  guest '! ./rounds streams >/tmp/r2 2>&1'; row "another is refused" ""
  guest true; row "the VM lives on" ""
  start_causewayd gpu1; until_true 60 renewed && computes && guest_goes_on; row "the server is back: another computes in the same VM" "$(keep vgpu hosta vm1 upstream error)"
  kill -9 "$qemu_pid"; wait "$qemu_pid" 2>/dev/null; qemu_pid=
  cli hosta delete vm1 >"$tmp/said" 2>&1; row "the vGPU is deleted" "$(said)"
  calm_kernels
}

prepare() {
  [ -n "$image" ] || "$ROOT/scripts/build-tests.sh" --only "$variant" $([ "$programs" = all ] || echo "$programs vectoradd rounds") >"$tmp/said" 2>&1 || { cat "$tmp/said"; die "the CUDA programs do not build"; }
  networks
  ca init >/dev/null && ca issue gpu1 "${address[gpu1]}" >/dev/null && ca issue hosta "${address[hosta]}" >/dev/null || die "no certificates"
}
prepare
[ "$gpu" != nested ] || lower_gpu
for h in $hosts; do config "$h" && start_causewayd "$h" || { tail -n 5 "$logs/causewayd-$h.log"; die "no causewayd of $h"; }; done
row "two hosts: networks, certificates, a GPU server and a causewayd" "$SECONDS s"
run_phases "${phases[@]}"
echo "remote: $passed passed, $failed failed in $SECONDS s"
[ $failed = 0 ]
