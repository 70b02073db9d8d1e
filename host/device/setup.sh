#!/bin/sh
# Makes Causeway's virtual GPU permanent in this guest: mounts it at every boot and when it is
# plugged in, lets every program find its libraries, and lets docker, podman and others give it to
# containers. Run it as root from the mount:
#
#   /run/causeway/bin/setup [--cdi | --no-cdi]    with a CDI specification or without; by default if
#       there are containers
#   /run/causeway/bin/setup --remove              undoes all of it
#   setup --root DIR --tag TAG [--at MOUNT]       sets up the system in DIR, say an image that is
#       being built
#
# Running it again changes nothing. It writes below /etc, links nvidia-smi into /usr/local/bin if
# there is no other, and says what.
set -eu

root= tag= here= cdi=auto remove=
mark='# causeway'

say() { echo "causeway setup: $*"; }
die() { echo "causeway setup: $*" >&2; exit 1; }
usage() { sed -n '1d; /^#/!q; s/^# \{0,1\}//p' "$0"; }

while [ $# -gt 0 ]; do
	case $1 in
	--help | -h) usage; exit ;;
	--cdi) cdi=yes ;;
	--no-cdi) cdi=no ;;
	--remove) remove=yes ;;
	--root | --tag | --at)
		[ $# -gt 1 ] || die "$1 wants a value"
		case $1 in --root) root=${2%/} ;; --tag) tag=$2 ;; --at) here=$2 ;; esac
		shift ;;
	*) die "unknown argument $1: see --help" ;;
	esac
	shift
done
[ "$(id -u)" = 0 ] || die "must run as root: sudo $0"
if [ -n "$root" ]; then
	[ -d "$root/etc" ] || die "$root holds no system: there is no etc in it"
	[ -n "$tag" ] || [ -n "$remove" ] || die "--root wants --tag: the name of the device, as in gpu0"
	: "${here:=/run/causeway}"
else
	[ -n "$here" ] || here=$(cd "$(dirname "$0")/.." && pwd -P)
	[ -n "$tag" ] || tag=$(awk -v m="$here" '$2 == m && $3 == "virtiofs" { print $1 }' /proc/mounts | tail -n 1)
