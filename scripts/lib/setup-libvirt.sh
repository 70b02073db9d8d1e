# libvirtd with its QEMU driver, and virsh, for scripts/libvirt.sh; sourced by setup.sh.

LIBVIRT_PACKAGES=(libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients libvirt0 libvirt-daemon-common libvirt-daemon-log
  libvirt-common libvirt-daemon-lock)

# setup_libvirt installs what is missing of it. What a machine has already is taken as it is.
setup_libvirt() {
  have libvirtd && have virsh && compgen -G '/usr/lib/*/libvirt/connection-driver/libvirt_driver_qemu.so' >/dev/null && return
  have apt-get || die "libvirtd is missing: install libvirt's QEMU driver and virsh"
  say "installing libvirt (libvirtd, its QEMU driver and virsh, about 10 MB)"
  system_update
  local own; own=$(candidate_major libvirt-daemon)
  if [ "${own:-0}" -ge "$MIN_LIBVIRT_MAJOR" ]; then
    without_services retry 3 system_install "${LIBVIRT_PACKAGES[@]}"
  else
    without_services install_backports "${LIBVIRT_PACKAGES[@]/%/=$PIN_LIBVIRT}"
  fi || die "installing libvirt failed: see $APT_DIR/install.log"
}

# without_services COMMAND... installs packages whose services are neither started now nor at the
# next boot: tests start their own.
without_services() (
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then # Debian's own switch for it; a machine that has one has decided
    trap 'as_root rm -f $policy' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    printf '#!/bin/sh\nexit 101\n' | as_root install -m 755 /dev/stdin $policy
  fi
  before=$(enabled_units)
  "$@" || exit
  units=$(comm -13 <(echo "$before") <(enabled_units))
  # shellcheck disable=SC2086
  [ -z "$units" ] || as_root systemctl -q disable $units
)

enabled_units() { [ ! -d /run/systemd/system ] || systemctl list-unit-files --no-legend --state=enabled | awk '{print $1}' | sort; }
