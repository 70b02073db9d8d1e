#: title: tensors and copies beyond 4 GiB, pageable and pinned
#: part: 1
#: timeout: 120
import compat

torch = compat.deterministic()
n = (5 << 30) + 12345
x = torch.arange(n // 8 + 1, dtype=torch.int64)  # 5 GiB
d = x.cuda()
compat.fact("up", bool((d == torch.arange(len(x), device="cuda")).all().item()))
d += 1
back = d.cpu()
compat.fact("down", bool(torch.equal(back, x + 1)))
tail = d[-1000:].cpu()
compat.show("tail", tail)
del back
e = torch.empty_like(d)
e.copy_(d)
compat.fact("on device", bool(torch.equal(d, e)))
compat.fact("sum", d.sum().item())
p = torch.empty((4 << 30) + 4096, dtype=torch.uint8).pin_memory()
p.fill_(3)
g = p.cuda(non_blocking=True)
compat.fact("pinned", g.long().sum().item() == 3 * len(p))
