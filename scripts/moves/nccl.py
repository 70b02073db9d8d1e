# Sums up by NCCL over two GPUs of one process, in rounds, until SIGTERM: prints "@ready PID", "@round ROUNDS WRONG", and "@done ROUNDS WRONG 0" at the end. Each round's sums are the next one's
# input, as integers, so that they can be foretold.
import os
import signal
import sys
import time

import torch
from torch.cuda import nccl

over = False


def stop(*_):
    global over
    over = True


signal.signal(signal.SIGTERM, stop)
count, keep = 1 << 22, 1 << 20
gpus = [torch.device("cuda", i) for i in range(2)]
first = torch.arange(count, dtype=torch.int64)
parts = [(first * (i + 3) % 1009).to(d) for i, d in enumerate(gpus)]
still = [torch.full((keep,), 7 + i, dtype=torch.int32, device=d) for i, d in enumerate(gpus)]
want = [p.cpu() for p in parts]
print("@ready", os.getpid(), flush=True)
rounds = wrong = 0
said = 0.0
while not over:
    nccl.all_reduce(parts)
    for p in parts:
        p.remainder_(1009)
    parts[1].add_(1)
    total = (want[0] + want[1]) % 1009
    want = [total, total + 1]
    peer = parts[0].to(gpus[1])  # by the driver's own way between the two
    for got, expect in ((parts[0], want[0]), (parts[1], want[1]), (peer, want[0])):
        wrong += not torch.equal(got.cpu(), expect)
    wrong += sum(int((s != 7 + i).any()) for i, s in enumerate(still))
    rounds += 1
    if time.time() - said > 0.2:
        said = time.time()
        print("@round", rounds, wrong, flush=True)
print("@done", rounds, wrong, 0, flush=True)
sys.exit(wrong != 0)
