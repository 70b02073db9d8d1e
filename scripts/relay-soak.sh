#!/usr/bin/env bash
# Thousands of sessions on another host's GPU over links that flap, and what is left of them.
#
#   scripts/relay-soak.sh [--sessions N] [--links N] [--jobs N] [--seed N] [--minutes N] [--proxy]
#   [--keep]
#
# Programs of guest/tests run under `causeway run --relay`, --jobs (4) at a time over --links (1),
# until --sessions (10000) have ended. Meanwhile each link's connections are reset, and the link
# goes away for up to 3 s, at random moments (--seed, 1) some seconds apart. Links are veths of
# network namespaces (root), or, with --proxy or where there are none, connections through
# build/bin/causeway-wire (scripts/wire). Each program must end well with the right results. When
# the last has, the server must be where it was after the first few: descriptors, threads, memory,
# processes; here no process and no file may be left. After --minutes no session begins. One line
# for each check; the status is 0 if all hold. --keep leaves the logs. 200 sessions prove that it
# works; a leak of a page each takes thousands to be seen. A session costs 0.15 s of a processor. A
# machine without Go needs build/bin/causeway, build/bin/causeway-wire, build/lib and the programs
# of build/tests/13.0-static.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/device.sh"
. "$ROOT/scripts/lib/wire.sh"
. "$ROOT/scripts/lib/flaps.sh"

sessions=10000 links=1 jobs=4 seed=1 minutes= proxy= keep=
while [ $# -gt 0 ]; do
  case $1 in
    --sessions) sessions=$2; shift 2 ;;
    --links) links=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --seed) seed=$2; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    --proxy) proxy=1; shift ;;
    --keep) keep=1; shift ;;
    -h | --help) header; exit ;;
    *) die "unknown option $1: see $0 --help" ;;
  esac
done
variant=$BUILD/tests/13.0-static programs=(vectoradd copies streams events modules uploads threads)
for p in "${programs[@]}"; do [ -x "$variant/$p" ] || die "no $variant/$p: run scripts/build-tests.sh $p"; done

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-relay-soak.XXXXXX"); pids=() lanes=() failed=0 server=
export TMPDIR=$tmp/files # so that what a program leaves is seen
mkdir "$TMPDIR"
cleanup() {
  touch "$tmp/stop"
  for p in "${lanes[@]}" "${pids[@]}"; do kill "$p" 2>/dev/null; done
  wait 2>/dev/null
  if [ -n "$keep" ] || [ "$failed" != 0 ]; then say "logs are in $tmp"; else rm -rf "$tmp"; fi
}
on_exit cleanup
links_up "$links"

# session LANE PROGRAM: one, whose outcome goes to the lane's counts.
session() {
  local out=$tmp/lane$1 link=$(($1 % links)) rc=0
  (stay_before "$link" timeout -k 5 300 "$CAUSEWAY" run --relay "$tmp/lease$link" -- "$variant/$2") >"$out.out" 2>"$out.err" </dev/null || rc=$?
  if [ "$rc" != 0 ]; then
    echo "$2: status $rc: $(tail -n 2 "$out.err" | tr '\n' ' ')" >>"$tmp/wrong"
  elif ! diff -q <(grep -v '^#' "$out.out") <(grep -v '^#' "$(expected 13.0-static "$2")") >/dev/null; then
    echo "$2: other results" >>"$tmp/wrong"
    cp "$out.out" "$tmp/wrong-$2.out"
  fi
  grep 'is lost: the session asks for another' "$out.err" >>"$tmp/again"
  echo "$2" >>"$tmp/ended$1"
}
ended() { cat "$tmp"/ended* 2>/dev/null | wc -l; }
lane() {
  RANDOM=$((seed * 1000 + $1))
  while [ ! -e "$tmp/stop" ] && [ "$(ended)" -lt "$sessions" ]; do session "$1" "${programs[RANDOM % ${#programs[@]}]}"; done
}

# flap LINK: what happens to it, each followed by some seconds in which sessions may begin and end.
flap() {
  RANDOM=$((seed * 1000 + 500 + $1))
  while [ ! -e "$tmp/stop" ]; do
    case $((RANDOM % 4)) in
      0 | 1 | 2) reset_link "$1" $((RANDOM % 2)); echo reset >>"$tmp/flaps" ;;
      3) link_down "$1"; sleep $((RANDOM % 3)).$((RANDOM % 10)); link_up "$1"; echo away >>"$tmp/flaps" ;;
    esac
    sleep $((RANDOM % 3)).$((RANDOM % 10))
  done
}

