#!/usr/bin/env bash
# Runs the commands of docs/REMOTE.md as they are written, on two hosts that are name spaces of this
# machine: gpu1 with the software GPU (or a real one), and hosta.
#
#   scripts/remote-page.sh [PAGE]
#
# Each block says behind its language where it runs: "anywhere" beside both hosts, "gpu1" or "hosta"
# on that host; of a console's lines those behind "# " are run, and a block of toml is put at the
# end of that host's causewayd.toml, and its causewayd started anew. "gpu" is left out where gpu1
# has no real GPU, and said. What there is no network for between name spaces (ssh, scp) and no
# systemd, this script does. The status is 0 if every command succeeded. Needs root; some 10 s.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

case ${1:-} in -h | --help) header; exit ;; esac
page=${1:-$ROOT/docs/REMOTE.md} variant=13.0-static
[ "$(id -u)" = 0 ] || die "needs root, for name spaces"
have ip || die "ip is missing: install iproute2"
CAUSEWAY=$BUILD/bin/causeway
[ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
[ -x "$BUILD/tests/$variant/vectoradd" ] || die "no test program vectoradd: run scripts/build-tests.sh"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-page.XXXXXX")
log=$BUILD/logs/remote-page.log
mkdir -p "$BUILD/logs" "$tmp/bin" "$tmp/anywhere"; : >"$log"
declare -A address=([gpu1]=192.0.2.1 [hosta]=192.0.2.2) daemon=()
path=$BUILD/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cleanup() {
  local h pid
  for h in "${!address[@]}"; do
    pid=$(cat "$tmp/$h.pid" 2>/dev/null) && kill -9 "$pid" 2>/dev/null # the first process of its name space: all others go with it
  done
  wait
  rm -rf --one-file-system "$tmp"
}
on_exit cleanup

# host NAME makes one: the programs of this machine, a network, and a tree of its own for what is a
# host's.
host() {
  local h=$1 dir=$tmp/$1 d outer
  mkdir -p "$dir"/{etc,run,var/log,var/lib,tmp,root,dev,proc,sys} "$dir$ROOT" "$dir$BUILD"
  for d in usr bin sbin lib lib64; do
    if [ -L "/$d" ]; then cp -a "/$d" "$dir/"; elif [ -d "/$d" ]; then mkdir "$dir/$d"; fi
  done
  cp -aL /etc/ld.so.cache /etc/nsswitch.conf "$dir/etc/" 2>/dev/null || true
  echo root:x:0:0:root:/root:/bin/sh >"$dir/etc/passwd"
  echo root:x:0: >"$dir/etc/group"
  printf '%s\n' '127.0.0.1 localhost' "${address[gpu1]} gpu1" "${address[hosta]} hosta" >"$dir/etc/hosts"
  # shellcheck disable=SC2016 # the inner shell expands
  unshare --mount --net --uts --pid --fork --kill-child --propagation private bash -ec '
    dir=$1; shift
    mount --rbind "$dir" "$dir"
    for d in usr bin sbin lib lib64; do [ -L "/$d" ] || [ ! -d "/$d" ] || mount --rbind "/$d" "$dir/$d"; done
    for d; do mount --rbind "$d" "$dir$d"; done
    mount -t proc proc "$dir/proc"; mount --rbind /dev "$dir/dev"; mount --rbind /sys "$dir/sys"; mount -t tmpfs tmpfs "$dir/run"
    cd "$dir"; pivot_root . .; umount -l .; cd /
    while :; do sleep 3600 & wait $!; done' "$h" "$dir" "$ROOT" "$BUILD" >>"$log" 2>&1 & outer=$!
  until_true 30 started "$outer" "$h" || die "no name spaces for $h: see $log"
}
# started OUTER HOST: the first process of its name space is in a tree of its own.
started() {
  local pid
  pid=$(pgrep -P "$1") && [ "$(readlink "/proc/$pid/root" 2>/dev/null)" = / ] && [ -f "/proc/$pid/root/etc/hosts" ] && grep -q "gpu1" "/proc/$pid/root/etc/hosts" && echo "$pid" >"$tmp/$2.pid"
}
until_true() { # SECONDS COMMAND...
  local n=$(($1 * 10)); shift
  until "$@"; do n=$((n - 1)); [ $n -gt 0 ] || return 1; sleep 0.1; done
}
on() { # HOST COMMAND...
  local h=$1; shift
  nsenter -t "$(cat "$tmp/$h.pid")" --mount --net --uts --pid -- env -i -C /root "PATH=$path" HOME=/root LC_ALL=C "$@"
}
for h in gpu1 hosta; do host $h; done
ip_of() { nsenter -t "$(cat "$tmp/$1.pid")" --net -- ip "${@:2}"; }
ip_of hosta link add name wire type veth peer name wire netns "$(cat "$tmp/gpu1.pid")" || die "no veth between the hosts"
for h in gpu1 hosta; do
  ip_of $h address add "${address[$h]}/24" dev wire && ip_of $h link set wire up && ip_of $h link set lo up || die "no network of $h"
done
cp "$BUILD/tests/$variant/vectoradd" "$tmp/hosta/root/"

# ssh and scp of the page, for whom a host is a name space, and its files are below a folder.
cat >"$tmp/bin/ssh" <<SSH
#!/bin/bash
h=\${1#root@}; shift
exec nsenter -t "\$(cat "$tmp/\$h.pid")" --mount --net --uts --pid -- env -i -C /root "PATH=$path" HOME=/root LC_ALL=C bash -c "\$*"
SSH
cat >"$tmp/bin/scp" <<SCP
#!/bin/bash
to=\${!#} h=\${!#}; h=\${h#root@}; h=\${h%%:*}
exec cp "\${@:1:\$#-1}" "$tmp/\$h\${to#*:}"
SCP
chmod +x "$tmp/bin/ssh" "$tmp/bin/scp"

restart_causewayd() { # HOST, as systemctl restart causewayd
  local h=$1
  [ -z "${daemon[$h]:-}" ] || { kill "${daemon[$h]}"; wait "${daemon[$h]}" || true; }
  on "$h" "$CAUSEWAY" daemon >>"$log" 2>&1 & daemon[$h]=$!
  until_true 60 on "$h" causeway ps >/dev/null 2>&1 || { echo "causewayd of $h does not come up"; return 1; }
}

# run_block MARKS FILE: 2 if this machine lacks something.
run_block() {
  local marks=$1 file=$2 kind=${1%% *} where=
  set -- ${marks#* }
  where=$1; shift
  case " $* " in *" gpu "*) [ -e /dev/nvidiactl ] || return 2 ;; esac
  case $kind,$where in
    sh,anywhere) (cd "$tmp/anywhere" && PATH=$tmp/bin:$path timeout 120 bash -exo pipefail "$file" </dev/null) ;;
    toml,gpu1 | toml,hosta) mkdir -p "$tmp/$where/etc/causeway" && cat "$file" >>"$tmp/$where/etc/causeway/causewayd.toml" && restart_causewayd "$where" ;;
    console,gpu1 | console,hosta) sed -n 's/^# //p' "$file" >"$tmp/$where/root/block" && on "$where" timeout 300 bash -exo pipefail block </dev/null ;;
    sh,gpu1 | sh,hosta) cp "$file" "$tmp/$where/root/block" && on "$where" timeout 900 bash -exo pipefail block </dev/null ;;
    *) echo "no such place: $marks"; return 1 ;;
  esac
}

