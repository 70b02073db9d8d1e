#: title: two processes on one GPU: torch.distributed with Gloo on GPU tensors, DDP
#: part: 4
#: timeout: 90
import os
import tempfile

import compat
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank, path):
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8).cuda())
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator("cuda").manual_seed(rank)
    for _ in range(5):
        loss = net(torch.randn(32, 64, device="cuda", generator=gen)).square().mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
    x = torch.full((1000,), float(rank), device="cuda")
    dist.all_reduce(x)
    if rank == 0:
        compat.show("weights", net.module.weight)
        compat.show("sum", x)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, (os.path.join(tempfile.mkdtemp(), "store"),), 2)
