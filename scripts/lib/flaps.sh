# Links that flap, for scripts/relay-soak.sh: --links of them between programs here and one GPU
# server, as veths of network namespaces or as connections through scripts/wire. Sourced after
# wire.sh.
# shellcheck disable=SC2154 # tmp, proxy, pids are the script's

# links_up N starts the server and the links; each has its lease, $tmp/leaseN. Sets $server, and
# $links_are for people.
links_up() {
  local i
  spaces=() wire_in=
  if [ -z "$proxy" ] && wire_up; then
    links_are="veths of network namespaces"
    serve_there "$tmp/lease0" "$tmp/server.log"
    spaces=("$here")
    for i in $(seq 1 $(($1 - 1))); do one_more "$i"; cp "$tmp/lease0" "$tmp/lease$i"; done
  else
    links_are="connections through a proxy"
    proxies_up "$1"
  fi
}

# one_more LINK: another namespace, from which the server's is reached by a veth of its own.
one_more() {
  local n
  unshare --net sleep infinity & n=$!; pids+=("$n"); spaces+=("$n")
  for _ in $(seq 600); do [ "$(readlink "/proc/$n/ns/net")" = "$(readlink /proc/self/ns/net)" ] || break; sleep 0.05; done
  at "$n" ip link add name wirea type veth peer name "wireb$1" netns "$there" || die "no veth here"
  at "$n" ip address add "198.18.$1.1/30" dev wirea; at "$n" ip link set wirea up; at "$n" ip link set lo up
  at "$there" ip address add "198.18.$1.2/30" dev "wireb$1"; at "$there" ip link set "wireb$1" up
  route_back "$n" "$1"
}
# route_back NAMESPACE LINK: a device that was down has lost it.
route_back() { at "$1" ip route replace 192.0.2.2 via "198.18.$2.2"; }

# proxies_up N: the server at an address of the loopback, and a proxy with a port for each link.
proxies_up() {
  local i address listeners=()
  ! have go || (cd "$ROOT" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$BUILD/bin/causeway-wire" ./scripts/wire) || die "scripts/wire does not build"
  address=$(own_loopback)
  start_serve "$address:7745" "$tmp/server.log" --gpu soft --lease "$tmp/lease" -v
  server=$service_pid; pids+=("$server")
  for i in $(seq 0 $(($1 - 1))); do
    listeners+=("$address:$((7800 + i))")
    sed "s/$address:7745/$address:$((7800 + i))/g" "$tmp/lease" >"$tmp/lease$i"
    chmod 600 "$tmp/lease$i"
  done
  mkfifo "$tmp/wire"
  "$BUILD/bin/causeway-wire" proxy "${listeners[@]}" "$address:7745" <"$tmp/wire" >"$tmp/wire.out" 2>&1 & pids+=($!)
  exec {wire_in}>"$tmp/wire"
  for _ in $(seq 600); do ! grep -q ready "$tmp/wire.out" || return 0; sleep 0.1; done
  die "the proxy does not begin: $(cat "$tmp/wire.out")"
}

# stay_before LINK COMMAND...: becomes the command on this side of the link.
stay_before() {
  local link=$1; shift
  if [ -n "$wire_in" ]; then exec "$@"; else stay_at "${spaces[link]}" "$@"; fi
}

# reset_link LINK END: its connections are reset, from this end (0) or the server's (1).
reset_link() {
  if [ -n "$wire_in" ]; then
    echo "reset $1" >&"$wire_in"
  elif [ "$2" = 0 ]; then
    cut "${spaces[$1]}" >/dev/null
  else
    at "$there" ss -K -t state established "( sport = :7745 )" dst "$(far_address "$1")" >/dev/null 2>&1
  fi
}
far_address() { if [ "$1" = 0 ]; then echo 192.0.2.1; else echo "198.18.$1.1"; fi; }
link_down() { if [ -n "$wire_in" ]; then echo "down $1" >&"$wire_in"; else at "${spaces[$1]}" ip link set wirea down; fi; }
link_up() {
  if [ -n "$wire_in" ]; then
    echo "up $1" >&"$wire_in"
  else
    at "${spaces[$1]}" ip link set wirea up
    [ "$1" = 0 ] || route_back "${spaces[$1]}" "$1"
  fi
}

# connections_left is how many connections to the server there are.
connections_left() {
  local n
  if [ -n "$wire_in" ]; then
    echo count >&"$wire_in"
    sleep 1
    awk '$1 == "connections" {n = $2} END {print n + 0}' "$tmp/wire.out"
  else
    for n in "${spaces[@]}"; do nsenter -t "$n" -n -- ss -H -t state established '( dport = :7745 )'; done | wc -l
  fi
}
