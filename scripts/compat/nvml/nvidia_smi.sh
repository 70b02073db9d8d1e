#!/usr/bin/env bash
#: title: nvidia-smi: the driver package's; rows named own: Causeway's beside it
#: part: 5
#: fresh: yes
#: gpus: all
#: row: smi_table table
#: row: smi_list list
#: row: smi_query query
#: row: smi_xml xml
#: row: own_smi_table table own
#: row: own_smi_list list own
#: row: own_smi_query query own
#: row: own_smi_xml xml own
#: note: smi_table: digits masked, the list of processes left out
#: note: own_smi_table: digits masked, the list of processes left out; the version names Causeway
#: note: smi_xml: identity and memory sizes compared; protected memory is not offered to a vGPU
set -euo pipefail
smi=/usr/local/nvidia/bin/nvidia-smi
[ -x "$smi" ] || smi=$(command -v nvidia-smi)
# causeway run puts its own last in PATH; without it the last is the driver's.
if [ "${2:-}" = own ] && [ -n "${CAUSEWAY:-}" ]; then
  smi=$(type -aP nvidia-smi | tail -1)
  "$smi" --version | grep -q Causeway || { echo "no nvidia-smi of Causeway's in PATH"; exit 1; }
fi
case $1 in
  table) timeout 20 "$smi" | sed -E '1d; /Processes:/,$d; s/ \(Causeway\)//; s/[0-9.]+/N/g; s/ +/ /g' ;;
  list) timeout 20 "$smi" -L ;;
  query)
    timeout 20 "$smi" --query-gpu=index,name,memory.total,driver_version,compute_cap,count --format=csv
    timeout 20 "$smi" --query-gpu=memory.used,memory.free,utilization.gpu,utilization.memory,temperature.gpu,power.draw,clocks.sm --format=csv | sed -E 's/[0-9.]+/N/g' ;;
  xml) timeout 30 "$smi" -q -x | sed "/<cc_protected_memory_usage>/,/<\/cc_protected_memory_usage>/d" | grep -E '<(product_name|product_brand|product_architecture|driver_version|cuda_version|attached_gpus|total|compute_mode)>' ;;
esac
