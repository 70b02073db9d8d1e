#: title: torch.compile (Inductor, Triton), training; mode
#: part: 1
#: compare: numbers 2e-3
#: timeout: 150
#: row: compile_default default
#: row: compile_reduce_overhead reduce-overhead
#: row: compile_max_autotune max-autotune-no-cudagraphs
import sys

import compat

torch = compat.deterministic()
import models

torch._inductor.config.compile_threads = 1


def f(x):
    return torch.softmax(torch.sin(x) * 2 + x.cos(), -1)


mode = sys.argv[1]
x = torch.randn(512, 512, device="cuda")
compat.fact("pointwise", torch.compile(f, mode=mode)(x).double().square().sum().item())
if mode != "max-autotune-no-cudagraphs":
    model = models.GPT(layers=2, vocab=1024).cuda()
    step = torch.compile(model, mode=mode)
    optim = torch.optim.AdamW(model.parameters())
    for k in range(4):
        ids = torch.randint(0, 1024, (4, 129), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = step(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optim.step()
        optim.zero_grad()
        compat.fact("loss", loss.item())
else:
    mm = torch.compile(lambda a, b: (a @ b).relu(), mode=mode)
    compat.fact("mm", mm(x.bfloat16(), x.bfloat16()).double().sum().item())
