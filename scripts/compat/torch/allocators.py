#: title: training with another allocator
#: part: 1
#: row: expandable_segments expandable_segments:True
#: row: cudaMallocAsync backend:cudaMallocAsync
#: row: pinned_register pinned_use_cuda_host_register:True,pinned_num_register_threads:4
#: row: gc_roundup garbage_collection_threshold:0.8,max_split_size_mb:64,roundup_power2_divisions:4
import os
import sys

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = sys.argv[1]
import compat

torch = compat.deterministic()
import models

compat.fact("backend", torch.cuda.memory.get_allocator_backend())
model = models.GPT(layers=2).cuda()
optim = torch.optim.AdamW(model.parameters())
for step in range(4):
    length = 64 << step  # segments grow
    ids = torch.randint(0, 8192, (4, length + 1), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids[:, :-1], ids[:, 1:])
    loss.backward()
    optim.step()
    optim.zero_grad()
    compat.fact("loss", loss.item())
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    x = torch.randn(1 << 22, device="cuda")
x.record_stream(torch.cuda.current_stream())
torch.cuda.current_stream().wait_stream(side)
compat.show("side", x)
h = torch.empty(32 << 20, dtype=torch.uint8).pin_memory()
h.fill_(7)
compat.show("pinned", h.cuda(non_blocking=True).sum())
compat.fact("allocated", torch.cuda.memory_allocated() > 0)
del x, h
torch.cuda.empty_cache()
try:
    torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    compat.fact("OOM recovers", torch.ones(10, device="cuda").sum().item())
