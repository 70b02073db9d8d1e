#: title: NCCL, one process over two GPUs: all-reduce, all-gather, broadcast, reduce-scatter; peer copies
#: part: 4
#: gpus: 2
import compat
import torch
import torch.cuda.nccl as nccl

x = [torch.full((1 << 20,), float(i + 1), device=f"cuda:{i}") for i in range(2)]
compat.fact("version", nccl.version())
nccl.all_reduce(x)
for i in range(2):
    compat.show(f"all_reduce{i}", x[i])
out = [torch.empty(2 << 20, device=f"cuda:{i}") for i in range(2)]
nccl.all_gather([torch.arange(1 << 20, device=f"cuda:{i}", dtype=torch.float32) + i for i in range(2)], out)
for i in range(2):
    compat.show(f"all_gather{i}", out[i])
b = [torch.randn(1000, device=f"cuda:{i}", generator=torch.Generator(f"cuda:{i}").manual_seed(i)) for i in range(2)]
nccl.broadcast(b)
compat.fact("broadcast", torch.equal(b[0].cpu(), b[1].cpu()))
r = [torch.empty(1 << 19, device=f"cuda:{i}") for i in range(2)]
nccl.reduce_scatter(x, r)
compat.show("reduce_scatter", r[1])
y = out[0].to("cuda:1")
compat.fact("peer copy", torch.equal(y.cpu(), out[0].cpu()), torch.cuda.can_device_access_peer(0, 1))
