#!/usr/bin/env bash
#: title: nvidia-smi of the driver package: table, -L, queries
#: part: 5
#: compare: status
#: row: smi_table
#: row: smi_list -L
#: row: smi_query --query-gpu=name,memory.total,memory.used,utilization.gpu,driver_version,compute_cap --format=csv
#: row: smi_xml -q -x
#: row: smi_apps --query-compute-apps=pid,used_memory --format=csv
set -eu
smi=$(command -v nvidia-smi || echo /usr/local/nvidia/bin/nvidia-smi)
timeout 20 "$smi" "$@"
