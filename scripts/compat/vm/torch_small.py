# A little of PyTorch for a guest whose CPU may be emulated: results compare with a native run of the same file.
import time

start = time.time()
import compat
import torch

compat.note("import torch", f"{time.time() - start:.1f} s")
torch.manual_seed(0)
a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
compat.note("first tensor", f"{time.time() - start:.1f} s")
compat.show("fp32", a @ b)
compat.show("bf16", a.bfloat16() @ b.bfloat16())
compat.show("softmax", torch.softmax(a, 1))
model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 30 * 30, 10)).cuda()
optim = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(16, 3, 32, 32, device="cuda")
for step in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    compat.fact("loss", loss.item())
for size in (1, 4096, 65537, 1 << 20, (16 << 20) + 5):
    h = (torch.arange(size, dtype=torch.int64) % 251).to(torch.uint8)
    p = h.pin_memory()
    d, e = h.cuda(), p.cuda(non_blocking=True)
    compat.show(f"copy {size}", (d ^ e).cpu())
    assert torch.equal(d.cpu(), h) and torch.equal(e.cpu(), h)
big = torch.ones(256 << 20, dtype=torch.uint8)
for name, h in (("pageable", big), ("pinned", big.pin_memory())):
    t = time.time()
    d = h.cuda()
    torch.cuda.synchronize()
    up = time.time() - t
    t = time.time()
    h.copy_(d)
    compat.note(f"256 MiB {name}", f"to the GPU {0.268 / up:.2f} GB/s, back {0.268 / (time.time() - t):.2f} GB/s")
compat.show("sum", d.long().sum())
compat.fact("name", torch.cuda.get_device_name())
compat.note("whole", f"{time.time() - start:.1f} s")
