#: title: NCCL with one rank on one GPU: communicator, collectives, DDP
#: part: 4
import os

import compat
import torch
import torch.distributed as dist

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
store = dist.TCPStore("127.0.0.1", 0, 1, True)
dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
dist.all_reduce(x)
out = [torch.empty_like(x)]
dist.all_gather(out, x)
dist.broadcast(x, 0)
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
net(torch.randn(8, 64, device="cuda")).square().mean().backward()
compat.show("all_reduce", x)
compat.show("all_gather", out[0])
compat.show("grad", net.module.weight.grad)
dist.barrier()
dist.destroy_process_group()
