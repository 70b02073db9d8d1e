# A vGPU that moves between two GPU servers, with a VM's programs or without: the phases servers,
# serversvm and serverskilled of remote.sh, whose functions it uses.

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
counterpart() { if [ "$1" = gpu1 ]; then echo gpu2; else echo gpu1; fi; }

# look sets where to the server that has the vGPU, by all accounts: causeway inspect and the lease's
# file at hosta, what the servers have promised, and the sessions that they have; its lease is
# renewed, and nothing of it is at the other one. at_now says how it is. is_at SERVER, at_one: it is
# there, or at either.
look() {
  local h
  cli hosta inspect vm1 --json >"$tmp/look.hosta" 2>/dev/null
  for h in gpu1 gpu2; do
    cli $h gpus --json >"$tmp/look.$h.gpus" 2>/dev/null
    cli $h ps --json >"$tmp/look.$h.ps" 2>/dev/null
  done
  at_now=$(python3 - "$tmp" "${address[gpu1]}" "${address[gpu2]}" "$vgpu_memory" "$in_vm" <<'PY'
import json, sys
tmp, servers, memory, programs = sys.argv[1], dict(zip(sys.argv[2:4], ("gpu1", "gpu2"))), int(sys.argv[4]), int(sys.argv[5])
def read(name):
    try: return json.load(open("%s/%s" % (tmp, name)))
    except (OSError, ValueError): return None
v = (read("look.hosta") or [{}])[0]
up, status, lease = v.get("upstream") or {}, v.get("status") or {}, (read("hosta/vm1/gpu0.lease") or {}).get("id")
at = servers.get(up.get("server"), "nowhere")
said, right = [], at != "nowhere" and v["spec"].get("remote") == up["server"] and not status.get("next") and lease == status.get("lease") == up.get("lease") and not up.get("error") and bool(up.get("state"))
for h in servers.values():
    gpus, ps = read("look.%s.gpus" % h), read("look.%s.ps" % h)
    if gpus is None or ps is None: said.append("%s: no answer" % h); right = False; continue
    promised, has = sum(g["promised"] for g in gpus), [len((x.get("status") or {}).get("sessions") or []) for x in ps if x["spec"]["vm"] == "hosta"]
    said.append("%s: %d MiB promised, %s" % (h, promised >> 20, "%d programs" % has[0] if has else "nothing"))
    right = right and (promised, has) == ((memory, [programs]) if h == at else (0, []))
print("%s; %s" % (at if right else "nowhere", "; ".join(said)))
PY
  )
  where=${at_now%%;*} at_now=${at_now#*; }
}
is_at() { look && [ "$where" = "$1" ]; }
at_one() { look && [ "$where" != nowhere ]; }

# to SERVER: causeway move. under_way: programs are on their way.
held_back= # --throttle, or nothing
to() { cli hosta move vm1 --remote "${2:-${address[$1]}}" ${held_back:+"$held_back"} >"$tmp/said" 2>&1; }
under_way() { [ -n "$(vgpu hosta vm1 status next)" ]; }
begin_to() { cli hosta move vm1 --remote "${address[$1]}" >"$tmp/said" 2>&1 & job=$!; }
# refused_to WHY [NAME]: the move is refused so, the programs go on at gpu1, and nothing is at gpu2.
refused_to() { ! to gpu2 "${2:-}" && grep -q "$1" "$tmp/said" && is_at gpu1; }

servers_room() {
  cli hosta create vm2 --remote "${address[gpu2]}" --memory 1792MiB >/dev/null && ! to gpu2 && grep -q 'do not fit' "$tmp/said"; row "to one without room" "$(said)"
  cli hosta delete vm2 >/dev/null && until_true 20 is_at gpu1; row "the vGPU is at gpu1 alone" "$at_now"
}

# others_drained SERVER: its real GPUs but for $sel.
others_drained() {
  local n
  for n in $(cli "$1" gpus --json | python3 -c 'import json, sys; print(*[g["index"] for g in json.load(sys.stdin) if g["backend"] == "cuda"])'); do
    [ "$n" = "$sel" ] || cli "$1" gpus drain "$n" >/dev/null || return
  done
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
  to "$1"; lap; keep cp "$tmp/said" "$tmp/moved"; row "the programs move to $1" "$(said), $took ms with all of it" || return
  until_true 20 is_at "$1"; row "they are there alone" "$at_now" || return
  programs on && computes && guest_goes_on && guest 'kill $! && wait $!; grep -q "^@done [1-9][0-9]* 0 " /tmp/r'; row "they go on, all results right, and another computes" ""
}

# holds SERVER: one of its workers stands, so that programs that are to leave it are on their way
# until it goes on. goes_free: it does.
holds() {
  local pid; pid=$(vgpu "$1" $there status sessions 0 worker)
  [ -n "$pid" ] && kill -STOP "$pid" && held=$pid
}
goes_free() { local pid=$held; held=; kill -CONT "$pid"; }
# moves_over: whoever asked has heard of it; moved: it was one.
moves_over() { wait "$job" 2>/dev/null; moved=$?; job=; }

# Who asks, hosta's causewayd, is killed: while the programs are on their way, and at other times.
servers_asker_killed() {
  local from
  until_true 20 at_one; from=$where
  holds "$from" && begin_to "$(counterpart "$from")" && until_true 20 under_way && kill_causewayd hosta && goes_free && moves_over && start_causewayd hosta
  until_true 60 at_one; row "hosta's causewayd is killed while they are on their way, and started: they are at one server" "$at_now" || return
  programs on; row "they go on, all results right" "at $where" || return
  servers_killed_later
}
servers_killed_later() {
  local delay
  until_true 20 at_one || return # a program that has just ended may be counted yet
  for delay in ${DELAYS:-0.2 0.5 1 1.5}; do
    begin_to "$(counterpart "$where")"; nap "$delay"
    kill_causewayd hosta; moves_over; start_causewayd hosta
    until_true 60 at_one; row "killed $delay s after it was asked, and started: at one server" "$at_now" || return
    [ -z "$modes" ] || programs on; row "all goes on there" "at $where" || return
  done
}

# The server where they are to go is killed in the middle.
servers_target_killed() {
  local from other
  until_true 20 at_one; from=$where other=$(counterpart "$where")
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
  look
  for h in gpu1 gpu2; do left+="; $(ls "$tmp/$h/hosta" 2>/dev/null | wc -l) files"; done
  left=$at_now$left
  [ "$left" = 'gpu1: 0 MiB promised, nothing; gpu2: 0 MiB promised, nothing; 0 files; 0 files' ] && [ -z "$(ls "$tmp/hosta/vm1" 2>/dev/null)" ]; row "nothing is left at either server, nor at hosta" "$left"
  left=
  for h in hosta gpu1 gpu2; do left+=$(pgrep -P "${daemon_pid[$h]}" -fa 'causeway (device|worker)'); done
  [ -z "$left" ]; row "no process of it either" "$left"
}

# servers_two: two servers, and a vGPU at gpu1, for a VM that runs $modes.
servers_two() {
  again="[::ffff:${address[gpu1]}]:7745"
  sel=$gpu memory=8GiB
  case $gpu in # a context of a real GPU takes 520 MiB
    soft) memory=512MiB; [ -z "${large:-}" ] || memory=$((large + 512))MiB ;;
    nested) sel=0 memory=1920MiB modes=${modes:+${MODES:-streams threads}} ;;
  esac
  in_vm=$(wc -w <<<"$modes")
  vgpu_memory=$(numfmt --from=iec "${memory%iB}")
  create "${address[gpu1]}" "$memory" --gpu "${sel%,*}" --migratable; row "a vGPU on gpu1" "$(said)" || return
  second_server; row "a second GPU server" "" || return
  if [[ $sel = *,* ]]; then cli gpu1 gpus drain "${sel#*,}" >/dev/null && cli gpu2 gpus drain "${sel%,*}" >/dev/null; row "each server has a GPU of its own: $sel" "" || return; fi
  if [[ $sel =~ ^[0-9]+$ ]]; then others_drained gpu1 && others_drained gpu2; row "of each server's GPUs, $sel alone takes vGPUs" "" || return; fi
}
# servers_begin: with a VM, and programs in it.
servers_begin() {
  servers_two || return
  agent_vm; row "a VM with the vGPU" "" || return
  [ -z "${large:-}" ] || guest "export ROUNDS_MIB=$large"
  programs start; row "programs run in it: $modes${large:+, with $large MiB of GPU memory}" "" || return
  until_true 20 is_at gpu1; row "they are at gpu1" "$at_now"
}

