# Trains a small model for so many steps and prints each loss, bit by bit: the curve must be the same however the session moves meanwhile.
#
#   train.py STEPS [PAUSE_MS] [HOW]     a pause behind each step gives moves time to come between them
#
# HOW: eager, a GPT (what is done by default); graphed, the same, captured into a CUDA graph after half of the steps; compiled, by torch.compile; conv, convolutions of
# cuDNN; segments, eager with allocations that grow by cuMemMap; async, with the allocations of cudaMallocAsync; asyncgraph, graphed with those; tiny, graphed, for a CPU that is emulated.
import os
import sys
import time
import types

steps, pause = int(sys.argv[1]), float(sys.argv[2] if len(sys.argv) > 2 else 0) / 1e3
how = sys.argv[3] if len(sys.argv) > 3 else "eager"
if how == "segments":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
if how == "compiled":
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
if how in ("async", "asyncgraph"):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
began = time.time()
import compat

torch = compat.deterministic()
if how == "tiny" and "torch._dynamo" not in sys.modules:  # optimizers import the compiler, which takes a minute there, to tell it of a boundary
    torch._dynamo = sys.modules["torch._dynamo"] = types.ModuleType("torch._dynamo")
    torch._dynamo.graph_break = lambda *_, **__: None
    torch._dynamo.disable = lambda fn, *_, **__: fn
import models

compat.note("import, s", f"{time.time() - began:.1f}")


def net():
    def block(n, m):
        return torch.nn.Conv2d(n, m, 3, stride=2, padding=1), torch.nn.BatchNorm2d(m), torch.nn.ReLU()

    return torch.nn.Sequential(*block(3, 32), *block(32, 64), torch.nn.Flatten(), torch.nn.Linear(64 * 64, 10))


gen = torch.Generator("cuda").manual_seed(1)
if how == "conv":
    model = net().cuda().to(memory_format=torch.channels_last)
    x = torch.empty(32, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.empty(32, dtype=torch.int64, device="cuda")
else:
    vocab, length, batch = (512, 33, 2) if how == "tiny" else (8192, 257, 4)
    model = (models.GPT(512, 64, 2, 1, 64) if how == "tiny" else models.GPT()).cuda()
    x = torch.empty(batch, length, dtype=torch.int64, device="cuda")
    y = None
forward = torch.compile(model) if how == "compiled" else model
optim = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True, capturable=True)
beside = torch.cuda.Stream()


def draw():
    if y is None:
        x.copy_(torch.randint(0, vocab, x.shape, device="cuda", generator=gen))
    else:
        x.copy_(torch.randn(x.shape, device="cuda", generator=gen))
        y.copy_(torch.randint(0, 10, y.shape, device="cuda", generator=gen))


def step():
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        loss = forward(x[:, :-1], x[:, 1:]) if y is None else torch.nn.functional.cross_entropy(forward(x).float(), y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    optim.zero_grad(set_to_none=True)
    return loss.detach(), norm.detach()


graph, out, longest, last = None, None, 0.0, time.time()
aside = torch.cuda.Stream()
for n in range(steps):
    draw()
    if graph is not None:
        graph.replay()
    elif how in ("graphed", "asyncgraph", "tiny") and n >= steps // 2:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        graph.replay()
    else:
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # where a graph is captured later the first steps are to be made
            out = step()
        torch.cuda.current_stream().wait_stream(aside)
    with torch.cuda.stream(beside):  # a copy that is in flight while the next step begins
        beside.wait_stream(torch.cuda.current_stream())
        sample = next(model.parameters())[0].flatten()[:8].detach().to("cpu", non_blocking=True)
    compat.fact("loss", n, out[0].item().hex(), out[1].item().hex())
    now = time.time()
    if n > 5 and n != steps // 2:
        longest = max(longest, now - last)
    last = now
    time.sleep(pause)
torch.cuda.synchronize()
compat.show("weights", torch.cat([p.flatten() for p in model.parameters()]))
compat.note("longest step, ms", f"{longest * 1e3:.0f}")
compat.note("whole, s", f"{time.time() - began:.1f}")
