#!/bin/sh
# Runs inside the test guest: large copies with transparent huge pages on and off, by staging and by
# extents; "name value unit" lines.
#   sh /app/vmcopy.sh MAXBYTES
thp=/sys/kernel/mm/transparent_hugepage/enabled
read -r up rest </proc/uptime
echo "# $(uname -r), $(nproc) CPUs, up $up s"
# An emulated CPU takes rep movsb byte by byte, a hundred times slower than the vector loops that
# memcpy has as well.
export GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=0x7fffffff
failed=0
for huge in always never; do
  echo $huge >$thp || failed=1
  for way in staging extents; do
    CAUSEWAY_COPY=$way timeout 60 /app/bench large "$1" >/tmp/lines || { echo "# thp_${huge} $way failed"; failed=1; }
    sed "s/^copy_/cpus_$(nproc)_thp_${huge}_${way}_/" /tmp/lines
  done
done
exit $failed
