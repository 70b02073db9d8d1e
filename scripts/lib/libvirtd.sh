# A libvirtd of one's own, beside the machine's: sourced by libvirt.sh and migrate-libvirt.sh after
# common.sh.
# The script runs in namespaces of mounts, processes and networks, where /run, libvirt's folders and
# ports are private: nothing that is there belongs to the machine, or to another run of the script,
# and all of it ends with the script.

# needs_libvirt KERNEL installs libvirt and looks for what else a VM of it needs, before
# in_namespaces.
needs_libvirt() {
  [ "${CAUSEWAY_NAMESPACED:-}" != 1 ] || return 0
  "$ROOT/scripts/setup.sh" libvirt || exit 1
  [ -f "$BUILD/kernels/$1/vmlinuz" ] || die "no kernel $1 under build/kernels: run scripts/setup.sh kernels"
  [ -x "$CAUSEWAY" ] || die "build/bin/causeway is missing: run make build"
  have qemu-system-x86_64 || die "qemu-system-x86_64 is missing: run scripts/setup.sh qemu"
}

# in_namespaces SCRIPT ARGS... runs it again where /run and libvirt's folders are private, and
# returns if that is done already.
in_namespaces() {
  if [ "${CAUSEWAY_NAMESPACED:-}" = 1 ]; then
    # Only the loopback, with an address that the C library counts as one of a network's.
    ip link set lo up && ip address add 10.76.0.1/32 dev lo || die "there is no loopback"
    return 0
  fi
  [ "$(id -u)" = 0 ] || die "this needs root, for namespaces of mounts, processes and networks"
  have ip || die "ip is missing: install iproute2"
  mkdir -p /etc/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
  exec env CAUSEWAY_NAMESPACED=1 unshare --mount --pid --net --fork --kill-child --mount-proc --propagation private bash "$@"
}

# private_folders ROOT mounts what libvirtd and causewayd write, from below ROOT.
private_folders() {
  local d
  for d in etc lib log cache; do mkdir -p "$1/$d"; done
  cp -a /etc/libvirt/. "$1/etc/"
  rm -rf "$1/etc/qemu"; mkdir -p "$1/etc/qemu" "$1/etc/hooks/qemu.d"
  mount -t tmpfs -o mode=755 tmpfs /run
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  mkdir -p /run/lock /run/causeway
  mount --bind "$1/etc" /etc/libvirt
  mount --bind "$1/lib" /var/lib/libvirt
  mount --bind "$1/log" /var/log/libvirt
  mount --bind "$1/cache" /var/cache/libvirt
  # What libvirt would ask of a machine's services, and has to do without here.
  cat >/etc/libvirt/qemu.conf <<'E'
user = "root"
group = "root"
security_driver = "none"
dynamic_ownership = 0
remember_owner = 0
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
E
  printf 'auth_unix_rw = "none"\nlog_outputs = "2:stderr"\nhost_uuid = "%s"\n' "$(cat /proc/sys/kernel/random/uuid)" >/etc/libvirt/libvirtd.conf
}

libvirtd_pid=
# start_libvirtd LOG returns when it answers.
start_libvirtd() {
  libvirtd >>"$1" 2>&1 9>&- &
  libvirtd_pid=$!
  local _
  for _ in $(seq 600); do
    virsh version >/dev/null 2>&1 && return
    kill -0 "$libvirtd_pid" 2>/dev/null || break
    nap 0.1
  done
  tail -5 "$1" >&2
  die "libvirtd does not answer: see $1"
}

stop_libvirtd() {
  end "$libvirtd_pid"
  libvirtd_pid=
}
