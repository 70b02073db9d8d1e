#: title: GPT training with autocast, GradScaler, clipping, AdamW
#: part: 1
#: row: gpt_bf16 bf16
#: row: gpt_fp16_scaler fp16
#: row: gpt_fp32 fp32
import sys

import compat

torch = compat.deterministic()
import models

kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[sys.argv[1]]
model = models.GPT().cuda()
optim = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=kind != torch.float32)
scaler = torch.amp.GradScaler("cuda", enabled=kind == torch.float16)
gen = torch.Generator("cuda").manual_seed(1)
for step in range(6):
    ids = torch.randint(0, 8192, (4, 257), device="cuda", generator=gen)
    with torch.autocast("cuda", dtype=kind, enabled=kind != torch.float32):
        loss = model(ids[:, :-1], ids[:, 1:])
    scaler.scale(loss).backward()
    scaler.unscale_(optim)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optim)
    scaler.update()
    optim.zero_grad(set_to_none=True)
    compat.fact("loss", loss.item(), norm.item(), scaler.get_scale())
compat.show("weights", torch.cat([p.flatten() for p in model.parameters()]))
