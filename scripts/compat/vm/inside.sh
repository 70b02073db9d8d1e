#!/bin/sh
# Runs inside the test guest: a program of the host's own Python tree, seen read-only through the
# share with tag "host".
#   sh /app/inside.sh COMMAND [ARG...]     with THP=always, madvise or never for the guest's own
#                                          pages
set -e
mkdir -p /host
mount -t virtiofs -o ro host /host
for d in proc sys dev tmp app; do mount --bind "/$d" "/host/$d"; done
mount --bind /run/causeway /host/run/causeway
[ -z "$THP" ] || echo "$THP" >/sys/kernel/mm/transparent_hugepage/enabled
read -r up rest </proc/uptime
echo "# share mounted $up s after power-on; $(grep MemTotal /proc/meminfo); THP $(cat /sys/kernel/mm/transparent_hugepage/enabled)"
exec chroot /host /usr/bin/env -i HOME=/tmp PATH=/usr/bin:/bin TMPDIR=/tmp LD_LIBRARY_PATH=/run/causeway/lib CAUSEWAY_LOG="$CAUSEWAY_LOG" \
  PYTHONPATH=/app/lib PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 "$@"
