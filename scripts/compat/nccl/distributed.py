#: title: torch.distributed with NCCL, one process per GPU: collectives, then DDP training
#: part: 4
#: gpus: 2
#: timeout: 150
#: compare: numbers 1e-5
import os

import compat
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    x = torch.full((1 << 20,), float(rank + 1), device="cuda")
    dist.all_reduce(x)
    parts = [torch.empty(1000, device="cuda") for _ in range(world)]
    dist.all_gather(parts, torch.arange(1000, device="cuda", dtype=torch.float32) * (rank + 1))
    a, b = torch.arange(4.0, device="cuda") + 10 * rank, torch.empty(4, device="cuda")
    dist.all_to_all_single(b, a)
    if rank == 0:
        dist.send(a, 1)
    else:
        dist.recv(a, 0)
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda())
    optim = torch.optim.SGD(net.parameters(), lr=0.01)
    gen = torch.Generator("cuda").manual_seed(rank)
    losses = []
    for _ in range(5):
        loss = net(torch.randn(128, 64, device="cuda", generator=gen)).square().mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        dist.all_reduce(loss := loss.detach())
        losses.append(loss.item())
    if rank == 0:
        compat.show("all_reduce", x)
        compat.show("all_gather", torch.stack(parts))
        compat.show("all_to_all", b)
        for v in losses:
            compat.fact("loss", v)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    mp.spawn(main, (2, port), 2)
