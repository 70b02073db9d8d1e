# A VM with a vGPU at a GPU server that moves between two hosts: the phase move of remote.sh, whose
# functions it uses.

# second_host: hostm is in hosta's network, with an address of its own.
second_host() {
  [ -z "${daemon_pid[hostm]:-}" ] || return 0
  net_pid[hostm]=${net_pid[hosta]}
  on hosta ip address add "${address[hostm]}/24" dev wire && { [ -z "$onehost" ] || adapter_of hostm "${address[hostm]}" "${address[hosta]}"; } && ca issue hostm "${address[hostm]}" >/dev/null && config hostm && start_causewayd hostm
}
# move_vm HOST [ARGS...]: a QEMU there, whose process is in started.
move_vm() {
  local h=$1; shift
  rm -f "$tmp/$h.monitor" "$tmp/$h.qmp"
  (stay_on "$h" "$qemu" -accel tcg,thread=multi -cpu "$tcg_cpu" -smp 2 -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on -machine q35,memory-backend=mem -nodefaults -display none "${channel[@]}" \
    -kernel "$BUILD/kernels/$kernel/vmlinuz" -initrd "$tmp/initrd" -append "$guest_append causeway.tag=gpu0" \
    -monitor "unix:$tmp/$h.monitor,server=on,wait=off" -qmp "unix:$tmp/$h.qmp,server=on,wait=off" \
    -chardev "socket,id=gpu0,path=$tmp/$h/vm1/gpu0.sock" -device vhost-user-fs-pci,chardev=gpu0,tag=gpu0,queue-size=1024 "$@") </dev/null >>"$logs/qemu-$h.log" 2>&1 3>&- 4>&- & started=$!
  until_true 10 [ -S "$tmp/$h.monitor" ]
}
hmp() { timeout 60 python3 "$ROOT/scripts/lib/hmp.py" "$tmp/$1.monitor" "$2"; }
vm_runs() { grep -q 'VM status: running' <<<"$(hmp "$1" 'info status')"; }
# migrates FROM TO [ARGS...]: causeway migrate, to a QEMU that waits there.
migrates() {
  local from=$1 to=$2; shift 2
  on "$from" timeout "${patience:-400}" "$CAUSEWAY" migrate vm1 "${address[$to]}" --run-dir "$tmp/$from" --config "$tmp/$from.toml" --qmp "$tmp/$from.qmp" --uri "unix:$tmp/incoming" "$@" >"$tmp/said" 2>&1
}
awaits() { rm -f "$tmp/incoming"; move_vm "$1" -incoming "unix:$tmp/incoming" && next_pid=$started && hmp "$1" 'migrate_set_capability return-path on' >/dev/null && until_true 10 [ -S "$tmp/incoming" ]; }
end_next() { [ -z "$next_pid" ] || { kill -9 "$next_pid"; wait "$next_pid"; next_pid=; } 2>/dev/null; }
server_has() { [ "$(vgpu gpu1 $there spec lease)" = "$1" ]; }
# moves FROM TO: there, and what was left is ended.
moves() {
  downtime=
  awaits "$2" && migrates "$1" "$2" --bandwidth 4GiB || { end_next; return 1; } # QEMU keeps the last that it was told
  downtime=$(hmp "$1" 'info migrate' | tr -d '\r' | sed -n 's/^[dD]owntime[^:]*: *\([0-9]*\).*/\1/p' | head -n 1)
  kill -9 "$qemu_pid"; wait "$qemu_pid" 2>/dev/null
  qemu_pid=$next_pid next_pid=
  until_true 20 vm_runs "$2"
}
# peers_of HOST [ADDRESS...]: whom its causewayd asks for VMs that leave.
peers_of() {
  local list; list=$(printf "'%s'," "${@:2}"); [ $# -gt 1 ] || list=
  sed -i "/^peers = /d; s/^\[migration\]$/&\npeers = [${list%,}]/" "$tmp/$1.toml" && kill -HUP "${daemon_pid[$1]}"
}
lease_of() { json "$tmp/$1/vm1/gpu0.lease" id; }
handed() { [ "$(lease_of hosta)" = "$(lease_of "$1")" ]; }
stays_own() { ! handed hostm && [ -n "$(vgpu hostm vm1 upstream state limits share)" ] && [ -z "$(vgpu hostm vm1 upstream error)" ]; }
migration_is() { hmp "$1" 'info migrate' | tr -d '\r' | grep -q "^Migration status: $2\|^Status: *$2"; }
migration_over() { migration_is "$1" completed || migration_is "$1" failed; }
# moves_alone FROM TO: by QEMU's monitor.
moves_alone() {
  awaits "$2" && hmp "$1" 'migrate_set_capability return-path on' >/dev/null && hmp "$1" 'migrate_set_parameter max-bandwidth 4G' >/dev/null && hmp "$1" "migrate -d unix:$tmp/incoming" >/dev/null
  until_true 60 migration_over "$1"
  if ! migration_is "$1" completed; then end_next; return 1; fi
  downtime=$(hmp "$1" 'info migrate' | tr -d '\r' | sed -n 's/^[dD]owntime[^:]*: *\([0-9]*\).*/\1/p' | head -n 1)
  kill -9 "$qemu_pid"; wait "$qemu_pid" 2>/dev/null
  qemu_pid=$next_pid next_pid=
  until_true 20 vm_runs "$2"
}
phase_move() {
  local modes="streams threads waits times" worker
  . "$ROOT/scripts/lib/rounds.sh"
  console_log=$logs/console.log
  rm -rf "$tmp/vm"; mkdir "$tmp/vm" # a VM of another phase had it
  needs_vm "$kernel"
  rounds_image "$tmp/initrd"; guest_channel "$tmp/vm"
  second_host && create any 512MiB && cli hostm create vm1 --remote any --memory 512MiB >"$tmp/said" 2>&1; row "a second host, and a vGPU on the server for each" "$(said)" || return
  move_vm hosta && qemu_pid=$started && guest_up; row "a VM at hosta" "" || return
  programs start; row "programs run in it: $modes" "" || return
  worker=$(vgpu gpu1 $there status sessions 0 worker)

  sed -i "s/^servers = .*/servers = []/" "$tmp/hostm.toml" && kill -HUP "${daemon_pid[hostm]}" && until_true 10 eval '! cli hostm gpus --all 2>/dev/null | grep -q "^${address[gpu1]}"'
  ! patience=30 migrates hosta hostm && grep -q 'GPU server' "$tmp/said"; row "a host that does not have the server is refused, before anything is sent" "$(said)"
  sed -i "s/^servers = .*/servers = ['${address[gpu1]}']/" "$tmp/hostm.toml" && kill -HUP "${daemon_pid[hostm]}" && until_true 10 eval 'cli hostm gpus --all | grep -q "^${address[gpu1]}"'
  programs on; row "the programs go on" ""

  awaits hostm && { patience=6 migrates hosta hostm --bandwidth 1MiB; [ $? = 124 ] || [ $? = 1 ]; }; row "called off while the VM is sent" "$(said)"
  end_next
  programs on && server_has hosta; row "the programs go on, and the lease is hosta's" ""

  moves hosta hostm; row "the VM moves to hostm" "QEMU stands ${downtime:-?} ms" || return
  programs on; row "the programs go on, all results right" ""
  [ "$(vgpu gpu1 $there status sessions 0 worker)" = "$worker" ]; row "the worker at the server is the same" "$worker"
  until_true 30 server_has hostm; row "the lease is hostm's" ""
  cli hosta delete vm1 >"$tmp/said" 2>&1; programs on; row "hosta's vGPU is deleted: the programs go on" "$(said)"

  create any 512MiB >/dev/null; moves hostm hosta; row "the VM moves back" "QEMU stands ${downtime:-?} ms" || return
  programs on && until_true 30 server_has hosta; row "the programs go on, and the lease is hosta's again" ""
  peers_of hosta "${address[hostm]}"; peers_of hostm "${address[hosta]}"
  cli hostm delete vm1 >/dev/null 2>&1; cli hostm create vm1 --remote any --memory 512MiB >"$tmp/said" 2>&1; row "each host asks the other for VMs that leave" "$(said)" || return
  awaits hostm && hmp hosta 'migrate_set_parameter max-bandwidth 1M' >/dev/null && hmp hosta "migrate -d unix:$tmp/incoming" >/dev/null && until_true 20 handed hostm && hmp hosta migrate_cancel >/dev/null; row "a migration by QEMU's monitor: the lease goes ahead; it is called off" ""
  end_next
  programs on && until_true 30 stays_own && server_has hosta; row "the programs go on, the lease is hosta's, and hostm's vGPU has its own again" "$(keep vgpu hostm vm1 upstream error)"
  moves_alone hosta hostm; row "the VM moves to hostm, by QEMU's monitor alone" "QEMU stands ${downtime:-?} ms" || return
  programs on && until_true 30 server_has hostm; row "the programs go on, all results right, and the lease is hostm's" ""
  cli hosta delete vm1 >"$tmp/said" 2>&1; programs on; row "hosta's vGPU is deleted: the programs go on" "$(said)"
  peers_of hostm
  create any 512MiB >/dev/null; ! moves_alone hostm hosta && grep -q 'migration.peers' "$tmp/hostm/log/vm1/gpu0.log"; row "a host that may ask nobody gives nothing out, and says so" "$(keep grep -o 'names no host' "$tmp/hostm/log/vm1/gpu0.log" | head -n 1)"
  programs on; row "the programs go on" ""
  programs end; row "the programs end, all results right" "$rounds"
  kill -9 "$qemu_pid"; wait "$qemu_pid" 2>/dev/null; qemu_pid=
  cli hosta delete vm1 >"$tmp/said" 2>&1; cli hostm delete vm1 >"$tmp/said" 2>&1; until_true 30 gone; row "the vGPUs are deleted: nothing is left at the server" ""
  calm_kernels
}
