#: title: eight Python threads, a stream each, and autograd's own threads
#: part: 1
import threading

import compat

torch = compat.deterministic()
results = [None] * 8


def work(k):
    gen = torch.Generator("cuda").manual_seed(k)
    with torch.cuda.stream(torch.cuda.Stream()):
        w = torch.randn(256, 256, device="cuda", generator=gen, requires_grad=True)
        for _ in range(50):
            x = torch.randn(64, 256, device="cuda", generator=gen)
            loss = (x @ w).tanh().square().mean()
            (g,) = torch.autograd.grad(loss, w)
            w = (w - 0.1 * g).detach().requires_grad_()
        results[k] = w.detach().cpu()


threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
for t in threads:
    t.start()
for t in threads:
    t.join()
for k, r in enumerate(results):
    compat.show(f"thread{k}", r)
