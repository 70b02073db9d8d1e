# Kills whoever takes part in a migration between two QEMUs, at each of its parts: sourced by
# migrate.sh, whose functions it uses. CAUSEWAY is a build with the tag faults, where a part of a
# session's move waits as long as a file of its name is in $tmp/stop.
#
# A row is PART VICTIM OUTCOME. Parts, in their order:
#   setup      the destination's QEMU waits, nothing has been asked of the source's
#   logging    writes to the VM's memory are logged, next to nothing of it was sent
#   memory     it is being sent, over a slow link
#   saving     the VM stands, the source's device is about to have a worker write a session
#   loading    the destination's device has the beginning of that
#   adopting   a worker of the destination is about to read it
#   after      the VM runs there, the source's QEMU is still there
# Victims: QEMU, device process, keeper or a worker of the source or destination, or the link
# between the QEMUs; the destination has no worker before a session is loaded. Outcomes: the VM goes
# on
#   here       at the source, all programs right
#   there      at the destination, all programs right
#   maimed     at the source, where its programs get errors: it has lost its GPU as it would without
#              a migration
#   hurt       at the source, where one program gets an error, and all others are right: its worker
#              was killed
#   less       at the destination, the same
#   sent       at the destination, all programs right, if the worker had sent its session when it
#              was killed; else hurt
#   nowhere    it was killed: what is killed is the VM, which is not at the destination yet
# Never on both sides, and never is a round of a program wrong. Behind each: no process is left but
# what serves the VM and both hosts, no session, no memory of the GPU or the host where the VM is
# not, and no descriptor or file more than behind the first fault. FAULTS, an extended regular
# expression over rows, has allfaults do those alone.
faults_fast="
memory   destination-device  here
memory   link                here
memory   source-keeper       there
saving   link                here
loading  destination-device  here
adopting destination-worker  here
adopting destination-qemu    here
after    source-device       there"
faults_slow="
setup    destination-device  here
memory   destination-keeper  there
setup    destination-qemu    here
setup    destination-keeper  there
setup    source-keeper       there
setup    link                here
logging  destination-qemu    here
logging  destination-device  here
logging  destination-keeper  there
logging  source-keeper       there
logging  link                here
memory   destination-qemu    here
saving   destination-qemu    here
saving   destination-device  here
saving   destination-keeper  there
saving   source-keeper       there
loading  destination-qemu    here
loading  destination-keeper  there
loading  source-keeper       there
loading  link                here
adopting destination-device  here
adopting destination-keeper  there
adopting source-keeper       there
adopting link                here
after    source-qemu         there
after    source-keeper       there
after    source-worker       there
after    destination-keeper  there
after    link                there
loading  destination-worker  here
setup    source-device       maimed
logging  source-device       maimed
memory   source-device       maimed
saving   source-device       maimed
loading  source-device       maimed
adopting source-device       maimed
setup    source-worker       less
logging  source-worker       less
memory   source-worker       less
saving   source-worker       hurt
loading  source-worker       sent
adopting source-worker       sent
setup    source-qemu         nowhere
logging  source-qemu         nowhere
memory   source-qemu         nowhere
saving   source-qemu         nowhere
loading  source-qemu         nowhere
adopting source-qemu         nowhere"

declare -A keeper_pid=()
link= link_pid= killed= left=
declare -A most=() # descriptors of a device process with a VM, and without, and files in $tmp: behind the first fault

# ours WHAT prints the processes of this build whose first argument that is.
ours() {
  local d words
  while read -r d; do # found by one process: a host may have thousands
    mapfile -d '' -t words <"$d/cmdline"
    [ "${words[1]:-}" != "$1" ] || echo "${d#/proc/}"
  done 2>/dev/null < <(find /proc -maxdepth 2 -path '/proc/[0-9]*/exe' -lname "$CAUSEWAY" -printf '%h\n' 2>/dev/null)
}
count() { ours "$1" | grep -c .; }

# serve_kept HOST [ARGS...] is serve that knows the keeper as well.
serve_kept() {
  local before; before=" $(ours keeper | tr '\n' ' ')"
  CAUSEWAY_STOP_AT=$tmp/stop serve "$@"
  until_true 5 another_keeper "$before" && keeper_pid[$1]=$found
}
another_keeper() {
  local p
  for p in $(ours keeper); do
    [[ $1 == *" $p "* ]] || { found=$p; return 0; }
  done
  return 1
}

