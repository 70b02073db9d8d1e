# Two network namespaces for two hosts, and a pair of veths for the link between them. Sourced after
# common.sh, by scripts that run as root. wire_up sets $here and $there, processes that hold the
# namespaces, and adds them to the array pids, which the script ends.

# stay_at NAMESPACE COMMAND...: becomes the command there.
stay_at() { exec nsenter -t "$1" -n -- "${@:2}"; }
at() { (stay_at "$@"); }

# wire_up [FLAG...]: 192.0.2.1 is at $here on wirea, 192.0.2.2 at $there on wireb. Fails where there
# are no network namespaces. With flags of `causeway-wire packets` packets are lost, held back and
# overtaken on the way.
wire_up() {
  local n
  unshare --net true 2>/dev/null || return 1
  unshare --net sleep infinity & here=$!; pids+=("$here")
  unshare --net sleep infinity & there=$!; pids+=("$there")
  for n in "$here" "$there"; do
    for _ in $(seq 600); do [ "$(readlink "/proc/$n/ns/net")" = "$(readlink /proc/self/ns/net)" ] || break; sleep 0.05; done
  done
  if [ $# = 0 ]; then
    at "$here" ip link add name wirea type veth peer name wireb netns "$there" || die "no veth here"
  else
    weather "$@"
  fi
  at "$here" ip address add 192.0.2.1/24 dev wirea; at "$here" ip link set wirea up; at "$here" ip link set lo up
  at "$there" ip address add 192.0.2.2/24 dev wireb; at "$there" ip link set wireb up; at "$there" ip link set lo up
}

# weather FLAG...: a link that misbehaves so, in the place of veths; $wire is its process, which
# says at SIGTERM what became of packets ($tmp/wire.out).
weather() {
  (cd "$ROOT" && CGO_ENABLED=0 go build -trimpath -o "$BUILD/bin/causeway-wire" ./scripts/wire) || die "scripts/wire does not build"
  # shellcheck disable=SC2154 # tmp is the script's
  "$BUILD/bin/causeway-wire" packets "$@" "$here" "$there" >"$tmp/wire.out" 2>&1 & wire=$!; pids+=("$wire")
  for _ in $(seq 600); do ! grep -qs ready "$tmp/wire.out" || return 0; sleep 0.1; done
  die "the link does not begin: $(cat "$tmp/wire.out")"
}

# cut NAMESPACE: its connections with the GPU server are reset. Prints why where it cannot be done.
cut() { at "$1" ss -K -t state established '( sport = :7745 or dport = :7745 )' 2>&1 >/dev/null | sed 's/^/ss: /'; }

# serve_there LEASE LOG: a GPU server at $there with the software GPU, whose lease is that file.
# Sets $server.
serve_there() {
  stay_at "$there" "$CAUSEWAY" serve-plain --listen 192.0.2.2:7745 --gpu soft --lease "$1" -v >"$2" 2>&1 & server=$!; pids+=("$server")
  for _ in $(seq 600); do ! grep -q serving "$2" 2>/dev/null || return 0; sleep 0.1; done
  die "the server does not begin: $(tail -n 3 "$2")"
}
