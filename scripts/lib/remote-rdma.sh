# A VM that moves while its programs' bytes go to their GPU server by RDMA: the phase moverdma of
# remote.sh, whose functions and those of remote-move.sh it uses. Processes of one host are joined
# by a libibverbs of the tests (scripts/rdma/onehost/verbs.c says what that is).

onehost= # the folder of that library, once hosts are to have it
rdma_of() { echo "one_$1"; } # HOST: its adapter
# shellcheck disable=SC2154 # remote.sh's
fabric_counts() { od -An -t u8 -N 48 -w48 "$tmp/fabric/fabric" | tr -s ' '; } # writes, their bytes, reads, their bytes, immediates, queue pairs
by_rdma_bytes() { fabric_counts | awk '{print $2 + $4}'; }

# adapter_of HOST ADDRESS...: mounts of its own, in which sysfs shows an adapter with these
# addresses: what else lies in /sys/class is there as before.
adapter_of() {
  local h=$1 dir=$tmp/class-$1 a gids=; shift
  for a; do gids+="$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${a//./ }) "; done
  mkdir -p "$dir"
  nsenter -t "${net_pid[$h]}" -n -- unshare --mount sh -c 'dir=$1 port=/sys/class/infiniband/$2/ports/1; shift 2
    mount --bind /sys/class "$dir" && mount -t tmpfs class /sys/class && for e in "$dir"/*; do ln -s "$e" "/sys/class/${e##*/}"; done
    rm -f /sys/class/infiniband; mkdir -p $port/gids $port/gid_attrs/types $port/pkeys
    echo "4: ACTIVE" >$port/state; echo Ethernet >$port/link_layer; echo 0x0 >$port/lid; echo 0xffff >$port/pkeys/0
    for g; do n=$(ls $port/gids | wc -l); echo $g >$port/gids/$n; echo "RoCE v2" >$port/gid_attrs/types/$n; done
    exec sleep infinity' sh "$dir" "$(rdma_of "$h")" $gids 9>&- & net_pid[$h.mounts]=$!
  until_true 10 in_mounts "$h" grep -qs 'RoCE v2' "/sys/class/infiniband/$(rdma_of "$h")/ports/1/gid_attrs/types/$(($# - 1))"
}
in_mounts() { nsenter --mount="/proc/${net_pid[$1.mounts]}/ns/mnt" -- "${@:2}" 9>&-; } # HOST COMMAND...

# rdma_config HOST: its vGPUs' processes have that library, and RDMA. Without a sandbox: nobody
# reads and writes a confined process's memory.
rdma_config() {
  [ -n "$onehost" ] || return 0
  sed -i "s#^\[devices\]#[isolation]\nsandbox = 'off'\n&\nenvironment = { ONEHOST = '$tmp/fabric', LD_LIBRARY_PATH = '$onehost' }#; \$a rdma = 'auto'" "$tmp/$1.toml"
}