# phase_servers: without a VM. Programs of causeway run are not the device process's, and do not go
# along: they show that there is a GPU where the vGPU has gone.
phase_servers() {
  local modes='' sel memory vgpu_memory in_vm at_now= where= moved n
  servers_two || return
  servers_refused
  for n in gpu2 gpu1; do
    to $n; row "the vGPU moves to $n" "$(said)" || return
    until_true 20 is_at $n; row "it is there alone" "$at_now" || return
    run -- "$BUILD/tests/$variant/vectoradd" >"$tmp/said" 2>&1; row "a program computes there" "$(said)" || return
  done
  DELAYS=${DELAYS:-0.1 0.4} servers_killed_later && kill_causewayd hosta && start_causewayd hosta && until_true 60 at_one; row "a causewayd that is killed later finds it there" "$at_now"
  cli hosta delete vm1 >"$tmp/said" 2>&1; row "the vGPU is deleted" "$(said)"
  servers_nothing
}

phase_serversvm() {
  local modes="${MODES:-streams threads waits times images settings vmm idle}" sel memory vgpu_memory in_vm at_now= where= n
  servers_begin || return
  servers_refused
  for n in gpu2 gpu1 gpu2; do servers_move $n || return; done
  servers_end
}

# phase_serverslarge: programs of which one has LARGE MiB of GPU memory that it does not change
# stand for what has changed alone; they are the longest rounds that say so.
phase_serverslarge() {
  local modes="${LARGE_MODES:-idle streams}" large=${LARGE:-512} sel memory vgpu_memory in_vm at_now= where= n
  servers_begin || return
  for n in gpu2 gpu1; do
    servers_move $n || return
    [[ $(<"$tmp/said") =~ stood\ for\ ([0-9.]+m?s)\ at\ most,\ (.*)\ having\ gone\ ahead ]]; row "they stood for ${BASH_REMATCH[1]:-?} at most, ${BASH_REMATCH[2]:-nothing} having gone ahead" "" || return
  done
  servers_end
}

