#!/bin/sh
# Runs in a clean Debian without systemd, as root, with /root/causeway.deb. Every step must work.
set -eu

say() { echo "   $*"; }
die() { echo "   error: $*" >&2; tail -n 20 -v /root/*.log >&2; exit 1; }
daemon=
start() {
	causeway daemon >>/root/daemon.log 2>&1 & daemon=$!
	n=0
	until causeway ps >/dev/null 2>&1; do
		kill -0 $daemon 2>/dev/null || die "causewayd ended"
		n=$((n + 1)); [ $n -lt 600 ] || die "causewayd does not answer"
		sleep 0.1
	done
}
stop() { kill $daemon; wait $daemon || true; }
pid_of() { causeway inspect "$1" --json | sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' | head -1; }

apt-get -q install -y --no-install-recommends /root/causeway.deb >/root/apt.log 2>&1 || die "apt-get install failed"
grep -q 'next, `causeway doctor`' /root/apt.log || die "the installation names no next step"
say "$(causeway version)"
dpkg -V causeway || die "files differ"
getent group causeway >/dev/null || die "no group"
for d in /run/causeway /var/lib/causeway /var/log/causeway; do [ -d $d ] || die "no $d"; done
[ "$(stat -c %a /etc/libvirt/hooks/qemu.d/causeway)" = 755 ] || die "the hook is not executable"
[ -s /usr/share/man/man1/causeway-daemon.1.gz ] || die "no manual pages"
# Documents that an installed file points to are there too, and each command has its page.
for f in $(grep -ohE '[A-Z][A-Z-]{2,}\.md' /usr/share/doc/causeway/*.md /etc/causeway/causewayd.toml /usr/lib/systemd/system/causeway* | sort -u); do
	[ -s "/usr/share/doc/causeway/$f" ] || [ "$f" = README.md ] || die "documents point to $f, which is not there"
done
for f in $(grep -ohE '\]\(images/[^)]*\)' /usr/share/doc/causeway/*.md | sed 's/^](//; s/)$//' | sort -u); do
	[ -s "/usr/share/doc/causeway/$f" ] || die "documents show $f, which is not there"
done
for f in $(grep -ohE '/usr/share/doc/causeway/[A-Z-]*\.md' /etc/causeway/causewayd.toml /usr/lib/systemd/system/causeway*); do [ -s "$f" ] || die "$f is not there"; done
for c in $(causeway help | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p' | sort -u); do
	[ "$c" = help ] || [ -s "/usr/share/man/man1/causeway-$c.1.gz" ] || die "causeway $c has no manual page"
done
case $(dpkg-query -W -f '${Maintainer}|${Homepage}' causeway) in
*.example*) die "the package names an example domain" ;;
*'<'*@*'>'*) ;;
*) die "the package names no maintainer" ;;
esac
causeway daemon --check >/dev/null || die "the configuration is not right"
causeway run --gpu soft -- /bin/true || die "causeway run fails"
causeway run --gpu soft -- nvidia-smi -L | grep -q '^GPU 0: ' || die "nvidia-smi finds no GPU under causeway run"
echo "<domain type='kvm'><name>vm0</name></domain>" | /etc/libvirt/hooks/qemu.d/causeway vm0 prepare begin - || die "the hook fails for a domain without vGPUs"

start
causeway doctor >/root/doctor.log 2>&1 || true # a chroot lacks KVM and libvirt: it says so and fails
grep -qi kvm /root/doctor.log || die "causeway doctor says nothing of KVM"
causeway create vm1 --gpu soft --memory 1GiB >/root/create.log || die "no vGPU"
[ -S /run/causeway/vm1/gpu0.sock ] || die "no socket"
before=$(pid_of vm1/gpu0)
[ -d "/proc/$before" ] || die "no device process: $before"
stop
[ -d "/proc/$before" ] || die "the device process ended with causewayd"
start
[ "$(pid_of vm1/gpu0)" = "$before" ] || die "causewayd did not find its vGPU again"
say "a vGPU, process $before, outlived causewayd"
causeway create vm2 --gpu soft --memory 1GiB >/root/create.log || die "no second vGPU"
causeway delete vm2
[ ! -e /run/causeway/vm2/gpu0.sock ] || die "a deleted vGPU's socket is there"

# Removal ends vGPUs that no VM uses, and takes no configuration.
apt-get -q remove -y causeway >>/root/apt.log 2>&1 || die "apt-get remove failed"
[ ! -d "/proc/$before" ] || die "an unused vGPU outlived the package"
[ -f /etc/causeway/causewayd.toml ] || die "removal took the configuration"
/etc/libvirt/hooks/qemu.d/causeway vm1 prepare begin - </dev/null || die "the hook of a removed package stops VMs"
n=0
while [ -n "$(readlink /proc/$daemon/exe)" ] && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.1; done
[ -z "$(readlink /proc/$daemon/exe)" ] || die "causewayd, which was started by hand, outlived the package"
wait $daemon || true
n=0 # keepers of the vGPUs that ended just now
while [ -n "$(pidof causeway || true)" ] && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.1; done
[ -z "$(pidof causeway || true)" ] || die "these processes go on: $(pidof causeway)"
apt-get -q purge -y causeway >>/root/apt.log 2>&1 || die "apt-get purge failed"
[ ! -e /var/lib/causeway ] && [ ! -e /var/log/causeway ] && [ ! -e /etc/causeway ] && [ ! -e /etc/libvirt ] || die "purge leaves folders"
[ -z "$(ls /run/causeway 2>/dev/null)" ] || die "purge leaves $(ls /run/causeway)"
rm -f /root/apt.log /root/daemon.log /root/create.log /root/doctor.log
