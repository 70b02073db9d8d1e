# Shared by every script here; sourced, never run.
# Sets ROOT (the checkout) and BUILD (everything we download or make; never committed).

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=${CAUSEWAY_BUILD:-$ROOT/build}
CLANG_FORMAT=$BUILD/clang-format/clang_format/data/bin/clang-format # setup.sh clang-format
export LC_ALL=C

# What guests on an emulated CPU share, for those who source this. QEMU's largest CPU promises that
# strings are quick (rep movsb, rep stosb), so the guest's kernel and C library copy and clear whole
# pages that way, and the emulator goes byte by byte: without the promise it does words.
slow_strings=(erms fsrm fzrm fsrs fsrc)
# shellcheck disable=SC2034
tcg_cpu=max$(printf ',%s=off' "${slow_strings[@]}") tcg_cpu_xml="<cpu mode='maximum'>$(printf "<feature policy='disable' name='%s'/>" "${slow_strings[@]}")</cpu>"
# The kernel's words. no_timer_check: on a loaded machine an emulated timer can miss the kernel's
# boot-time test of it. A CPU that did not run for a minute or two is the machine's, which has
# others to run; one that stood still for longer (twice the first number, in seconds) is what tests
# of kernels that complain look for.
# shellcheck disable=SC2034
guest_append='console=ttyS0 quiet panic=-1 mitigations=off audit=0 no_timer_check watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=120'

# say announces a step before it is done; the clock is seconds since the script began.
say() { printf '[%3ds] %s\n' "$SECONDS" "$*" >&2; }

die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# header prints the comment at the head of the script that was called: its --help.
header() { sed -n '1d; /^#/!q; s/^# \{0,1\}//p' "$0"; }

# on_exit COMMAND has it run when the script ends, by a signal too.
on_exit() {
  # shellcheck disable=SC2064 # it is expanded when it runs
  trap "$1" EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

# end_below DIR ends what is left of this build's causeway that serves something below a folder of
# the script's own: a device process outlives its causewayd by design, and a signal to all of a
# group (timeout(1) sends such) ends the causewayd that would end it.
end_below() {
  local p
  while read -r p; do
    grep -qsF -- "$1/" "/proc/$p/cmdline" && kill -9 "$p" 2>/dev/null
  done < <(find /proc -maxdepth 2 -path '/proc/[0-9]*/exe' -lname "$BUILD/bin/causeway*" -printf '%h\n' 2>/dev/null | sed 's,^/proc/,,')
  return 0
}

have() { command -v "$1" >/dev/null 2>&1; }

# retry N CMD... repeats a command that depends on the network, waiting 2, 4, 8... seconds.
retry() {
  local n=$1 i wait=2; shift
  for ((i = 1; ; i++)); do
    "$@" && return 0
    ((i >= n)) && return 1
    say "attempt $i of $n failed: $1; again in ${wait}s"
    sleep "$wait"; wait=$((wait * 2))
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; return; fi
  have sudo || die "this step installs packages: run it as root or install sudo"
  sudo "$@"
}

# stamped FILE CONTENT: is FILE there and does it hold exactly CONTENT? A stamp names everything
# that
# decided what was built, so changing a pin or a recipe makes the step run again.
stamped() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

# expected VARIANT PROGRAM: the file of what a program of guest/tests prints; expected/VERSION/
# holds what differs with that version's runtime library.
expected() {
  local own=$ROOT/guest/tests/expected/${1%-*}/$2.txt
  [ -f "$own" ] || own=$ROOT/guest/tests/expected/$2.txt
  echo "$own"
}

# gcc_for_nvcc VERSION prints the compiler that this nvcc has to use where the machine's g++ is too
# new for it: 11.8 and 12.4 (our 12.9) cannot read the C++ library of 13 and newer.
gcc_for_nvcc() {
  case $1 in
    11.8 | 12.9) [ "$(g++ -dumpversion | cut -d. -f1)" -le 12 ] || echo g++-12 ;;
  esac
}