# workers is how many processes the server has.
workers() {
  if [ -e "/proc/$server/task/$server/children" ]; then cat /proc/"$server"/task/*/children | wc -w; else pgrep -P "$server" | wc -l; fi
}
# measure FILE: what must come back to what it was.
measure() {
  {
    echo "descriptors $(ls "/proc/$server/fd" | wc -l)"
    echo "threads $(ls "/proc/$server/task" | wc -l)"
    echo "memory-KiB $(awk '/^VmRSS/ {print $2}' "/proc/$server/status")"
    echo "children $(workers)"
  } >"$1"
}
# settle waits until the server has no worker, at most 40 s: one whose connection went without a
# word waits for it for 10.
settle() { for _ in $(seq 400); do [ "$(workers)" -gt "$1" ] || break; sleep 0.1; done; }
check() { # NAME VALUE COMMAND...
  local name=$1 value=$2 verdict=ok; shift 2
  "$@" || { verdict=FAILED; failed=1; }
  printf '%-50s %-30s %s\n' "$name" "$value" "$verdict"
}

idle=$(workers) # what waits ready
first=$((jobs > ${#programs[@]} ? 2 * jobs : 2 * ${#programs[@]}))
say "the first $first sessions, after which the server is measured"
for i in $(seq 0 $((jobs - 1))); do
  for ((n = i; n < first; n += jobs)); do session "$i" "${programs[n % ${#programs[@]}]}"; done & lanes+=($!)
done
wait "${lanes[@]}"; lanes=()
rm -f "$tmp"/ended*
settle "$idle"; measure "$tmp/before"
say "$sessions sessions of ${#programs[@]} programs, $jobs at a time, while $links links flap: $links_are"
for i in $(seq 0 $((jobs - 1))); do lane "$i" & lanes+=($!); done
flappers=() began=$SECONDS
for i in $(seq 0 $((links - 1))); do flap "$i" & flappers+=($!); pids+=($!); done
told=$SECONDS end=$((SECONDS + ${minutes:-100000} * 60))
while [ "$(ended)" -lt "$sessions" ] && [ ! -s "$tmp/wrong" ] && [ $SECONDS -lt "$end" ]; do
  sleep 2
  [ $((SECONDS - told)) -ge 30 ] || continue
  told=$SECONDS
  say "$(ended) sessions, $(grep -c reset "$tmp/flaps" 2>/dev/null) resets, links away $(grep -c away "$tmp/flaps" 2>/dev/null) times, server $(awk '/^VmRSS/ {print $2}' "/proc/$server/status") KiB"
done
touch "$tmp/stop"
wait "${lanes[@]}"; lanes=()
wait "${flappers[@]}"
settle "$idle"; measure "$tmp/after"

check "sessions (it ends with the first that fails)" "$(ended) in $((SECONDS - began)) s" [ "$(ended)" -ge "$sessions" ]
check "with errors or other results" "$(cat "$tmp/wrong" 2>/dev/null | wc -l)" [ ! -s "$tmp/wrong" ]
[ ! -s "$tmp/wrong" ] || head -5 "$tmp/wrong"
check "resets, times that a link was away" "$(grep -c reset "$tmp/flaps"), $(grep -c away "$tmp/flaps")" [ -s "$tmp/flaps" ]
check "connections lost, for which sessions asked others" "$(wc -l <"$tmp/again")" [ -s "$tmp/again" ]
while read -r name was <&3 && read -r _ is <&4; do
  slack=4 # a descriptor or a thread that the runtime keeps
  [ "$name" != memory-KiB ] || slack=$((was / 4 + 4096))
  [ "$name" != threads ] || slack=$((4 + jobs)) # of as many as began at once
  [ "$name" != children ] || slack=0
  check "server: $name" "$was, then $is" [ "$is" -le $((was + slack)) ]
done 3<"$tmp/before" 4<"$tmp/after"
relays=$(connections_left)
check "connections left here" "$relays" [ "$relays" = 0 ]
check "files left here" "$(find "$TMPDIR" -mindepth 1 | wc -l)" [ -z "$(find "$TMPDIR" -mindepth 1)" ]
if [ $failed = 0 ]; then say "relay-soak: passed"; else say "relay-soak: FAILED"; fi
exit $failed
