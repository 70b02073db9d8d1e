#!/bin/sh
# Runs in a clean Debian, as root, with /root/causeway.deb. Every step must work.
set -eu

say() { echo "   $*"; }
die() { echo "   error: $*" >&2; exit 1; }
daemon= scheduler=
start() {
	causeway scheduler >/root/scheduler.log 2>&1 & scheduler=$!
	causeway daemon >/root/daemon.log 2>&1 & daemon=$!
	n=0
	until [ -S /run/causeway/causewayd.sock ]; do
		kill -0 $daemon 2>/dev/null || { cat /root/daemon.log >&2; die "causewayd ended"; }
		n=$((n + 1)); [ $n -lt 100 ] || die "causewayd makes no socket"
		sleep 0.1
	done
}

apt-get -q install -y --no-install-recommends /root/causeway.deb >/root/apt.log 2>&1 || { tail -20 /root/apt.log; die "apt-get install failed"; }
say "$(causeway version)"
dpkg -V causeway || die "files differ"
getent group causeway >/dev/null || die "no group"
for d in /run/causeway /var/lib/causeway /var/log/causeway; do [ -d $d ] || die "no $d"; done
[ "$(stat -c %a /etc/libvirt/hooks/qemu.d/causeway)" = 755 ] || die "the hook is not executable"
causeway run --gpu soft -- /bin/true
if causeway daemon --help >/dev/null 2>&1; then
	start
	causeway gpus
	kill $daemon $scheduler
fi
apt-get -q remove -y causeway >>/root/apt.log 2>&1 || { tail -20 /root/apt.log; die "apt-get remove failed"; }
[ -f /etc/causeway/causewayd.toml ] || die "removal took the configuration"
/etc/libvirt/hooks/qemu.d/causeway vm1 prepare begin - </dev/null || die "the hook of a removed package stops VMs"
apt-get -q purge -y causeway >>/root/apt.log 2>&1 || { tail -20 /root/apt.log; die "apt-get purge failed"; }
rm -f /root/apt.log /root/daemon.log /root/scheduler.log
