#!/bin/bash
# Runs the blocks of a document in order, in a fresh Debian without systemd: walk.sh DOCUMENT. See
# walkthrough.sh.
set -u
cd /root || exit 1
export LC_ALL=C DEBIAN_FRONTEND=noninteractive PAGER=cat

# What this machine is. A GPU is one that NVIDIA's driver shows.
have=" host guest"
[ -d /run/systemd/system ] && have+=" systemd" || have+=" no-systemd"
# /dev/kvm can be there and not work: emulated, unless asked.
[ "${WALK_KVM:-}" = 1 ] && have+=" kvm" || have+=" no-kvm"
[ -e /dev/nvidiactl ] && have+=" gpu"
have+=" "

fail() { echo "@walk FAILED $*"; exit 1; }

on_host() { timeout 900 bash -exo pipefail "$1" </dev/null; }

# The console of the guest: a pseudo terminal that libvirt made.
console=
open_console() {
  [ -z "$console" ] || return 0
  console=$(virsh ttyconsole vm1) || return 1
  stty -F "$console" raw -echo
  exec 5<>"$console"
  await 'login:' 300 || return 1
  # getty drops what comes before it listens.
  local try
  for try in 1 2 3 4 5 6 7 8; do
    printf 'root\r' >&5
    ! await 'root@vm1' 20 || break
  done
  [ "$try" != 8 ] || return 1
  for try in 1 2 3 4 5; do
    printf "stty -echo; PS1=; bind 'set enable-bracketed-paste off' 2>/dev/null; echo @rea''dy\n" >&5
    ! await '@ready' 30 || return 0
  done
  return 1
}
# await TEXT SECONDS reads the console until TEXT comes, and copies what it reads.
await() {
  local text=$1 end=$((SECONDS + $2)) seen= c
  while [ $SECONDS -lt $end ]; do
    if IFS= read -r -t 1 -N 1 -u 5 c; then
      printf '%s' "$c"
      seen+=$c
      [ ${#seen} -lt 500 ] || seen=${seen: -100}
      [[ $seen != *"$text"* ]] || { echo; return 0; }
    fi
  done
  echo; return 1
}
on_guest() {
  open_console || return 1
  local line
  # A console takes lines of some size only.
  printf 'base64 -d >block.sh <<@end\n' >&5
  base64 -w 76 "$1" | while IFS= read -r line; do printf '%s\n' "$line" >&5; sleep 0.02; done
  printf '@end\nbash -ex block.sh; echo "@status-$?-"\n' >&5
  await '@status-' 600 && await '-' 10 >/root/status && [ "$(tr -dc 0-9 </root/status)" = 0 ]
}

run_block() {
  local marks=$1 file=$2 line=$3 where=host m
  for m in $marks; do
    [[ $have == *" $m "* ]] || { echo "@walk line $line ($marks): left out, this machine has no $m"; return 2; }
    [ "$m" != guest ] || where=guest
  done
  echo "=== line $line: $marks"
  cat "$file"
  local since=$SECONDS
  "on_$where" "$file" || fail "line $line ($marks)"
  echo "@walk line $line ($marks): done in $((SECONDS - since)) s"
}

done_=0 left=0 number=0 marks= start=
while IFS= read -r line <&4; do
  number=$((number + 1))
  if [ -z "$marks" ]; then
    case $line in '```sh '*) marks=${line#'```sh '} start=$number; : >/root/block ;; esac
  elif [ "$line" = '```' ]; then
    rc=0
    run_block "$marks" /root/block "$start" || rc=$?
    [ $rc = 2 ] && left=$((left + 1)) || done_=$((done_ + 1))
    marks=
  else
    printf '%s\n' "$line" >>/root/block
  fi
done 4<"$1"
[ $done_ -gt 0 ] || fail "no blocks in $1"
echo "@walk $done_ passed, 0 failed, $left left out"
