#!/bin/bash
# Runs as a unit in the VM of vm.sh, as root, with the packages in /root. Each check says "@causeway
# ok"; the first that fails ends it.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive

ok() { echo "@causeway ok $*"; }
fail() {
  echo "@causeway FAILED $*"
  systemctl --no-pager -l status causewayd.service
  journalctl --no-pager -b -n 40
  sync; echo "@causeway exit 1"; exit 1
}
must() { local what=$1; shift; "$@" >/root/last.log 2>&1 || { cat /root/last.log; fail "$what"; }; ok "$what"; }
pid_of() { causeway inspect "$1" --json | sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' | head -1; }
start_time() { awk '{print $22}' "/proc/$1/stat" 2>/dev/null; }
# same: the vGPU's process is the one from before, and causewayd says so.
same() { [ -n "$started" ] && [ "$(start_time "$device")" = "$started" ] && [ "$(pid_of vm1)" = "$device" ]; }
unit_of() { sed 's/.*\///' "/proc/$1/cgroup"; }
daemon_ready() { systemctl -q is-active causewayd.service && causeway ps >/dev/null; }
again() { local n; for n in $(seq 50); do "$@" && return; sleep 0.2; done; return 1; }

must "apt-get install" apt-get -q install -y --no-install-recommends /root/causeway.deb
must "causewayd runs" daemon_ready
must "causewayd is enabled" systemctl -q is-enabled causewayd.service
must "the units are right" systemd-analyze verify causewayd.service causeway-scheduler.service causeway.slice causeway-device@vm9.service
for unit in causewayd causeway-device@vm9; do
  [ "$(systemctl show -P DeviceAllow -P DevicePolicy $unit.service | tr -d '\n')" = auto ] || fail "$unit may not open GPUs: $(systemctl show -p DeviceAllow -p DevicePolicy $unit.service)"
done
ok "the units may open GPUs"
must "the group is there" getent group causeway
must "manual page" sh -c 'man causeway-daemon | grep -q causewayd'
causeway doctor >/root/doctor.log 2>&1
sed 's/^/   doctor: /' /root/doctor.log

must "a vGPU is made" causeway create vm1 --gpu soft --memory 64MiB
device=$(pid_of vm1)
started=$(start_time "$device")
scope=$(unit_of "$device")
[[ $scope == causeway-vm1-gpu0*.scope ]] || fail "the vGPU's process $device is in $scope, not in a scope of its own"
ok "its process is in $scope"
scheduler=$(unit_of "$(pgrep -f 'causeway scheduler')")
[[ $scheduler == causeway-scheduler*.scope ]] || fail "the scheduler is in $scheduler"
ok "the scheduler is in $scheduler"

must "systemctl restart causewayd" systemctl restart causewayd.service
again daemon_ready && same || fail "a restart of causewayd changed the vGPU's process"
ok "the vGPU is the same process after a restart"
must "systemctl reload causewayd" systemctl reload causewayd.service
kill -9 "$(systemctl show -P MainPID causewayd.service)"
sleep 1.5
again daemon_ready && same || fail "the vGPU after causewayd was killed"
ok "causewayd was killed, came back and found its vGPU"
must "systemctl stop causewayd" systemctl stop causewayd.service
[ "$(start_time "$device")" = "$started" ] || fail "stopping causewayd ended the vGPU"
ok "the vGPU outlives causewayd's stop"
must "systemctl start causewayd" systemctl start causewayd.service

old=$(causeway version)
must "an upgrade" apt-get -q install -y --no-install-recommends /root/next.deb
[ "$(causeway version)" != "$old" ] || fail "the upgrade changed no version"
again daemon_ready && same || fail "an upgrade changed the vGPU's process"
[[ $(readlink "/proc/$device/exe") == *deleted* ]] || fail "the vGPU's process is not the version from before: $(readlink "/proc/$device/exe")"
ok "the vGPU is the same process after an upgrade"
must "a vGPU of the new version beside it" causeway create vm2 --gpu soft --memory 64MiB

# AppArmor as libvirt confines QEMU with it. perl connects in QEMU's place.
connect() {
  cat >/root/profile <<P
#include <tunables/global>
profile causeway-test flags=(attach_disconnected) {
  #include <abstractions/libvirt-qemu>
  /usr/bin/perl mrix,
  /usr/lib/x86_64-linux-gnu/perl*/** mr,
  /usr/share/perl*/** r,
}
P
  apparmor_parser -r --base "$1" -I "$1" /root/profile || return 2
  aa-exec -p causeway-test -- perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Peer => "/run/causeway/vm2/gpu0.sock") or die "connect: $!\n"'
}
if [ -d /sys/kernel/security/apparmor ]; then
  for suite in bookworm trixie; do
    rm -rf /root/base; cp -r /etc/apparmor.d /root/base
    cp -r /root/rules/$suite/etc/apparmor.d/. /root/base/
    must "AppArmor lets QEMU of libvirt in $suite connect" connect /root/base
    sleep 0.5
    aa-exec -p causeway-test -- perl -e 'open(F, "<", "/etc/shadow") or exit 0; exit 1' || fail "AppArmor confines nothing"
    rm -rf /root/base/abstractions/libvirt-qemu.d
    if connect /root/base >/root/last.log 2>&1; then
      # Linux mediates connections to sockets with a path since 6.17, Ubuntu's kernels longer.
      ok "AppArmor of this kernel confines, but lets connect without the rule too"
    else
      grep -q 'Permission denied' /root/last.log || { cat /root/last.log; fail "AppArmor in $suite, without the rule"; }
      ok "without the rule it may not"
    fi
  done
else
  fail "this kernel has no AppArmor"
fi

# A VM uses vm1: somebody is connected to its socket.
perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new(Peer => "/run/causeway/vm1/gpu0.sock") or die; sleep 1000' &
user=$!
sleep 1
must "apt-get remove" apt-get -q remove -y causeway
[ "$(start_time "$device")" = "$started" ] || fail "removal ended a vGPU that a VM uses"
ok "removal left the vGPU that a VM uses"
[ ! -e /run/causeway/vm2/gpu0.sock ] || fail "removal left an idle vGPU"
ok "removal ended the vGPU that nobody uses"
kill $user; kill "$device"; sleep 1
must "apt-get purge" apt-get -q purge -y causeway
left=$(find / -xdev -name '*causeway*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/root/*' -not -path '/var/lib/apt/*' -not -path '/var/cache/*' -not -path '/var/log/*' 2>/dev/null)
[ -z "$left" ] || fail "purge leaves $left"
no_units() { [ -z "$(systemctl list-units --plain --no-legend 'causeway-*' 'causewayd*')" ]; }
again no_units || fail "purge leaves units: $(systemctl list-units --plain --no-legend 'causeway*')"
[ -z "$(pidof causeway)" ] || fail "purge leaves processes"
ok "purge leaves nothing"
sync
echo "@causeway exit 0"
