# Programs of guest/tests/rounds in a guest of guest.sh's: sourced after it. The script sets tmp,
# kernel, and modes: which of them run.

# shellcheck disable=SC2034 # of the scripts' options
rounds_modes="streams threads pinned shared lasting waits idle times graphs images settings vmm training"

# other HOST: VMs move between a and b.
other() { if [ "$1" = a ]; then echo b; else echo a; fi; }

# rounds_image OUT FILE... makes the guest's image, with the programs and files of the script's own.
rounds_image() {
  local out=$1; shift
  build_life "$tmp/life" life gpu
  "$ROOT/scripts/build-tests.sh" --only 13.0-static rounds || die "guest/tests/rounds does not build: run scripts/setup.sh cuda 13.0"
  watch_script >"$tmp/watch"; chmod 755 "$tmp/watch"
  guest_image "$kernel" "$out" "$tmp/life" "$tmp/watch" "$BUILD/tests/13.0-static/rounds" "$@" || die "the guest image cannot be made"
}

# watch is run in the guest: `watch start|on|end MODE...` over programs of rounds.
watch_script() {
  cat <<'RUN'
#!/bin/sh
what=$1; shift
last() { sed -n 's/^@\(round\|done\) //p' "/tmp/rounds.$1" | tail -n 1; }
number() { set -- $(last "$1"); echo "${1:-0}"; }
# on_by MODE N SECONDS: its number of rounds reaches N, none wrong.
on_by() {
  for i in $(seq $(($3 * 10))); do
    [ "$(number "$1")" -lt "$2" ] && [ -d "/proc/$(cat "/tmp/pid.$1")" ] || break
    usleep 100000
  done
  mode=$1 want=$2
  set -- $(last "$mode")
  [ $# = 2 ] && [ "$1" -ge "$want" ] && [ "$2" = 0 ] && return
  echo "$mode is at: ${1:-no} rounds, ${2:-none} wrong"
  sed -n '/^@unlike /p' "/tmp/rounds.$mode" | head -n 6 # which words were wrong first
  tail -n 3 "/tmp/rounds.$mode"
  return 1
}
# fell MODE: it has ended by an error, and no round that it made was wrong.
fell() {
  [ ! -d "/proc/$(cat "/tmp/pid.$1")" ] && grep -q '^@round ' "/tmp/rounds.$1" && ! grep -q -e '^@done ' -e '^@round [0-9]* [1-9]' "/tmp/rounds.$1"
}
rc=0
case $what in
  start)
    for m; do # an emulated CPU pays 10 ms a round: moves are to find programs at work, not the whole machine
      rm -f /tmp/rounds.$m # the program opens it when it runs: what the one before wrote must be gone by then
      ROUNDS_NAP=30 ./rounds $m >/tmp/rounds.$m 2>&1 &
      echo $! >/tmp/pid.$m
    done
    for m; do on_by $m 5 120 || rc=1; done ;; # the first ones of lasting are short
  on)
    for m; do number $m >/tmp/at.$m; done
    for m; do read -r n </tmp/at.$m; on_by $m $((n + 2)) 120 || rc=1; done ;;
  on_but) # GONE MODE...: so many have ended by an error, all others go on
    gone=$1 ended=; shift
    for m; do number $m >/tmp/at.$m; done
    for m; do
      read -r n </tmp/at.$m
      on_by $m $((n + 2)) 120 >/tmp/why.$m && [ -d "/proc/$(cat /tmp/pid.$m)" ] && continue
      if fell $m; then ended="$ended $m"; else rc=1; cat /tmp/why.$m; fi
    done
    set -- $ended
    [ $# = "$gone" ] || { rc=1; echo "ended by an error: ${ended:- none}; $gone should be"; } ;;
  end)
    for m; do kill "$(cat /tmp/pid.$m)"; done
    for m; do
      for i in $(seq 600); do [ -d "/proc/$(cat /tmp/pid.$m)" ] || break; usleep 100000; done
      grep -q '^@done [1-9][0-9]* 0 ' /tmp/rounds.$m || { rc=1; echo "$m: $(tail -n 3 /tmp/rounds.$m)"; }
      all="$all $m $(sed -n 's/^@done \([0-9]*\) .*/\1/p' /tmp/rounds.$m)"
    done
    grep -h '^@curve ' /tmp/rounds.training 2>/dev/null
    echo "@rounds$all" ;;
esac
exit $rc
RUN
}
# programs start|on|end: their status; at the end $rounds says how many rounds each made, and $curve
# what training came to. programs on_but N: N of them have ended by an error, all others go on.
programs() {
  rounds= curve=
  send "./watch $* $modes"
  if [ "$1" = end ]; then
    [[ " $modes " != *" training "* ]] || { await '@curve *' 60 && curve=${line#@curve }; }
    await '@rounds *' 60 && rounds=${line#@rounds }
  fi
  await "@end $sent *" 120 && [ "${line##* }" = 0 ]
}

# same_curve trains here, on the GPU SEL, unmoved: each loss of $curve was the same. unmoved is what
# it came to.
same_curve() { # SEL
  [ -n "$curve" ] || return
  unmoved=$(ROUNDS_NAP=0 ROUNDS_STEPS=${curve%% *} timeout 300 "$CAUSEWAY" run --gpu "$1" -- "$BUILD/tests/13.0-static/rounds" training 2>&1 | sed -n 's/^@curve //p')
  [ "$unmoved" = "$curve" ]
}
