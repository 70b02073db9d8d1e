#: title: CUDA graphs: capture and replay, several streams, random numbers, shared pools, training step
#: part: 1
import compat

torch = compat.deterministic()
x = torch.zeros(1024, device="cuda")
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    y = x + 1
    z = y * 2
for k in range(3):
    x.fill_(k)
    g.replay()
    compat.show(f"replay{k}", z)
side = torch.cuda.Stream()
a = torch.randn(256, 256, device="cuda")
a @ a  # the handle and its workspace exist before the capture
g2 = torch.cuda.CUDAGraph()
with torch.cuda.graph(g2, pool=g.pool()):
    b = a @ a
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        c = a + 1
    r = torch.rand(256, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    d = b + c
for k in range(2):
    g2.replay()
    compat.show(f"fork{k}", d)
    compat.show(f"rand{k}", r)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
optim = torch.optim.AdamW(model.parameters(), capturable=True)
inp, target = torch.randn(128, 64, device="cuda"), torch.randn(128, 1, device="cuda")


def step():
    optim.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(model(inp), target)
    loss.backward()
    optim.step()
    return loss


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(s)
g3 = torch.cuda.CUDAGraph()
with torch.cuda.graph(g3):
    loss = step()
for k in range(5):
    g3.replay()
    compat.fact("loss", loss.item())
h = torch.empty(1024).pin_memory()
g4 = torch.cuda.CUDAGraph()
with torch.cuda.graph(g4):
    h.copy_(z, non_blocking=True)
g4.replay()
torch.cuda.synchronize()
compat.show("copy out", h)
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()
    compat.fact("no error")
except Exception as e:  # a synchronising call ends the capture
    compat.fact("sync in capture", type(e).__name__, "capturing" in str(e))
torch.cuda.synchronize()
compat.show("after", x + 1)
