#!/usr/bin/env bash
# Runs the demo and the tests from zero in a clean Debian: what a newcomer's machine does, with none
# of this one's packages and files.
#
#   scripts/clean.sh [--suite bookworm|trixie] [--keep] [--resume DIR] [demo | test | STAGE]...
#       default: bookworm, demo and test
#
# Makes a minimal Debian (mmdebstrap's minbase and its plain sources) in a folder below TMPDIR or
# /var/tmp (15 GB for all of it), adds gcc, make and this machine's Go, copies this working tree
# into it, and runs `make demo`, `make test` or stages of scripts/test.sh there, in private
# namespaces of mounts and processes. The mirror, proxies and certificates are those that apt, pip
# and go use here. Prints what each run took; logs come to build/logs/clean-SUITE. --keep leaves the
# folder and names it, --resume goes on in it. Needs root.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/lib/apt.sh"
. "$ROOT/images/lib.sh"
. "$ROOT/scripts/package/chroot.sh"

args=("$@")
suite=bookworm keep= resume= runs=()
while [ $# -gt 0 ]; do
  case $1 in
    --suite) suite=$2; shift 2 ;;
    --keep) keep=1; shift ;;
    --resume) resume=$2 keep=1; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) runs+=("$1"); shift ;;
  esac
done
[ ${#runs[@]} -gt 0 ] || runs=(demo test)
[ "$(id -u)" = 0 ] || die "this needs root: it makes a chroot"
have go || die "Go is missing: it is copied into the chroot"
# mmdebstrap mounts /proc and the like below the folder that is deleted in the end: no other process
# may ever see them, nor they stay.
[ "${CAUSEWAY_UNSHARED:-}" = 1 ] || CAUSEWAY_UNSHARED=1 exec unshare --mount --propagation private "$0" "${args[@]}"
logs=$BUILD/logs/clean-$suite
mkdir -p "$logs"
dir=${resume:-$(mktemp -d "${TMPDIR:-/var/tmp}/causeway-clean.XXXXXX")}
tree=$dir/root
child=
# stop ends what runs inside, and with its first process all of it: unshare itself hears nothing
# else.
# shellcheck disable=SC2046
stop() { [ -z "$child" ] || kill -9 $(ps -o pid= --ppid "$child") 2>/dev/null || true; }
# There are no mounts below here by now; --one-file-system is the second lock.
on_exit 'stop; if [ -n "$keep" ]; then say "left: $dir"; else rm -rf --one-file-system "$dir"; fi'

# settings prints what apt, pip and go have to know here to reach their registries, as
# VARIABLE=VALUE.
settings() {
  env | grep -iE '^(https?|ftp|all|no)_proxy=|^PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|CERT|DEFAULT_TIMEOUT|RETRIES)=|^CAUSEWAY_DEBIAN_MIRROR=|^FUZZTIME=' || true
  local v value
  for v in GOPROXY GONOPROXY GOPRIVATE GOSUMDB GONOSUMDB GOINSECURE; do
    value=$(go env $v)
    [ -z "$value" ] || echo "$v=$value"
  done
}

# make_root makes the clean Debian, with what the README asks for: Go, gcc, make.
make_root() {
  say "making a minimal Debian, $suite, in $dir"
  image_tools
  image_tree "$suite" "$tree" gcc,make,debian-archive-keyring
  mkdir -p "$tree/usr/local"
  cp -a "$(go env GOROOT)" "$tree/usr/local/go"
  cp /etc/hosts "$tree/etc/hosts"
  [ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$tree/etc/pip.conf"
  apt-config dump | grep -E '^Acquire::(https?|ftp)::Proxy|^Acquire::Check-' >"$tree/etc/apt/apt.conf.d/90registry" || true
  # The installation of ca-certificates takes up what a machine adds to it.
  mkdir -p "$tree/usr/local/share/ca-certificates"
  cp -r /usr/local/share/ca-certificates/. "$tree/usr/local/share/ca-certificates/"
}

# copy_tree brings the working tree as it is, with its history: versions come from that.
copy_tree() {
  local src=$tree/root/causeway
  rm -rf "$tree/root/causeway.git"
  git clone -q --no-checkout --no-hardlinks "$ROOT" "$tree/root/causeway.git"
  mkdir -p "$src"
  rm -rf "$src/.git"; mv "$tree/root/causeway.git/.git" "$src/.git"; rmdir "$tree/root/causeway.git"
  # A second copy takes away what is no longer there; build/ stays.
  find "$src" -mindepth 1 -maxdepth 1 ! -name build ! -name .git -exec rm -rf {} +
  (cd "$ROOT" && git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do [ -e "$f" ] && printf '%s\0' "$f"; done |
    tar c --null -T -) | tar x --no-same-owner -C "$src"
  git -C "$src" -c safe.directory="$src" reset -q
}

inside() {
  local set; mapfile -t set < <(settings)
  in_root "$tree" env "${set[@]}" PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c 'cd /root/causeway && exec "$@"' - "$@"
}

# run NAME COMMAND... runs it in the clean Debian.
results=() bad=0
run() {
  local name=$1 start=$SECONDS rc=0; shift
  say "$suite: $* ..."
  inside "$@" >"$logs/$name.log" 2>&1 </dev/null &
  child=$!
  wait $child || rc=$?
  child=
  cp -r "$tree/root/causeway/build/logs/." "$logs/" 2>/dev/null || true
  if [ $rc = 0 ]; then results+=("$(printf '%-9s %-24s passed  %5d s' "$suite" "$*" $((SECONDS - start)))")
  else
    bad=1
    results+=("$(printf '%-9s %-24s FAILED  %5d s  see %s' "$suite" "$*" $((SECONDS - start)) "${logs#"$ROOT"/}/$name.log")")
  fi
  # The stages' table, or else what it ended with.
  if grep -q '^all passed in\|^FAILED after' "$logs/$name.log"; then grep -E '^[a-z]+ +(passed|FAILED|waited) .* s |^all passed in|^FAILED after' "$logs/$name.log"
  elif [ $rc != 0 ]; then tail -30 "$logs/$name.log"; fi
}

[ -n "$resume" ] || make_root
copy_tree
before=$(find "$tree/usr/bin" "$tree/usr/sbin" | wc -l)
stages=()
for r in "${runs[@]}"; do
  case $r in
    demo) run demo make demo ;;
    test) run test make test ;;
    *) stages+=("$r") ;;
  esac
done
[ ${#stages[@]} = 0 ] || run stages scripts/test.sh "${stages[@]}"
echo
printf '%s\n' "${results[@]}"
echo "$suite: $before programs at first, $(find "$tree/usr/bin" "$tree/usr/sbin" | wc -l) after"
exit $bad