fi
case $here in /*) ;; *) die "$here is not absolute" ;; esac
case $here$tag in *[!A-Za-z0-9/._-]*) die "use letters, digits and /._- in the path of the mount and its tag: $here $tag" ;; esac

# unit is the name that systemd wants for a mount at $here.
unit=$(echo "${here#/}" | sed 's/-/\\x2d/g; s,/,-,g').mount
name=causeway # of this mount's files
[ "$here" = /run/causeway ] || name=causeway-$(basename "$here" | sed 's/^causeway-//')
etc=$root/etc
f_mount=$etc/systemd/system/$unit
f_cache=$etc/systemd/system/$name-libraries.service
f_udev=$etc/udev/rules.d/70-$name.rules
f_modules=$etc/modules-load.d/$name.conf
f_ld=$etc/ld.so.conf.d/00-causeway.conf
f_cdi=$etc/cdi/$name.yaml
fstab=$etc/fstab
smi=$root/usr/local/bin/nvidia-smi # a link to the mount's

# put FILE replaces a file by stdin if it differs, and says so.
put() {
	tmp=$1.causeway.$$
	mkdir -p "$(dirname "$1")"
	cat >"$tmp" || { rm -f "$tmp"; die "cannot write $1"; }
	if [ -f "$1" ] && cmp -s "$tmp" "$1"; then
		rm -f "$tmp"
		return
	fi
	chmod 644 "$tmp"
	mv "$tmp" "$1"
	changed=yes
	say "wrote ${1#"$root"}"
}

gone() {
	for f; do
		if [ -e "$f" ] || [ -L "$f" ]; then
			rm -f "$f"
			changed=yes
			say "removed ${f#"$root"}"
		fi
	done
}

# without FILE prints a file less our lines; without_put takes them out of it.
without() { if [ -f "$1" ]; then grep -v "$mark\$" "$1" || true; fi; }
without_put() { if [ -f "$1" ] && grep -q "$mark\$" "$1"; then without "$1" | put "$1"; fi; }

# Is the link ours, and is there an nvidia-smi of somebody else?
smi_ours() { [ "$(readlink "$smi" || true)" = "$here/bin/nvidia-smi" ]; }
smi_others() {
	for d in usr/bin usr/sbin bin sbin; do [ ! -e "$root/$d/nvidia-smi" ] || return 0; done
	{ [ -e "$smi" ] || [ -L "$smi" ]; } && ! smi_ours
}

ours() { [ -f "$f_ld" ] && [ "$(cat "$f_ld")" = "$here/lib" ]; }
live() { [ -z "$root" ] && [ -d /run/systemd/system ]; }
has() { [ -x "$root/usr/bin/$1" ] || [ -x "$root/usr/sbin/$1" ] || [ -x "$root/usr/local/bin/$1" ] || [ -x "$root/bin/$1" ] || [ -x "$root/sbin/$1" ]; }
systemd() { [ -x "$root/usr/lib/systemd/systemd" ] || [ -x "$root/lib/systemd/systemd" ]; }
reload() {
	if [ -n "$changed" ] && live; then
		systemctl daemon-reload || true
		udevadm control --reload 2>/dev/null || true
	fi
}
refresh() { [ -n "$root" ] || ! has ldconfig || ldconfig || say "ldconfig failed: set LD_LIBRARY_PATH=$here/lib"; }

changed=
if [ -n "$remove" ]; then
	if ours; then gone "$f_ld"; fi
	without_put "$etc/ld.so.conf"
	without_put "$fstab"
	if smi_ours; then gone "$smi"; fi
	gone "$f_mount" "$f_cache" "$f_udev" "$f_modules" "$f_cdi" "$etc/systemd/system/basic.target.wants/$unit" \
		"$etc/systemd/system/$unit.wants/$name-libraries.service"
	rmdir "$etc/systemd/system/$unit.wants" 2>/dev/null || true
	reload
	refresh
	[ -n "$root" ] || ! grep -q " $here virtiofs " /proc/mounts || say "$here stays mounted until the next boot; umount $here ends that"
	exit 0
fi

[ -n "$tag" ] || die "$here is not a virtiofs mount: run: mount -t virtiofs TAG /run/causeway && /run/causeway/bin/setup"
[ -n "$root" ] || [ "$(uname -m)" = x86_64 ] || die "this guest is $(uname -m), Causeway's libraries are for x86_64"
musl=
if ! [ -e "$root/lib64/ld-linux-x86-64.so.2" ]; then
	for f in "$root"/lib/ld-musl-*; do [ ! -e "$f" ] || musl=yes; done
fi
if [ -n "$musl" ] && [ "$cdi" != yes ]; then
	die "this guest's programs use musl, Causeway's libraries need glibc 2.17 or newer: use --cdi and run CUDA programs in containers with glibc"
fi

# mount at boot, and when the device comes later
if systemd; then
	without_put "$fstab"
	put "$f_mount" <<-UNIT
	[Unit]
	Description=Causeway virtual GPU $tag
	# The device may be absent: then nothing is mounted and nothing fails. Built-in or loaded, its driver has bound it by then.
	After=systemd-modules-load.service
	ConditionPathExistsGlob=/sys/bus/virtio/drivers/virtiofs/virtio*
	# Ordinary services start with the GPU in place; only the wait is theirs, a failed mount stops none.
	Before=basic.target

	[Mount]
	What=$tag
	Where=$here
	Type=virtiofs
	Options=nosuid,nodev,nofail
	# Programs may still have it open when it is unplugged.
	LazyUnmount=yes
	TimeoutSec=30

	[Install]
	WantedBy=basic.target
	UNIT
	if [ -z "$musl" ]; then
		put "$f_cache" <<-UNIT
		[Unit]
		Description=Library cache for Causeway's virtual GPU $tag
		DefaultDependencies=no
		After=$unit local-fs.target
		Before=basic.target shutdown.target
		Conflicts=shutdown.target
		ConditionPathExists=$here/lib/libcuda.so.1

		[Service]
		Type=oneshot
		# Packages may have run ldconfig while the mount was away.
		ExecStart=-/bin/sh -c 'ldconfig -p | grep -q $here/lib/libcuda.so.1 || ldconfig'
		UNIT
	fi
	# virtio_pci too: what comes first at boot waits for none of udev's.
	printf 'virtio_pci\nvirtiofs\n' | put "$f_modules"
	# Kernels from 6.9 on announce tags; older ones only that the driver has a device.
	put "$f_udev" <<-RULES
	SUBSYSTEM=="virtiofs", ACTION=="add", ENV{TAG}=="$tag", RUN+="/bin/systemctl --no-block start $unit"
	SUBSYSTEM=="virtiofs", ACTION=="remove", ENV{TAG}=="$tag", RUN+="/bin/systemctl --no-block stop $unit"
	SUBSYSTEM=="virtio", ACTION=="bind", DRIVER=="virtiofs", TEST!="/sys/fs/virtiofs", RUN+="/bin/systemctl --no-block start $unit"
	RULES
	wants=$etc/systemd/system/basic.target.wants/$unit
	if ! [ -L "$wants" ]; then
		mkdir -p "$(dirname "$wants")"
		ln -s "../$unit" "$wants"
		changed=yes
	fi
	wants=$etc/systemd/system/$unit.wants/$name-libraries.service
	if [ -z "$musl" ] && ! [ -L "$wants" ]; then
		mkdir -p "$(dirname "$wants")"
		ln -s "../$name-libraries.service" "$wants"
		changed=yes
	fi
else
	# nofail lets the guest boot without the device.
	{ without "$fstab"; echo "$tag $here virtiofs nosuid,nodev,nofail,x-mount.mkdir 0 0 $mark"; } | put "$fstab"
fi

# every program finds the libraries
first=$here
[ ! -f "$f_ld" ] || first=$(sed 's,/lib$,,' "$f_ld")
if [ -n "$musl" ]; then
	say "this guest's programs use musl: only containers with glibc can use the GPU"
elif [ "$first" != "$here" ]; then
	say "programs use $first unless told otherwise: LD_LIBRARY_PATH=$here/lib PROGRAM uses this one"
elif [ -f "$etc/ld.so.conf" ] && ! grep -q '^[[:space:]]*include.*ld\.so\.conf\.d' "$etc/ld.so.conf"; then
	{ without "$etc/ld.so.conf"; echo "$here/lib $mark"; } | put "$etc/ld.so.conf"
else
	[ -f "$etc/ld.so.conf" ] || echo 'include /etc/ld.so.conf.d/*.conf' | put "$etc/ld.so.conf"
	echo "$here/lib" | put "$f_ld"
fi

# nvidia-smi: the mount's, unless the guest has one; NVIDIA's reads the mount's library just as well
if [ -n "$musl" ] || [ "$first" != "$here" ]; then
	:
elif smi_others; then
	if smi_ours; then gone "$smi"; fi
elif ! smi_ours && { [ -n "$root" ] || [ -e "$here/bin/nvidia-smi" ]; }; then
	if mkdir -p "${smi%/*}" && ln -s "$here/bin/nvidia-smi" "$smi"; then say "linked ${smi#"$root"}"; else say "cannot link ${smi#"$root"}: run $here/bin/nvidia-smi"; fi
fi

# containers
if [ "$cdi" = auto ]; then
	cdi=no
	for p in docker podman containerd nerdctl crio k3s kubelet; do if has $p; then cdi=yes; fi; done
fi
if [ "$cdi" = yes ]; then
	# NVIDIA's kind is what documentation, compose files and Kubernetes manifests name.
	kind=nvidia.com/gpu devices=$tag
	[ "$first" != "$here" ] || devices="all 0 $tag"
	for f in "$etc"/cdi/* "$root"/var/run/cdi/*; do
		case $f in "$etc"/cdi/causeway*) continue ;; esac
		[ ! -f "$f" ] || ! grep -q "nvidia\.com/gpu\"\{0,1\},\{0,1\}\$" "$f" || { kind=causeway.dev/gpu; other=$f; }
	done
	{
		echo "# Written by Causeway's setup; setup --remove takes it away."
		echo "cdiVersion: 0.5.0"
		echo "kind: $kind"
		echo "devices:"
		for d in $devices; do
			# void tells NVIDIA's own runtime hook, if there is one, to stay out of it
			printf '  - name: "%s"\n    containerEdits:\n      env: [NVIDIA_VISIBLE_DEVICES=void]\n' "$d"
		done
		cat <<-SPEC
		containerEdits:
		  mounts:
		    - {hostPath: $here, containerPath: /run/causeway, options: [bind, nosuid, nodev]}
		SPEC
		# Where the loaders of Debian's and Fedora's kin look without a cache: a path that
		# the other does not have is made, and idle.
		for so in libcuda.so.1 libnvidia-ml.so.1; do
			for d in /usr/lib/x86_64-linux-gnu /usr/lib64; do
				echo "    - {hostPath: $here/lib/$so, containerPath: $d/$so, options: [bind, ro, nosuid, nodev]}"
			done
		done
		# An image's own is hidden, as with NVIDIA's toolkit.
		if [ -n "$root" ] || [ -e "$here/bin/nvidia-smi" ]; then
			echo "    - {hostPath: $here/bin/nvidia-smi, containerPath: /usr/bin/nvidia-smi, options: [bind, ro, nosuid, nodev]}"
		fi
		cat <<-SPEC
		  hooks:
		    - {hookName: createContainer, path: $here/bin/cdi-hook, args: [cdi-hook]}
		SPEC
	} | put "$f_cdi"
	[ "$kind" = nvidia.com/gpu ] || say "$other has nvidia.com/gpu already: containers get this GPU by --device $kind=${devices%% *}"
else
	gone "$f_cdi"
fi

reload
if live; then
	systemctl start "$unit" "$name-libraries.service" 2>/dev/null || true
fi
refresh
[ -n "$musl" ] || [ "$first" != "$here" ] || has ldconfig || say "there is no ldconfig here: set LD_LIBRARY_PATH=$here/lib"
if [ -n "$root" ]; then say "done: the system in $root mounts $tag at $here"; else say "done: $here/bin/check says whether the GPU works"; fi
