#!/bin/sh
# Says whether CUDA programs in this guest can use Causeway's virtual GPU, and if not, why and what
# to do.
#
#   /run/causeway/bin/check       as any user; the status is 0 if a program can use the GPU
here=$(cd "$(dirname "$0")/.." && pwd -P)
bad=0
ok() { printf 'ok      %s\n' "$*"; }
note() { printf 'note    %s\n' "$*"; }
failed() { printf 'FAILED  %s\n' "$1"; [ -z "${2-}" ] || printf '        %s\n' "$2"; bad=1; }
info() { sed -n "s/^$1=//p" "$here/info" 2>/dev/null; }

PATH=$PATH:/usr/sbin:/sbin
[ "$(uname -m)" = x86_64 ] && ok "kernel $(uname -r)" || failed "this guest is $(uname -m)" "Causeway's libraries are for x86_64"

tag=$(awk -v m="$here" '$2 == m && $3 == "virtiofs" { print $1 }' /proc/mounts | tail -n 1)
if [ -n "$tag" ]; then ok "device $tag is mounted at $here"; else failed "$here is not a virtiofs mount" "mount -t virtiofs gpu0 /run/causeway"; fi
if [ -n "$(info version)" ]; then ok "host: Causeway $(info version), $(info gpu)"
else failed "the host does not answer" "it may have ended: look at \`causeway ps\` and the device's log there"; fi
if [ -r "$here/session" ] && [ -w "$here/session" ]; then ok "this user may open sessions"
else failed "$(id -un) may not open $here/session" "check the mode of the folders above it"; fi

libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
case $libc in
glibc*) ok "$libc (2.17 or newer is needed)" ;;
*) failed "this guest's programs do not use glibc" "run CUDA programs in containers with glibc: $here/bin/setup --cdi" ;;
esac
cached=$(ldconfig -p 2>/dev/null | awk '/libcuda\.so\.1 .*x86-64/ { print $NF; exit }')
case $cached in
"$here"/lib/*) ok "programs find $cached" ;;
'')
	case :${LD_LIBRARY_PATH-}: in
	*:"$here/lib":*) ok "LD_LIBRARY_PATH leads programs to $here/lib" ;;
	*) failed "programs find no libcuda.so.1" "as root: $here/bin/setup; for one program: LD_LIBRARY_PATH=$here/lib PROGRAM" ;;
	esac ;;
*) failed "programs find another libcuda.so.1: $cached" "remove that driver's package, or LD_LIBRARY_PATH=$here/lib PROGRAM" ;;
esac
case :${LD_LIBRARY_PATH-}: in
*:"$here/lib":* | ::) ;;
*) note "LD_LIBRARY_PATH=$LD_LIBRARY_PATH comes before the library cache" ;;
esac
[ -z "${CAUSEWAY-}" ] || note "CAUSEWAY=$CAUSEWAY leads programs past the mount"

if [ -x "$here/bin/causeway-check" ]; then
	if [ $bad = 0 ]; then "$here/bin/causeway-check"; else LD_LIBRARY_PATH=$here/lib "$here/bin/causeway-check"; fi || bad=1
else
	note "this host serves no program to try: run one of yours"
fi

if [ -d /run/systemd/system ]; then
	unit=$(systemd-escape -p --suffix=mount "$here")
	case $(systemctl is-enabled "$unit" 2>/dev/null) in
	enabled) ok "mounted at every boot ($unit)" ;;
	*) note "not mounted at the next boot: as root, $here/bin/setup" ;;
	esac
elif ! grep -q "^[^#]*[[:space:]]$here[[:space:]]" /etc/fstab 2>/dev/null; then
	note "not mounted at the next boot: as root, $here/bin/setup"
fi
spec=$(grep -l "hostPath: $here," /etc/cdi/*.yaml 2>/dev/null | head -n 1)
if [ -n "$spec" ]; then
	ok "containers get it by --device $(sed -n 's/^kind: //p' "$spec")=$(sed -n 's/^  - name: "\(.*\)"$/\1/p' "$spec" | head -n 1)"
elif command -v docker podman >/dev/null 2>&1; then
	note "docker and podman do not know the GPU: as root, $here/bin/setup --cdi"
fi
exit $bad
