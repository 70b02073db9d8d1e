#: title: several processes of one guest on one vGPU: tensors passed by CUDA IPC, spawned workers
#: part: 1
#: timeout: 90
import compat
import torch
import torch.multiprocessing as mp


def worker(q_in, q_out):
    t = q_in.get()
    t += 1  # the parent's memory
    torch.cuda.synchronize()
    q_out.put(t.sum().item())
    q_in.get()


def main():
    ctx = mp.get_context("spawn")
    q_in, q_out = ctx.Queue(), ctx.Queue()
    p = ctx.Process(target=worker, args=(q_in, q_out))
    p.start()
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float64)
    torch.cuda.synchronize()
    q_in.put(x)
    compat.fact("child", q_out.get(timeout=60))
    compat.show("parent sees", x)
    q_in.put(None)
    p.join(30)
    compat.fact("exit", p.exitcode)


if __name__ == "__main__":
    main()
