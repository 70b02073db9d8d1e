# Kills causewayd at the source or at the destination, in each part of a migration by `causeway
# migrate` and of one that QEMU begins: sourced by precopy.sh, whose functions it uses, behind
# faults.sh, whose names of parts it has. CAUSEWAY is a build with the tag faults.
#
# A row is WAY PART VICTIM OUTCOME. Parts, in their order:
#   setup      the destination's QEMU waits, nothing has been asked of the source
#   ahead      GPU memory goes ahead, over a slow link
#   memory     the VM's own memory is being sent, slowly
#   saving     the VM stands, the source's device is about to have a worker write a session
#   loading    the destination's device has the beginning of that
#   adopting   a worker of the destination is about to read it
#   after      the VM runs there, the source's QEMU is still there
# Outcomes: the VM goes on here or there, all programs right. Behind each another causewayd takes
# the victim's place: both hosts then know one vGPU, the device process of before, whose promise of
# memory is as before, with the VM and its programs where those are and nothing where they are not;
# no process, file or session is left beside; and the VM moves in the next row.
killed_rows="
migrate setup    source      there
migrate setup    destination here
migrate ahead    source      there
migrate ahead    destination here
migrate memory   source      there
migrate memory   destination there
migrate saving   source      there
migrate saving   destination there
migrate loading  source      there
migrate loading  destination there
migrate adopting source      there
migrate adopting destination there
migrate after    source      there
migrate after    destination there
qemu    setup    source      there
qemu    setup    destination there
qemu    memory   source      there
qemu    memory   destination there
qemu    saving   source      there
qemu    saving   destination there
qemu    adopting source      there
qemu    adopting destination there
qemu    after    source      there
qemu    after    destination there"
declare -A device_at=() files_at=()

# begins WAY: the migration, in the background where it is a command.
begins() {
  job=
  if [ "$1" = migrate ]; then
    stay_on "$at_host" timeout 600 "$CAUSEWAY" migrate vm1 "${address[$to]}" --run-dir "$tmp/$at_host" --config "$tmp/$at_host.toml" --qmp "$tmp/$at_host.qmp" --uri "tcp:${address[$to]}:4444" ${most_rate:+--bandwidth "$most_rate"} >"$tmp/said" 2>&1 & job=$!
    return
  fi
  ask "$at_host" 'migrate_set_capability return-path on' && ask "$at_host" "migrate_set_parameter max-bandwidth ${most_rate:-10g}" && ask "$at_host" "migrate -d tcp:${address[$to]}:4444"
}
# comes_to WAY PART has the migration come to it.
comes_to() {
  case $2 in
    ahead) shape 50mbit && begins "$1" && until_true 20 sending ;;
    memory)
      most_rate=16m
      [ "$1" = qemu ] || most_rate=16MiB
      begins "$1" && until_true 60 sent_some ;;
    after) begins "$1" && until_true 60 migration_over && until_true 20 runs "$to" ;;
    *) : >"$tmp/stop/$2.stop"
      begins "$1" && until_true 60 [ -e "$tmp/stop/$2.at" ] ;;
  esac
}
migration_over() { over "$at_host"; }

# ends_here and ends_there: what was begun comes to its end, and the other QEMU's.
ends_here() {
  ! wait "$job" 2>/dev/null || { why="it has moved"; return 1; }
  end_vm "$to"
  runs "$at_host"
}
ends_there() {
  if [ -n "$job" ]; then wait "$job" || { why="$(tail -n 1 "$tmp/said")"; return 1; }; fi
  until_true 60 migration_over && grep -q 'tatus: *completed' <<<"$(ask "$at_host" 'info migrate')" || { why="QEMU's migration is not completed"; return 1; }
  end_vm "$at_host"
  at_host=$to
  until_true 20 runs "$at_host"
}