# link_carries RATE, or none for as much as it does.
link_carries() {
  local h
  for h in hosta gpu1; do
    on $h tc qdisc del dev wire root 2>/dev/null
    [ "$1" = none ] || on $h tc qdisc add dev wire root tbf rate "$1" burst 1mb latency 50ms || return
  done
}
stood() { [[ $(<"$tmp/moved") =~ (stood\ for\ .*) ]] && echo "${BASH_REMATCH[1]}"; }

# phase_serversthrottled: a program that changes its memory faster than the link carries it, MIB MiB
# of it in each round, is held back on its way if that is asked for, and not else.
phase_serversthrottled() {
  local modes=written large=${MIB:-16} sel memory vgpu_memory in_vm at_now= where=
  servers_begin || return
  [ -n "$here" ] || link_carries "${RATE:-100mbit}"; row "the link carries ${RATE:-100mbit}" "" || return
  servers_move gpu2 || return
  ! grep -q 'held back' "$tmp/moved"; row "without --throttle it is not held back" "$(keep stood)"
  held_back=--throttle
  servers_move gpu1; held_back=
  grep -q 'held back for up to [1-9][0-9]* % of the time' "$tmp/moved"; row "with --throttle it is" "$(keep stood)"
  [ -n "$here" ] || link_carries none
  servers_end
}

phase_serverskilled() {
  local modes="${MODES:-streams threads waits times images settings vmm idle}" sel memory vgpu_memory in_vm at_now= where= moved
  servers_begin && servers_asker_killed && servers_target_killed && servers_end
}
