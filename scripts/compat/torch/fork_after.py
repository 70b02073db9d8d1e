#: title: a child forked after CUDA was used gets PyTorch's own refusal, the parent works on
#: part: 1
import os
import sys

import compat

torch = compat.deterministic()
x = torch.ones(1000, device="cuda")
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    try:
        torch.ones(10, device="cuda")
        compat.fact("child", "no error")
    except RuntimeError as e:
        compat.fact("child", str(e)[:48])
    os._exit(0)
os.waitpid(pid, 0)
compat.show("parent", x.sum())
