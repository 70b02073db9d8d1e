# Kills a worker or the device process at the source or at the destination, in each part of a
# migration by `causeway migrate`: sourced by precopy.sh behind killed.sh, whose parts and functions
# it uses. CAUSEWAY is a build with the tag faults.
#
# A row is PART VICTIM OUTCOME. The worker is the one with most memory. Outcomes, in which other
# programs go on with right results:
#   here       the VM goes on at the source, with all programs
#   there      at the destination, likewise
#   hurt       at the source, and the program whose worker was killed gets an error
#   less       at the destination, and that program gets one
#   sent       at the destination with all, as the worker had sent its session before it was killed;
#              else hurt
#   maimed     at the source, where all programs get errors, as without a migration
#   borne      at the destination with all, as all of its state had left before the kill; else
#              maimed
#   lame       at the destination, where they do
# Behind each: no process, file, session or promise of memory is left where the VM is not, what
# `causeway migrate` says names who ended, and the VM moves in the next row.
losses_rows="
ahead    destination-worker there
ahead    destination-device here
ahead    source-worker      less
memory   destination-worker there
memory   destination-device here
memory   source-worker      less
saving   destination-worker here
saving   destination-device here
saving   source-worker      hurt
loading  destination-worker here
loading  destination-device here
loading  source-worker      sent
adopting destination-worker here
adopting destination-device here
adopting source-worker      sent
after    destination-worker less
after    source-worker      there
after    source-device      there
ahead    source-device      maimed
memory   source-device      maimed
saving   source-device      maimed
loading  source-device      borne
adopting source-device      borne
after    destination-device lame"

# cause is what causeway migrate says in a row, as a pattern.
cause() { # PART VICTIM MOVED
  case $3-$2-$1 in
    yes-*) echo 'moved to ' ;;
    *-destination-device-*) echo 'the device process of vm1/gpu0 has ended.*the VM goes on here' ;;
    *-source-device-*) echo 'its device process here has ended.*the VM goes on here' ;;
    *) echo 'worker ended.*the VM goes on here' ;;
  esac
}

# crew starts the programs that a row looks at: one with much memory, and others.
crew() { spawn 64 && programs start; }
# anew HOST... gives each another vGPU in the place of one whose device process has ended.
anew() {
  local h
  for h; do
    ended "${device_at[$h]}" || continue
    until_true 20 vgpu "$h" || return
    device_at[$h]=$(device_of "$h")
  done
}

lost_here() { ends_here && programs on; }
lost_there() { ends_there && programs on; }
lost_hurt() { ends_here && one_fell; }
lost_less() { ends_there && one_fell; }
lost_sent() { wait "$job" && lost_there || { lost_hurt && why="it had not sent its session"; }; }
lost_borne() { wait "$job" && lost_there || { lost_maimed && why="it had not sent all"; }; }
lost_maimed() { ends_here && all_fell; }
lost_lame() { ends_there && all_fell; }
one_fell() { fell && programs on && spawn 64; }
# all_fell: no program goes on, and no round was wrong. A VM with another vGPU begins anew.
all_fell() {
  fell && programs on_but "$(wc -w <<<"$modes")" || return
  end_vm "$at_host"
  anew "$at_host" && vm "$at_host" && sent=0 && guest_up && crew
}

loss_row() { # PART VICTIM OUTCOME
  local part=$1 victim=$2 outcome=$3 host says moved
  to=$(other "$at_host") source_host=$at_host why= left= most_rate=
  host=$to
  [[ $victim = destination-* ]] || host=$at_host
  rm -f "$tmp"/stop/*
  await_vm "$to" && comes_to migrate "$part"; row "$part: it comes so far" "$why" || return
  case $victim in
    *-worker) slay "$(worker_of "$host")" ;;
    *) slay "${device_at[$host]}" ;;
  esac; row "  the ${victim/-/"'s "} is killed" "" || return
  rm -f "$tmp"/stop/*
  shape none
  [ "$part" != memory ] || ask "$source_host" 'migrate_set_parameter max-bandwidth 10g'
  "lost_$outcome"; row "  the VM goes on $outcome" "$why" || return
  says=$(tail -n 1 "$tmp/said") moved=yes
  wait "$job" || moved=
  [[ $says =~ $(cause "$part" "$victim" "$moved") ]]; row "  causeway migrate says so" "$says"
  anew a b && until_true 20 consistent; row "  nothing else is left" "$left"
}

phase_losses() {
  local noise=1 to source_host part victim outcome memory_bytes h most_rate
  memory_bytes=$(python3 -c 'import sys; s = sys.argv[1]; print(int(s[:-3]) << {"MiB": 20, "GiB": 30}[s[-3:]])' "$memory")
  crew; row "programs run: one with 64 MiB of GPU memory, $modes" "" || return
  for h in a b; do device_at[$h]=$(device_of "$h") files_at[$h]=$(files_of "$h"); done
  while read -r part victim outcome <&5; do
    [ -n "$part" ] || continue
    loss_row "$part" "$victim" "$outcome" || break
  done 5<<<"$(grep -E "${FAULTS:-.}" <<<"$losses_rows")"
  programs end; row "the programs end: rounds made" "$rounds"
  end_spawned; row "the large program's memory is as it was" ""
}