# with_rdma: hosta and gpu1 begin anew, with adapters; hostm will have one.
with_rdma() {
  local h
  mkdir -p "$tmp/fabric" "$BUILD/rdma/onehost"
  cc -shared -fPIC -O2 -std=gnu11 -Wall -Wextra -Werror -I "$ROOT/remote/verbs/ibv" -o "$BUILD/rdma/onehost/libibverbs.so.1" "$ROOT"/scripts/rdma/onehost/*.c -lpthread || return
  onehost=$BUILD/rdma/onehost
  for h in hosta gpu1; do
    end "${daemon_pid[$h]}"; daemon_pid[$h]=
    adapter_of "$h" "${address[$h]}" && config "$h" && start_causewayd "$h" || return
  done
}

# carriers HOST VGPU: what the bytes of its sessions go over, each once.
carriers() { cli "$1" inspect "$2" --json 2>/dev/null | python3 -c 'import json, sys; print(*sorted({s.get("carrier", "nothing") for s in json.load(sys.stdin)[0]["status"]["sessions"] if s.get("worker")}), sep="; ")'; }
all_by() { [ "$(carriers "$1" "$2" | grep -c "^RoCE v2 by $(rdma_of "$1") port 1, MTU 1024, copies one-sided\(, GPU memory [^;]*\)\?$")" = 1 ]; } # HOST VGPU
# goes_by_rdma: the programs make rounds, all right, and bytes go by RDMA meanwhile.
goes_by_rdma() {
  local before; before=$(by_rdma_bytes)
  programs on && more=$(($(by_rdma_bytes) - before)) && [ "$more" -gt 100000 ]
}

phase_moverdma() {
  local modes=${MODES:-"streams threads waits times"} worker more
  [ -z "$here" ] || die "moverdma needs namespaces of hosts' own, and so no --here"
  [ "$gpu" = soft ] || die "moverdma is for the software GPU"
  . "$ROOT/scripts/lib/rounds.sh"
  console_log=$logs/console.log
  rm -rf "$tmp/vm"; mkdir "$tmp/vm" # a VM of another phase had it
  needs_vm "$kernel"
  rounds_image "$tmp/initrd"; guest_channel "$tmp/vm"
  with_rdma; row "hosta and gpu1 have an adapter each, which a library of the tests joins" "$(keep rdma_of hosta), $(keep rdma_of gpu1)" || return
  (cd "$ROOT" && go test -c -o "$tmp/ibv.test" ./remote/verbs/ibv) && tests_of_ibv; row "the tests of libibverbs pass over it" "$(keep grep -c '^--- PASS' "$tmp/ibv.log") tests" || keep tail -n 30 "$tmp/ibv.log"
  second_host && create any 512MiB && cli hostm create vm1 --remote any --memory 512MiB >"$tmp/said" 2>&1; row "a second host, and a vGPU on the server for each" "$(said)" || return
  move_vm hosta && qemu_pid=$started && guest_up; row "a VM at hosta" "" || return
  programs start; row "programs run in it: $modes" "" || return
  worker=$(vgpu gpu1 $there status sessions 0 worker)
  until_true 20 all_by hosta vm1 && until_true 20 all_by gpu1 $there; row "causeway inspect at hosta and gpu1: by RDMA" "$(keep carriers hosta vm1) | $(keep carriers gpu1 $there)" || return
  goes_by_rdma; row "their bytes go by it" "$more bytes in two rounds and more" || return

  moves_by_rdma hosta hostm "" || return
  [ "$(vgpu gpu1 $there status sessions 0 worker)" = "$worker" ]; row "the worker at the server is the same" "$worker"
  cli hosta delete vm1 >"$tmp/said" 2>&1; goes_by_rdma; row "hosta's vGPU is deleted: the programs go on by RDMA" "$more bytes"
  create any 512MiB >/dev/null; moves_by_rdma hostm hosta " back" || return

  programs end; row "the programs end, all results right" "$rounds"
  send 'sed -n "s/^@done //p" /tmp/rounds.* | sort -n -k 3 | tail -n 1 | sed "s/^/@longest /"'
  await '@longest *' 60; row "the longest that a program stood, of all that happened" "${line##* } ms"
  kill -9 "$qemu_pid"; wait "$qemu_pid" 2>/dev/null; qemu_pid=
  cli hosta delete vm1 >"$tmp/said" 2>&1; cli hostm delete vm1 >"$tmp/said" 2>&1; until_true 30 gone; row "the vGPUs are deleted: nothing is left at the server" ""
  calm_kernels
}

# moves_by_rdma FROM TO WORD: all that a move is to leave as it was, and by which adapter.
moves_by_rdma() {
  local pairs; pairs=$(fabric_counts | awk '{print $6}')
  moves "$1" "$2"; row "the VM moves$3 to $2" "${downtime:+QEMU stands $downtime ms}" || { keep tail -n 5 "$tmp/said"; return; }
  until_true 20 all_by "$2" vm1 && until_true 20 all_by gpu1 $there; row "causeway inspect at $2 and gpu1: by RDMA, $2's adapter" "$(keep carriers "$2" vm1) | $(keep carriers gpu1 $there)" || return
  goes_by_rdma; row "the programs go on by it, all results right" "$more bytes, $(($(keep fabric_counts | awk '{print $6}') - pairs)) queue pairs" || return
  until_true 30 server_has "$2"; row "the lease is $2's" ""
}

# tests_of_ibv: but for the one that takes a link down, which is a VM's.
tests_of_ibv() {
  in_mounts gpu1 nsenter --net="/proc/${net_pid[gpu1]}/ns/net" -- env -C "$tmp" ONEHOST="$tmp/fabric" LD_LIBRARY_PATH="$onehost" RDMA_DEVICE="$(rdma_of gpu1)" RDMA_ADDRESS="${address[gpu1]}" \
    "$tmp/ibv.test" -test.v -test.skip '^TestLinkDown$' -test.timeout 300s >"$tmp/ibv.log" 2>&1
}
