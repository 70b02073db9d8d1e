#: title: out of memory by filling the whole GPU, then work goes on
#: part: 1
#: alone: yes
import compat

torch = compat.deterministic()
held = []
try:
    while True:
        held.append(torch.empty(2 << 30, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    pass
compat.note("blocks of 2 GiB", len(held))
compat.fact("most of it", len(held) * (2 << 30) > 0.9 * torch.cuda.mem_get_info()[1])
held.clear()
x = torch.randn(1 << 30, device="cuda")  # 4 GiB: needs the allocator's retry after it freed its cache
compat.show("after", x[:1000])
