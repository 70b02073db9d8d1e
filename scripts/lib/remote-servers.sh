# A vGPU that moves between two GPU servers, with a VM's programs or without: the phases servers, serversvm and serverskilled of remote.sh, whose functions it uses.

# second_server: gpu2 is in gpu1's network, with an address of its own, and hosta has both.
second_server() {
  [ -z "${daemon_pid[gpu2]:-}" ] || return 0
  [ -n "$here" ] || { net_pid[gpu2]=${net_pid[gpu1]}; on gpu1 ip address add "${address[gpu2]}/24" dev wire; } || return
  ca issue gpu2 "${address[gpu2]}" >/dev/null && config gpu2 && start_causewayd gpu2 &&
    servers_of hosta "${address[gpu1]}" "${address[gpu2]}" "$again" && until_true 10 shows "${address[gpu2]}"
}
again= # gpu1 by another name
below= # how the workers of nested servers reach their GPU
# lower_gpu: the software GPU whose programs the workers of nested servers are.
lower_gpu() {
  [ -x "$BUILD/nested/bin/causeway" ] || { mkdir -p "$BUILD/nested/bin" && ln -sfn ../lib "$BUILD/nested/lib" && (cd "$ROOT" && go build -tags nested -trimpath -o "$BUILD/nested/bin/causeway" ./host/causeway); } || die "the nested build fails"
  "$CAUSEWAY" run --gpu soft -- sh -c 'echo "$CAUSEWAY" >"$0" && exec sleep infinity' "$tmp/below" 9>&- & outer=$!
  until_true 20 [ -s "$tmp/below" ] || die "no GPU for the nested ones"
  below=$(cat "$tmp/below")
}
servers_of() { # HOST SERVER...
  local list; list=$(printf "'%s'," "${@:2}")
  sed -i "s/^servers = .*/servers = [${list%,}]/" "$tmp/$1.toml" && kill -HUP "${daemon_pid[$1]}"
}
shows() { grep -qF "$1 " <<<"$(cli hosta gpus --all 2>/dev/null)"; }
promised() { cli "$1" gpus --json 2>/dev/null | python3 -c 'import json, sys; print(sum(g["promised"] for g in json.load(sys.stdin)))' 2>/dev/null; }
counterpart() { if [ "$1" = gpu1 ]; then echo gpu2; else echo gpu1; fi; }

# is_at SERVER: the vGPU is there, by causeway inspect too, its lease is renewed, and nothing of it is at the other one.
is_at() {
  local at=$1 off; off=$(counterpart "$1")
  at_now="$(vgpu hosta vm1 upstream server), $(promised "$at") bytes promised at $at, $(promised "$off") at $off, $(sessions_of "$at") and $(sessions_of "$off") programs"
  [ "$at_now" = "${address[$at]}, $vgpu_memory bytes promised at $at, 0 at $off, $in_vm and 0 programs" ] && [ "$(vgpu hosta vm1 spec remote)" = "${address[$at]}" ] &&
    [ -z "$(vgpu "$off" $there pid)" ] && [ -z "$(vgpu hosta vm1 status next)" ] && [ "$(lease_of hosta)" = "$(vgpu hosta vm1 status lease)" ] && renewed
}
sessions_of() { cli "$1" inspect $there --json 2>/dev/null | python3 -c 'import json, sys; print(len(json.load(sys.stdin)[0]["status"].get("sessions") or []))' 2>/dev/null || echo 0; }

# to SERVER: causeway move. under_way: programs are on their way.
to() { cli hosta move vm1 --remote "${2:-${address[$1]}}" >"$tmp/said" 2>&1; }
under_way() { [ -n "$(vgpu hosta vm1 status next)" ]; }
begin_to() { cli hosta move vm1 --remote "${address[$1]}" >"$tmp/said" 2>&1 & job=$!; }
# refused_to WHY [NAME]: the move is refused so, the programs go on at gpu1, and nothing is at gpu2.
refused_to() { ! to gpu2 "${2:-}" && grep -q "$1" "$tmp/said" && is_at gpu1; }