# slay VICTIM: SIGKILL.
slay() {
  local host=$source_host
  case $1 in
    link) killed=$link_pid ;;
    destination-*) host=$(other "$source_host") ;;&
    *-qemu) killed=${vm_pid[$host]} ;;
    *-device) killed=${device_pid[$host]} ;;
    *-keeper) killed=${keeper_pid[$host]} ;;
    *-worker) killed=$(ps -o pid= --sort=-rss --ppid "${device_pid[$host]}" | head -n 1 | tr -d ' ') ;; # the one with most to send
  esac
  [ -n "$killed" ] && kill -9 "$killed" || return
  wait "$killed" 2>/dev/null # or it is no child
  until_true 5 ended "$killed"
}

# relay stands between the QEMUs.
relay() {
  rm -f "$tmp/link"
  python3 "$ROOT/scripts/lib/relay.py" "$tmp/link" "$tmp/migration" 9>&- 3>&- 4>&- & link_pid=$!
  link=link
  until_true 5 [ -S "$tmp/link" ]
}

# goes_on STATUS...: the source's migration gets there; a QEMU that waits for its device does not
# answer meanwhile.
sent_kib() { ask "$source_host" 'info migrate' | tr -d '\r' | sed -n 's/^transferred ram: *\([0-9]*\).*/\1/p'; }
sent_some() { local n; n=$(sent_kib); [ "${n:-0}" -ge 512 ]; }
logs_writes() { python3 "$ROOT/scripts/lib/get.py" "$tmp/$source_host.ctl" /v1/status | grep -q '"migrating":true'; }
settled() { migration_is "$source_host" completed failed cancelled; }

