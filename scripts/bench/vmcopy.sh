#!/bin/sh
# Runs inside the test guest: large copies with transparent huge pages on and off, by staging and by extents; "name value unit" lines.
#   sh /app/vmcopy.sh MAXBYTES
thp=/sys/kernel/mm/transparent_hugepage/enabled
read -r up rest </proc/uptime
echo "# $(uname -r), $(nproc) CPUs, up $up s"
failed=0
for huge in always never; do
  echo $huge >$thp || failed=1
  for way in staging extents; do
    CAUSEWAY_COPY=$way timeout 60 /app/bench large "$1" >/tmp/lines || { echo "# thp_${huge} $way failed"; failed=1; }
    sed "s/^copy_/thp_${huge}_${way}_/" /tmp/lines
  done
done
exit $failed
