#: title: non_blocking copies on several streams, events, pinned and pageable, sizes 1 B to 64 MiB
#: part: 1
import compat

torch = compat.deterministic()
streams = [torch.cuda.Stream() for _ in range(4)]
gen = torch.Generator().manual_seed(3)
for size in (1, 3, 4096, 65537, 1 << 20, (16 << 20) + 5, 64 << 20):
    host = torch.randint(0, 255, (size,), dtype=torch.uint8, generator=gen)
    pinned = host.pin_memory()
    back = [torch.empty(size, dtype=torch.uint8).pin_memory() for _ in streams]
    done = []
    for k, s in enumerate(streams):
        with torch.cuda.stream(s):
            d = (pinned if k % 2 == 0 else host).to("cuda", non_blocking=True)
            d += k
            back[k].copy_(d, non_blocking=True)
            done.append(s.record_event())
    for e in done:
        e.synchronize()
    for k in range(len(streams)):
        assert torch.equal(back[k], host + k), (size, k)
    two = host[: size // 2 * 2].view(-1, 2).cuda()[:, 1].cpu()  # strided
    assert torch.equal(two, host[: size // 2 * 2].view(-1, 2)[:, 1])
    compat.show(str(size), back[3])
m = torch.arange(1 << 20, dtype=torch.float32).view(1024, 1024)
compat.show("2d", m.cuda()[10:500, 3:77].contiguous().cpu())
compat.show("to 2d", torch.zeros(1024, 1024, device="cuda").index_copy(0, torch.arange(8, device="cuda"), m[:8].cuda()))
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
a.record()
torch.ones(1 << 24, device="cuda").cumsum(0)
b.record()
b.synchronize()
compat.fact("elapsed is sane", 0 < a.elapsed_time(b) < 10000, a.query(), b.query())
compat.fact("priorities", torch.cuda.Stream.priority_range())
