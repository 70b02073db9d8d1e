#: title: an index out of bounds trips a device assert: same error class and text, then every call fails
#: part: 1
import compat
import torch

x = torch.zeros(10, device="cuda")
try:
    x[torch.tensor([100], device="cuda")].cpu()
    compat.fact("no error")
except RuntimeError as e:
    compat.fact("first", type(e).__name__, str(e).splitlines()[0])
try:
    torch.ones(3, device="cuda").cpu()
    compat.fact("no error")
except RuntimeError as e:
    compat.fact("second", type(e).__name__, str(e).splitlines()[0])
