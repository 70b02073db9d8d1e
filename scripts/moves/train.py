# Trains a small GPT for so many steps and prints each loss, bit by bit: the curve must be the same however the session moves meanwhile.
#
#   train.py STEPS [PAUSE_MS]     a pause behind each step gives moves time to come between them
import sys
import time

import compat

torch = compat.deterministic()
import models

steps, pause = int(sys.argv[1]), float(sys.argv[2] if len(sys.argv) > 2 else 0) / 1e3
model = models.GPT().cuda()
optim = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
gen = torch.Generator("cuda").manual_seed(1)
beside = torch.cuda.Stream()
longest, last = 0.0, time.time()
for step in range(steps):
    ids = torch.randint(0, 8192, (4, 257), device="cuda", generator=gen)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids[:, :-1], ids[:, 1:])
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    optim.zero_grad(set_to_none=True)
    with torch.cuda.stream(beside):  # a copy that is in flight while the next step begins
        sample = model.head.weight[0, :8].detach().to("cpu", non_blocking=True)
    compat.fact("loss", step, loss.item().hex(), norm.item().hex())
    now = time.time()
    if step > 5:
        longest = max(longest, now - last)
    last = now
    time.sleep(pause)
torch.cuda.synchronize()
compat.show("weights", torch.cat([p.flatten() for p in model.parameters()]))
compat.note("longest step, ms", f"{longest * 1e3:.0f}")