# reach PART has the migration come to it.
reach() {
  local part=$1
  rm -f "$tmp"/stop/*
  case $part in
    setup) return 0 ;;
    logging) slow=1 set_off && until_true 10 logs_writes ;;
    memory) slow=1 set_off && until_true 10 sent_some ;;
    after) set_off && until_true 60 migration_is "$source_host" completed && until_true 10 runs "$(other "$source_host")" ;;
    # The destination has a worker when the second session is about to be loaded.
    *) if [ "$part-$victim" = loading-destination-worker ]; then echo 1; fi >"$tmp/stop/$part.stop"
      set_off && until_true 30 [ -e "$tmp/stop/$part.at" ] ;;
  esac
}

# goes_on has what was reached go on: the stop ends, and the link is fast.
goes_on() {
  rm -f "$tmp/stop/$1.stop"
  [ "$victim" != source-qemu ] || return 0
  case $1 in
    setup) set_off || return 0 ;; # a destination that has ended refuses at once
    logging | memory) ask "$source_host" 'migrate_set_parameter max-bandwidth 10g' ;;
  esac
}

# census: no process is there but what serves the VM and both hosts.
census() {
  [ "$(count device)" = 2 ] && [ "$(count keeper)" = 2 ] && [ "$(count worker)" = "$1" ]
}
workers_are() { # as many as programs
  local n=0
  for _ in $modes; do n=$((n + 1)); done
  echo "$n"
}
callers() { # programs that call all the time, and so hear of an error
  local n=0 m
  for m in $modes; do [ "$m" = idle ] || n=$((n + 1)); done
  echo "$n"
}

# vgpu_says HOST PATTERN...: its device process says all of that of itself, and nothing of what
# stands behind a !.
vgpu_says() {
  local said pattern; said=$(python3 "$ROOT/scripts/lib/get.py" "$tmp/$1.ctl" /v1/status 2>/dev/null); shift
  for pattern; do
    case $pattern in
      !*) ! [[ $said =~ ${pattern#!} ]] ;;
      *) [[ $said =~ $pattern ]] ;;
    esac || { left="not $pattern: $said"; return 1; }
  done
}
# no_more WHAT LIST: no more lines than behind the first fault.
no_more() {
  local n; n=$(grep -c . <<<"$2")
  [ "$n" -gt "$(grep -c . <<<"${most[$1]:=$2}")" ] || return 0
  left="$1: more than behind the first fault: $(diff <(uniq -c <<<"${most[$1]}") <(uniq -c <<<"$2") | tr -s '\n ' ' ')"
  return 1
}
descriptors() { find "/proc/${device_pid[$1]}/fd" -type l -printf '%l\n' 2>/dev/null | sed 's/:\[[0-9]*\]//' | sort; }
files() { find "$tmp" -mindepth 1 ! -name gap ! -name info ! -path '*/stop/*' | sort; }

# nothing_left says in $left what is. A descriptor is the connection by which one asks.
nothing_left() {
  local idle; idle=$(other "$at_host")
  left="$(count device) devices, $(count keeper) keepers, $(count worker) workers"
  census "$(workers_are)" && no_more "descriptors with a VM" "$(descriptors "$at_host")" && no_more "descriptors without" "$(descriptors "$idle")" && no_more files "$(files)" &&
    vgpu_says "$idle" '"connected":false' '"memory":0,' '"host_memory":0,' '"sessions":(null|\[\])' '!"copy":' &&
    vgpu_says "$at_host" '"connected":true' '"runs":true' '!"migrating":true' '!"copy":' &&
    left="$(descriptors "$at_host" | grep -c .) and $(descriptors "$idle" | grep -c .) descriptors"
}

# fault PART VICTIM OUTCOME
fault() {
  local part=$1 victim=$2 outcome=$3 what
  source_host=$at_host what="$1: the ${2/-/"'s "} is killed"
  relay && expect_vm "$(other "$source_host")" && reach "$part" && slay "$victim"; row "$what" "process $killed" || return
  goes_on "$part"
  "outcome_$outcome"; row "  the VM goes on $outcome" "$why" || return
  tidy; row "  and nothing else is left" "$left"
}

# alone HOST: the other one's QEMU, which may be gone or wait for its device, does not run the VM.
runs_now() { timeout 5 python3 "$ROOT/scripts/lib/hmp.py" "$tmp/$1.monitor" 'info status' 2>/dev/null | grep -q 'VM status: running'; }
alone() { ! runs_now "$(other "$1")" || { why="both hosts run it"; return 1; }; }

# stays_here: the migration came to nothing, and the source goes on.
stays_here() {
  until_true 30 settled && migration_is "$source_host" failed cancelled && alone "$source_host"; local rc=$?
  quit_vm "$(other "$source_host")"
  [ $rc = 0 ] && { until_true 10 runs "$source_host" || { why="the source does not go on: $why"; return 1; }; }
}
# is_there: the destination goes on.
is_there() {
  [ "$victim-$part" = source-qemu-after ] || until_true 60 migration_is "$source_host" completed || return
  alone "$(other "$source_host")" || return
  quit_vm "$source_host"
  at_host=$(other "$source_host")
  until_true 10 runs "$at_host"
}
# one_less: the program whose worker was killed had an error, and nothing of it is left; all others
# go on.
one_less() {
  programs on_but 1 || { why="the programs do not go on but one"; return 1; }
  until_true 10 a_worker_less || { why="workers: $(ours worker | tr '\n' ' ')"; return 1; }
  again || { why="it is not restored"; return 1; }
}
a_worker_less() { [ "$(count worker)" = $(($(workers_are) - 1)) ]; }

outcome_here() { stays_here && programs on; }
outcome_hurt() { stays_here && one_less; }
outcome_sent() {
  until_true 60 settled || return
  if ! migration_is "$source_host" completed; then outcome_hurt && why="it had not sent its session: $why"; return; fi
  is_there && programs on && why="it had sent its session"
}
outcome_there() { why=; is_there && programs on; }
outcome_less() { why=; is_there && one_less; }
outcome_maimed() {
  until_true 30 settled; alone "$source_host"; local rc=$?
  quit_vm "$(other "$source_host")"
  [ $rc = 0 ] && until_true 10 runs "$source_host" && guest true && programs on_but "$(callers)" && again
}
outcome_nowhere() {
  why=
  [ "$part" = setup ] || until_true 30 ended "${vm_pid[$(other "$source_host")]}" || return # the destination's ends by itself: it has half a VM
  again
}

# again goes back to before: the VM as it was saved, at host a.
again() {
  quit_vm a; quit_vm b
  stop_serving a; stop_serving b
  serve_kept a; serve_kept b
  at_host=a sent=$sent_then
  vm a -incoming "exec:cat $tmp/before" && until_true 30 runs a && programs on
}

# tidy ends what was between the QEMUs, and has the next fault find two hosts again.
tidy() {
  local h
  kill "$link_pid" 2>/dev/null; wait "$link_pid" 2>/dev/null; link= link_pid=
  quit_vm "$(other "$at_host")"
  for h in "$(other "$at_host")" "$at_host"; do
    ended "${device_pid[$h]}" || ended "${keeper_pid[$h]}" || continue
    [ "$h" != "$at_host" ] || move || return
    stop_serving "$h"; serve_kept "$h"
  done
  until_true 10 nothing_left
}

faults() { # ROWS
  local part victim outcome
  while read -r part victim outcome <&5; do
    [ -n "$part" ] || continue
    fault "$part" "$victim" "$outcome" || break
  done 5<<<"$1"
}

# The link may be relayed and slow; then the programs' state at its beginning is kept for those rows
# that lose it.
phase_faults() { faults "$faults_fast"; }
phase_allfaults() {
  at_a || return
  depart completed "exec:cat >$tmp/before"; sent_then=$sent; row "saved, for what ends without a VM" "$took ms" || return
  again; row "restored" "" || return
  faults "$(grep -E "${FAULTS:-.}" <<<"$faults_fast$faults_slow")"
}