passed=0 left=0 number=0 marks= indent= start=
while IFS= read -r line <&4; do
  number=$((number + 1))
  if [ -z "$marks" ]; then
    # Blocks of a list are indented.
    if [[ $line =~ ^(\ *)'```'((sh|toml|console)\ .+)$ ]]; then indent=${BASH_REMATCH[1]} marks=${BASH_REMATCH[2]} start=$number; : >"$tmp/block"; fi
  elif [ "$line" != "$indent"'```' ]; then
    printf '%s\n' "${line#"$indent"}" >>"$tmp/block"
  else
    rc=0
    { echo "=== line $start: $marks"; cat "$tmp/block"; } >>"$log"
    run_block "$marks" "$tmp/block" >"$tmp/said" 2>&1 || rc=$?
    cat "$tmp/said" >>"$log"
    case $rc in
      0) passed=$((passed + 1)); echo "ok line $start ($marks)" ;;
      2) left=$((left + 1)); echo "left out: line $start ($marks): this machine has no GPU" ;;
      *) cat "$tmp/said"; echo "FAILED line $start ($marks), status $rc: see $log"; exit 1 ;;
    esac
    marks=
  fi
done 4<"$page"
[ -z "$marks" ] || die "the block at line $start of $page does not end"
# That the page has a program run on the other host's GPU, and what it prints.
want=$(grep -v '^#' "$(expected $variant vectoradd)" | tail -n 1)
grep -qxF -- "$want" "$log" || { echo "FAILED: no program of the page has printed \"$want\": see $log"; exit 1; }
echo "$passed passed, 0 failed, $left left out"
