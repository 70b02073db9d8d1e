#: title: pynvml: name, memory, utilisation, clocks, power, processes, attributes; the process sees itself
#: part: 5
import os

import compat
import pynvml as n
import torch

x = torch.ones(64 << 20, device="cuda")
torch.cuda.synchronize()
n.nvmlInit()
compat.fact("count", n.nvmlDeviceGetCount())
h = n.nvmlDeviceGetHandleByIndex(0)
compat.fact("name", n.nvmlDeviceGetName(h), n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion())
m = n.nvmlDeviceGetMemoryInfo(h)
compat.note("memory", m.total, m.used, m.free)
compat.fact("memory adds up", m.used >= 256 << 20, m.used + m.free <= m.total + (1 << 30))
compat.fact("capability", n.nvmlDeviceGetCudaComputeCapability(h))
u = n.nvmlDeviceGetUtilizationRates(h)
compat.fact("utilisation", 0 <= u.gpu <= 100, 0 <= u.memory <= 100)
ps = n.nvmlDeviceGetComputeRunningProcesses(h)
compat.note("processes", [(p.pid, p.usedGpuMemory) for p in ps], "me", os.getpid())
for f in ("nvmlDeviceGetUUID", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPerformanceState",
          "nvmlDeviceGetMinorNumber", "nvmlDeviceGetIndex", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMemoryBusWidth", "nvmlDeviceGetArchitecture",
          "nvmlDeviceGetBrand", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetPciInfo"):
    try:
        v = getattr(n, f)(h)
        compat.note(f, v if not hasattr(v, "busId") else v.busId)
        compat.fact(f, "answers")
    except n.NVMLError as e:
        compat.fact(f, str(e))
compat.fact("torch", torch.cuda.device_memory_used() > 0)
try:
    compat.fact("torch utilization", 0 <= torch.cuda.utilization() <= 100)
except Exception as e:
    compat.fact("torch utilization", str(e))
n.nvmlShutdown()
