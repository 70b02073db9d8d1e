#!/bin/sh
# A createContainer hook (OCI runtime specification): puts the GPU's libraries, which are mounted by
# now, into the container's library cache, for what asks `ldconfig -p`. Programs that just load
# libcuda.so.1 find it without. It never fails a container.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
state=$(cat)
# Strings inside these texts have their quotes escaped, so nobody can slip in a field of the same
# name.
bundle=$(printf %s "$state" | tr -d '\n' | sed -n 's/.*[{,][[:space:]]*"bundle"[[:space:]]*:[[:space:]]*"\([^"\\]*\)".*/\1/p')
[ -n "$bundle" ] && [ -r "$bundle/config.json" ] || exit 0
root=$(tr -d '\n' <"$bundle/config.json" |
	sed -n 's/.*[{,][[:space:]]*"root"[[:space:]]*:[[:space:]]*{[^}]*"path"[[:space:]]*:[[:space:]]*"\([^"\\]*\)".*/\1/p')
case $root in
'' | /) exit 0 ;;
/*) ;;
*) root=$bundle/$root ;;
esac
# A container without a cache (musl, or nothing but one static program) needs none. ldconfig changes
# its root before it looks at anything, so links in the image lead nowhere outside.
if [ -e "$root/etc/ld.so.cache" ] && ! [ -L "$root/etc" ]; then ldconfig -X -r "$root" 2>/dev/null; fi
exit 0