servers_room() {
  cli hosta create vm2 --remote "${address[gpu2]}" --memory 1792MiB >/dev/null && ! to gpu2 && grep -q 'do not fit' "$tmp/said"; row "to one without room" "$(said)"
  cli hosta delete vm2 >/dev/null && until_true 20 is_at gpu1; row "the vGPU is at gpu1 alone" "$at_now"
}

servers_refused() {
  refused_to 'no GPU server "gpu9"' gpu9; row "to a server that is not configured: refused" "$(said)"
  refused_to 'already' "${address[gpu1]}"; row "to the one where it is" "$(said)"
  refused_to 'by another name' "$again"; row "to that one by another name" "$(said)"
  cli gpu2 gpus drain "${sel#*,}" >/dev/null; refused_to drained; row "to one that is drained" "$(said)"
  cli gpu2 gpus resume "${sel#*,}" >/dev/null
  [ "$gpu" != soft ] || servers_room
  begin && ! to gpu2 && grep -q 'under `causeway run --remote` use the lease' "$tmp/said"; row "beside a program of causeway run --remote" "$(said)"
  end_rounds; wait "$job"; row "which ends, all results right" "$(keep tail -n 1 "$tmp/rounds")"; job=
  [ -z "$modes" ] || programs on; row "what the vGPU had has gone on" ""
}

# servers_move SERVER: there, with the programs.
servers_move() {
  local since; since=$(ms)
  to "$1"; lap; row "the programs move to $1" "$(said), $took ms with all of it" || return
  until_true 20 is_at "$1"; row "they are there alone" "$at_now" || return
  programs on && computes && guest_goes_on && guest 'kill $! && wait $!; grep -q "^@done [1-9][0-9]* 0 " /tmp/r'; row "they go on, all results right, and another computes" ""
}

# holds SERVER: one of its workers stands, so that programs that are to leave it are on their way until it goes on. goes_free: it does.
holds() {
  local pid; pid=$(vgpu "$1" $there status sessions 0 worker)
  [ -n "$pid" ] && kill -STOP "$pid" && held=$pid
}
goes_free() { local pid=$held; held=; kill -CONT "$pid"; }
at_one() {
  for where in gpu1 gpu2; do is_at $where && return; done
  return 1
}
# moves_over: whoever asked has heard of it; moved: it was one.
moves_over() { wait "$job" 2>/dev/null; moved=$?; job=; }

# Who asks, hosta's causewayd, is killed: while the programs are on their way, and at other times.
servers_asker_killed() {
  local where=gpu1 from
  at_one; from=$where
  holds "$from" && begin_to "$(counterpart "$from")" && until_true 20 under_way && kill_causewayd hosta && goes_free && moves_over && start_causewayd hosta
  until_true 60 at_one; row "hosta's causewayd is killed while they are on their way, and started: they are at one server" "$at_now" || return
  programs on; row "they go on, all results right" "at $where" || return
  servers_killed_later
}
servers_killed_later() {
  local where delay
  at_one || return
  for delay in ${DELAYS:-0.2 0.5 1 1.5}; do
    begin_to "$(counterpart "$where")"; nap "$delay"
    kill_causewayd hosta; moves_over; start_causewayd hosta
    until_true 60 at_one; row "killed $delay s after it was asked, and started: at one server" "$at_now" || return
    [ -z "$modes" ] || programs on; row "all goes on there" "at $where" || return
  done
}

# The server where they are to go is killed in the middle.
servers_target_killed() {
  local where=gpu1 from other
  at_one; from=$where other=$(counterpart "$where")
  holds "$from" && begin_to "$other" && until_true 20 under_way && kill_causewayd "$other" && { kill_tree "$other"; goes_free; }; row "$other is killed while they are on their way there" "" || return
  moves_over; [ $moved != 0 ] && [ "$(vgpu hosta vm1 upstream server)" = "${address[$from]}" ] && programs on; row "they go on at $from, all results right" "$(said)" || return
  start_causewayd "$other" && until_true 60 is_at "$from"; row "$other is back: they are at $from alone" "$at_now"
}

