#: speed: serve
import speed
import torch

x = torch.ones(1024, device="cuda")
# A kernel that touches one page takes up to a tenth longer if that page lies far from its multiprocessor, and the process that comes second
# on a GPU gets such pages, natively too: kernels of graphs touch many.
spread = [torch.ones(1 << 20, device="cuda")[:1024] for _ in range(64)]


def graph(n):
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for i in range(n):
            spread[i % len(spread)].add_(1)
    return g


def replay(g):
    def once():
        g.replay()
        torch.cuda.synchronize()

    for _ in range(10):
        once()
    return lambda: 1e6 * speed.clock(once, 100)


def item():
    return (x[0] + 1).item()


def tiny():
    for _ in range(200):
        x.add_(1)


tiny()
item()
measures = [
    ("torch_tiny_op", "us", "<=1.02", lambda: 1e6 * speed.clock(tiny, 10) / 200),
    ("torch_op_and_item", "us", "<=1.1", lambda: 1e6 * speed.clock(item, 500)),
]
try:
    measures += [("graph_80_replay", "us", "<=1.01", replay(graph(80))), ("graph_500_replay", "us", "<=1.01", replay(graph(500)))]
except RuntimeError as e:
    torch.cuda.synchronize()
    import sys

    print("graphs are left out:", e, file=sys.stderr)
speed.serve(*measures)
