"""What the first launch of a collective costs its caller, and later ones: NCCL's all-reduce over two GPUs of one process, 28 kinds.

    python3 scripts/bench/nccl_first.py; build/bin/causeway run --gpu 0,1 -- python3 scripts/bench/nccl_first.py

Prints microseconds in the call, medians; the communicator is made before. Needs PyTorch and two GPUs."""
import statistics
import time

import torch
import torch.cuda.nccl as nccl


def settle():
    for i in range(2):
        torch.cuda.synchronize(i)


nccl.all_reduce([torch.ones(1024, device=f"cuda:{i}") for i in range(2)])
settle()
first, later = [], []
for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.float64, torch.uint8):
    for op in range(4):
        tensors = [torch.ones(1024, device=f"cuda:{i}", dtype=dtype) for i in range(2)]
        settle()
        took = []
        for n in range(6):
            start = time.perf_counter()
            nccl.all_reduce(tensors, op=op)
            took.append((time.perf_counter() - start) * 1e6)
            settle()
            if n == 0:
                time.sleep(0.03)
        if (dtype, op) != (torch.float32, 0):  # the one that made the communicator
            first.append(took[0])
        later += took[2:]
print(f"first {statistics.median(first):.1f} us (least {min(first):.1f}, most {max(first):.1f}), later {statistics.median(later):.1f} us")