# known HOST CONNECTED SESSIONS: one vGPU, as it was, with the VM and so many programs, or with
# nothing.
known() {
  cli "$1" ps --json 2>/dev/null >"$tmp/ps" && cli "$1" gpus --json 2>/dev/null >"$tmp/gpus" && left=$(python3 - "$tmp/ps" "$tmp/gpus" "$2" "$3" "${device_at[$1]}" "$memory_bytes" <<'PY'
import json, sys
ps, gpus = (json.load(open(f)) for f in sys.argv[1:3])
want = {"vgpus": 1, "connected": sys.argv[3] == "yes", "sessions": int(sys.argv[4]), "pid": int(sys.argv[5]), "promised": int(sys.argv[6]), "idle": sys.argv[3] != "yes", "copy": None, "lost": ""}
st = ps[0].get("status") or {}
have = {"vgpus": len(ps), "connected": st.get("connected"), "sessions": len(st.get("sessions") or []), "pid": ps[0]["pid"], "promised": sum(g["promised"] for g in gpus),
        "idle": st.get("memory") == 0 and st.get("host_memory") == 0, "copy": st.get("copy"), "lost": ps[0].get("why", "")}
print(", ".join("%s: %r, not %r" % (k, have[k], want[k]) for k in want if have[k] != want[k]))
PY
  ) && [ -z "$left" ] || { left="$1: ${left:-no answer}"; return 1; }
}
files_of() { find "$tmp/$1" -path "$tmp/$1/log" -prune -o -path "$tmp/$1/state" -prune -o -print | sort; }
no_file_more() { local more; more=$(comm -13 <(echo "${files_at[$1]}") <(files_of "$1")); [ -z "$more" ] || { left="$1: $more"; return 1; }; }
consistent() {
  local n=$(($(wc -w <<<"$modes") + 1))
  known "$at_host" yes "$n" && known "$(other "$at_host")" no 0 && no_file_more a && no_file_more b || return
  left="$(count device) devices, $(count worker) workers, $(count daemon) causewayds"
  [ "$left" = "2 devices, $n workers, 2 causewayds" ]
}

# killed_row WAY PART VICTIM OUTCOME
killed_row() {
  local way=$1 part=$2 victim=$3 outcome=$4 host
  to=$(other "$at_host") source_host=$at_host why= left= most_rate=
  host=$to
  [ "$victim" = destination ] || host=$at_host
  rm -f "$tmp"/stop/*
  await_vm "$to" && { [ "$part" = setup ] || comes_to "$way" "$part"; }; row "$way, $part: it comes so far" "$why" || return
  kill -9 "${daemon_pid[$host]}"; wait "${daemon_pid[$host]}" 2>/dev/null
  [ "$part" != setup ] || begins "$way"
  rm -f "$tmp"/stop/*
  shape none
  [ "$part" != memory ] || ask "$source_host" 'migrate_set_parameter max-bandwidth 10g'
  "ends_$outcome" && guest true; row "  the $victim's causewayd is killed: the VM goes on $outcome" "$why" || return
  programs on; row "  all programs go on, all results right" "" || return
  start_causewayd "$host" && until_true 20 consistent; row "  another takes its place, and knows it all" "$left"
}

phase_killed() {
  local noise=1 to source_host way part victim outcome memory_bytes h most_rate
  memory_bytes=$(python3 -c 'import sys; s = sys.argv[1]; print(int(s[:-3]) << {"MiB": 20, "GiB": 30}[s[-3:]])' "$memory")
  spawn 64; row "a program with 64 MiB of GPU memory" "" || return
  programs start; row "programs run: $modes" "" || return
  for h in a b; do device_at[$h]=$(device_of "$h") files_at[$h]=$(files_of "$h"); done
  while read -r way part victim outcome <&5; do
    [ -n "$way" ] || continue
    killed_row "$way" "$part" "$victim" "$outcome" || break
  done 5<<<"$(grep -E "${FAULTS:-.}" <<<"$killed_rows")"
  programs end; row "the programs end: rounds made" "$rounds"
  end_spawned; row "the large program's memory is as it was" ""
}
