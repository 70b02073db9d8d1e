# migrate.sh's phase train: a Python program of this machine's own tree, which the guest sees
# read-only, trains on the vGPU while its VM moves between the two QEMUs, and its losses are those
# of the same program here, bit by bit. Sourced by it.
#
# TRAIN is the program with its arguments (default: scripts/moves/train.py tiny, with PyTorch, or
# where there is none scripts/moves/plain.py), TRAIN_RAM and TRAIN_CPUS the VM's, TRAIN_LIMIT how
# many seconds it has from its start to its end, TRAIN_MOVES how often it moves at least.

share_pids=()

# share_tree has a server for each of the two QEMUs. What Python needs of this machine is shown,
# links such as /lib -> usr/lib included.
# shellcheck disable=SC2034 # of migrate.sh
share_tree() {
  local host p paths=() prefixes
  [ -x "$BUILD/bin/causeway-share" ] || (cd "$ROOT" && CGO_ENABLED=0 go build -trimpath -o "$BUILD/bin/causeway-share" ./scripts/compat/share) || die "scripts/compat/share does not build"
  shares=1 ram=${TRAIN_RAM:-10G} cpus=${TRAIN_CPUS:-4} patience=${TRAIN_PATIENCE:-90}
  python=$(python3 -c 'import sys; print(sys.executable)')
  mapfile -t prefixes < <("$python" -c 'import sys; print(sys.prefix); print(sys.base_prefix)' | sort -u | grep -vx /usr)
  for p in /bin /lib /lib64 /usr/bin /usr/lib /usr/lib64 /etc/ld.so.cache /etc/passwd "${prefixes[@]}" "$ROOT/scripts"; do [ ! -e "$p" ] || paths+=("$p"); done
  for host in a b; do
    "$BUILD/bin/causeway-share" --socket "$tmp/$host.share" --empty proc --empty sys --empty dev --empty tmp --empty app --empty run/causeway "${paths[@]}" 2>"$logs/share-$host.log" &
    share_pids+=($!)
  done
  for host in a b; do until_true 90 [ -S "$tmp/$host.share" ] || die "the tree is not shown: see $logs/share-$host.log"; done
}
stop_sharing() { kill "${share_pids[@]}" 2>/dev/null; }

# fetch FILE OUT brings a file of the guest.
fetch() {
  : >"$2"
  send "sed 's/^/@f /' $1"
  while IFS= read -r -t 30 line <&3; do
    line=${line%$'\r'}
    case $line in '@f '*) printf '%s\n' "${line#@f }" >>"$2" ;; "@end $sent "*) return "${line##* }" ;; esac
  done
  return 1
}
# losses FILE are those that it has, whole, with what they came to.
losses() { grep -E '^(loss|weights) ' "$1"; }

# trained sets steps to how many losses the guest's program has printed; status 1: it has ended.
trained() {
  guest '[ ! -e /tmp/train.rc ]'
  local rc=$?
  fetch /tmp/train "$logs/train.moved" || return 2
  steps=$(grep -c '^loss ' "$logs/train.moved")
  return $rc
}

phase_train() {
  local limit=90 # of each command: its CPU is emulated, and trains
  local program=${TRAIN:-} began=$SECONDS n steps=0 moved=0 first=0 rc=0 env
  if [ -z "$program" ]; then
    program="scripts/moves/plain.py 120 400"
    ! "$python" -c 'import torch' 2>/dev/null || program="scripts/moves/train.py 60 300 tiny"
  fi
  env="PATH=/usr/bin:/bin TMPDIR=/tmp HOME=/tmp PYTHONPATH=$ROOT/scripts/compat/lib PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1"
  guest 'mkdir -p /host && mount -t virtiofs -o ro host /host && for d in proc sys dev tmp app; do mount --bind /$d /host/$d || exit 1; done && mount --bind /run/causeway /host/run/causeway'
  row "the guest sees this machine's Python tree" "" || return
  send "&{ chroot /host /usr/bin/env -i $env LD_LIBRARY_PATH=/run/causeway/lib $python $ROOT/$program >/tmp/train 2>&1; echo \$? >/tmp/train.rc; }"
  # The same here, by whatever GPU the devices have, without a VM.
  # shellcheck disable=SC2086 # words
  (cd /tmp && env $env timeout "${TRAIN_LIMIT:-300}" "$CAUSEWAY" run --gpu "$gpu" -- "$python" "$ROOT/"$program) >"$logs/train.here" 2>"$logs/train.here.err" &
  local here=$!
  while [ $((SECONDS - began)) -lt "${TRAIN_LIMIT:-300}" ]; do
    trained || { rc=$?; break; }
    if [ "$steps" -lt 1 ]; then nap 2; continue; fi
    [ $first != 0 ] || { first=$((SECONDS - began)); true; row "it trains" "first step after $first s: $(keep grep -m1 '^# import' "$logs/train.moved")"; }
    move; row "move $((moved + 1)), to $at_host, behind $steps steps" "$(keep pauses)" || break
    moved=$((moved + 1))
  done
  wait $here; row "it trains here" "$(keep grep -c '^loss' "$logs/train.here") losses"
  [ $rc = 1 ] && guest '[ "$(cat /tmp/train.rc)" = 0 ]'; row "it ends in the VM, which moved $moved times" "after $((SECONDS - began)) s, behind $steps steps"
  [ "$moved" -ge "${TRAIN_MOVES:-3}" ]; row "the VM has moved often enough" "$moved times"
  n=$(losses "$logs/train.moved" | wc -l)
  [ "$n" -ge 2 ] && cmp <(losses "$logs/train.moved") <(losses "$logs/train.here" | head -n "$n"); row "its losses are those of the unmoved run" "$n lines, $(keep tail -n 1 <(losses "$logs/train.moved"))"
  [ $moved != 0 ] || tail -n 5 "$logs/train.moved" | sed 's/^/        | /'
}
