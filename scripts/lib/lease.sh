# A GPU server's causewayd, and a host's with a lease of its GPU, both of this machine, over
# loopback and TLS; sourced after common.sh, device.sh and guest.sh.

lease_pids=()

# lease_begin FOLDER PORT REACHED GPU REMOTE_LINE [CREATE ARGS...]: programs run by `causeway run
# --remote vm1` with CAUSEWAY_RUN_DIR, which it sets. The server listens at PORT and is reached at
# REACHED; REMOTE_LINE is for [remote] of either configuration. FOLDER/created says what was had.
lease_begin() {
  local dir=$1 port=$2 reached=$3 gpu=$4 line=$5 software='' wish=() h; shift 5
  lease_ca() { "$CAUSEWAY" ca "$1" --dir "$dir/pki" "${@:2}" >/dev/null || die "no certificates"; }
  lease_answers() { [ -S "$dir/$1/causewayd.sock" ] && "$CAUSEWAY" ps --run-dir "$dir/$1" >/dev/null 2>&1; }
  lease_ca init; lease_ca issue gpu1 127.0.0.1; lease_ca issue hosta
  [ "$gpu" != soft ] || software="software_memory = '4GiB'"
  for h in gpu1 hosta; do
    mkdir -p "$dir/$h/pki"
    cp "$dir/pki/ca.pem" "$dir/pki/revoked" "$dir/$h/pki/" && cp "$dir/pki/$h.pem" "$dir/$h/pki/host.pem" && cp "$dir/pki/$h-key.pem" "$dir/$h/pki/host-key.pem" || die "no certificates"
    printf '%s\n' "run_dir = '$dir/$h'" "state_dir = '$dir/$h/state'" "log_dir = '$dir/$h/log'" '[devices]' "log = 'file'" "socket_owner = '$(id -u)'" '[placement]' "$software" \
      '[migration]' "ca = '$dir/$h/pki/ca.pem'" "certificate = '$dir/$h/pki/host.pem'" "key = '$dir/$h/pki/host-key.pem'" >"$dir/$h.toml"
  done
  printf '%s\n' '[remote]' "servers = ['127.0.0.1:$reached']" "$line" >>"$dir/hosta.toml"
  printf '%s\n' '[remote]' "$line" >>"$dir/gpu1.toml"
  "$CAUSEWAY" serve --listen "127.0.0.1:$port" --config "$dir/gpu1.toml" 9>&- >"$dir/gpu1.log" 2>&1 & lease_pids+=("$!")
  "$CAUSEWAY" daemon --config "$dir/hosta.toml" 9>&- >"$dir/hosta.log" 2>&1 & lease_pids+=("$!")
  for h in gpu1 hosta; do until_true 60 lease_answers $h || { tail -n 5 "$dir/$h.log" >&2; die "no causewayd of $h"; }; done
  [ "$gpu" != soft ] || wish=(--gpu soft) # else any: a real one comes first
  "$CAUSEWAY" create vm1 --remote any "${wish[@]}" "$@" --run-dir "$dir/hosta" >"$dir/created" 2>&1 || { cat "$dir/created" >&2; tail -n 5 "$dir/gpu1.log" >&2; die "no lease"; }
  export CAUSEWAY_RUN_DIR=$dir/hosta
}

# lease_end FOLDER, also after a lease_begin that failed.
lease_end() {
  local p f
  "$CAUSEWAY" delete vm1 --run-dir "$1/hosta" >/dev/null 2>&1
  for p in "${lease_pids[@]}"; do kill "$p" 2>/dev/null && wait "$p" 2>/dev/null; done
  for f in "$1"/*/scheduler.json; do [ ! -f "$f" ] || kill "$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$f")" 2>/dev/null; done
  end_below "$1"
  lease_pids=()
}
