#: title: loading weights from safetensors and torch.save files, to CPU first, straight to the GPU, and memory-mapped
#: part: 1
import os
import tempfile

import compat

torch = compat.deterministic()
from safetensors.torch import load_file, save_file

d = tempfile.mkdtemp()
path = os.path.join(d, "w.safetensors")
gen = torch.Generator().manual_seed(5)
save_file({f"layer{i}.weight": torch.randn(1024, 1024 + i, generator=gen).bfloat16() for i in range(24)}, path)
gpu = load_file(path, device="cuda")
cpu = load_file(path)
for k in cpu:
    assert torch.equal(gpu[k].cpu(), cpu[k]), k
compat.show("sum", torch.stack([v.double().sum() for v in gpu.values()]))
torch.save(cpu, os.path.join(d, "w.pt"))
mapped = torch.load(os.path.join(d, "w.pt"), mmap=True, map_location="cpu")
moved = {k: v.to("cuda", non_blocking=True) for k, v in mapped.items()}
direct = torch.load(os.path.join(d, "w.pt"), map_location="cuda")
torch.cuda.synchronize()
for k in cpu:
    assert torch.equal(moved[k], gpu[k]) and torch.equal(direct[k], gpu[k]), k
compat.fact("equal", len(cpu))
for f in os.listdir(d):
    os.remove(os.path.join(d, f))
os.rmdir(d)
