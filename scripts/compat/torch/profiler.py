#: title: profiler
#: part: 1
#: row: profiler_off off
#: row: profiler_cpu cpu
#: row: profiler_cuda cuda
#: gap: profiler_cuda: GPU activity tracing needs CUPTI, which talks to the kernel driver beside libcuda; CPU times and results are unaffected
import sys

import compat

torch = compat.deterministic()
from torch.profiler import ProfilerActivity, profile, record_function


def work():
    with record_function("mine"):
        return (torch.ones(1000, device="cuda") + 1).sum().item()


kind = sys.argv[1]
if kind == "off":
    compat.fact("result", work())
    with torch.autograd.profiler.emit_nvtx(), torch.cuda.nvtx.range("r"):
        compat.fact("nvtx", work())
else:
    acts = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if kind == "cuda" else [])
    with profile(activities=acts) as p:
        compat.fact("result", work())
    events = p.key_averages()
    compat.fact("cpu events", any(e.key == "mine" for e in events), any(e.key == "aten::sum" for e in events))
    if kind == "cuda":
        compat.fact("gpu events", any(e.device_time_total > 0 for e in events))