# servers_end: the programs, the VM and the vGPU.
servers_end() {
  local longest=
  programs end; row "the programs end, all results right" "$rounds"
  send 'echo @longest $(for m in '"$modes"'; do sed -n "s/^@done [0-9]* 0 /$m /p" /tmp/rounds.$m; done)' && await '@longest *' && longest=${line#@longest } && await "@end $sent *"; row "the longest round of each, in ms" "$longest"
  kill -9 "$qemu_pid"; wait "$qemu_pid" 2>/dev/null; qemu_pid=
  cli hosta delete vm1 >"$tmp/said" 2>&1; row "the vGPU is deleted" "$(said)"
  servers_nothing
  calm_kernels
}

# servers_nothing: of a vGPU that was deleted nothing is left on any host.
servers_nothing() {
  local h left=
  for h in gpu1 gpu2; do left+="$(promised $h) bytes at $h, $(ls "$tmp/$h/hosta" 2>/dev/null | wc -l) files; "; done
  [ "$left" = '0 bytes at gpu1, 0 files; 0 bytes at gpu2, 0 files; ' ] && [ -z "$(ls "$tmp/hosta/vm1" 2>/dev/null)" ]; row "nothing is left at either server, nor at hosta" "$left"
  for h in hosta gpu1 gpu2; do [ -z "$(pgrep -P "${daemon_pid[$h]}" -f 'causeway (device|worker)')" ] || left+="$h: $(pgrep -P "${daemon_pid[$h]}" -fa 'causeway')"; done
  [[ $left != *causeway* ]]; row "no process of it either" "$left"
}

# servers_two: two servers, and a vGPU at gpu1, for a VM that runs $modes.
servers_two() {
  again="[::ffff:${address[gpu1]}]:7745"
  sel=$gpu memory=8GiB
  case $gpu in # a context of a real GPU takes 520 MiB
    soft) memory=512MiB ;;
    nested) sel=0 memory=1920MiB modes=${modes:+${MODES:-streams threads}} ;;
  esac
  in_vm=$(wc -w <<<"$modes")
  vgpu_memory=$(numfmt --from=iec "${memory%iB}")
  create "${address[gpu1]}" "$memory" --gpu "${sel%,*}" --migratable; row "a vGPU on gpu1" "$(said)" || return
  second_server; row "a second GPU server" "" || return
  if [[ $sel = *,* ]]; then cli gpu1 gpus drain "${sel#*,}" >/dev/null && cli gpu2 gpus drain "${sel%,*}" >/dev/null; row "each server has a GPU of its own: $sel" "" || return; fi
}
# servers_begin: with a VM, and programs in it.
servers_begin() {
  servers_two || return
  agent_vm; row "a VM with the vGPU" "" || return
  programs start; row "programs run in it: $modes" "" || return
  until_true 20 is_at gpu1; row "they are at gpu1" "$at_now"
}

# phase_servers: without a VM. Programs of causeway run are not the device process's, and do not go along: they show that there is a GPU where the vGPU has gone.
phase_servers() {
  local modes='' sel memory vgpu_memory in_vm at_now= moved n
  servers_two || return
  servers_refused
  for n in gpu2 gpu1; do
    to $n; row "the vGPU moves to $n" "$(said)" || return
    until_true 20 is_at $n; row "it is there alone" "$at_now" || return
    run -- "$BUILD/tests/$variant/vectoradd" >"$tmp/said" 2>&1; row "a program computes there" "$(said)" || return
  done
  DELAYS=${DELAYS:-0.1 0.4} servers_killed_later && kill_causewayd hosta && start_causewayd hosta && at_one; row "a causewayd that is killed later finds it there" "$at_now"
  cli hosta delete vm1 >"$tmp/said" 2>&1; row "the vGPU is deleted" "$(said)"
  servers_nothing
}

phase_serversvm() {
  local modes="${MODES:-streams threads waits times images settings vmm idle}" sel memory vgpu_memory in_vm at_now= n
  servers_begin || return
  servers_refused
  for n in gpu2 gpu1 gpu2; do servers_move $n || return; done
  servers_end
}

phase_serverskilled() {
  local modes="${MODES:-streams threads waits times images settings vmm idle}" sel memory vgpu_memory in_vm at_now= moved
  servers_begin && servers_asker_killed && servers_target_killed && servers_end
}
