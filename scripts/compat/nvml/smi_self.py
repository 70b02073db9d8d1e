#: title: nvidia-smi and NVML list the process that uses the GPU
#: part: 5
import os
import subprocess

import compat
import pynvml as n
import torch

x = torch.ones(64 << 20, device="cuda")
torch.cuda.synchronize()
smi = "/usr/local/nvidia/bin/nvidia-smi"
smi = smi if os.path.exists(smi) else "nvidia-smi"
out = subprocess.run([smi, "--query-compute-apps=pid,used_memory", "--format=csv,noheader"], capture_output=True, text=True, timeout=30)
compat.note("apps", out.stdout.split("\n"))
compat.fact("nvidia-smi lists me", out.returncode, any(line.split(",")[0].strip() == str(os.getpid()) for line in out.stdout.split("\n")))
n.nvmlInit()
mine = [p for p in n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0)) if p.pid == os.getpid()]
compat.fact("NVML lists me", len(mine))
compat.fact("with its memory", all(p.usedGpuMemory is not None and p.usedGpuMemory >= 256 << 20 for p in mine))
compat.fact("torch", torch.cuda.list_gpu_processes().count(str(os.getpid())))
