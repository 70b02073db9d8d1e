#: title: out of memory that recovers: one impossible request, a fraction limit, and work afterwards
#: part: 1
import compat

torch = compat.deterministic()
x = torch.ones(1 << 20, device="cuda")
for size in (1 << 40, 1 << 45):
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
        compat.fact("no error", size)
    except torch.OutOfMemoryError as e:
        text = str(e)
        compat.fact("OOM", text[: text.index("GPU 0") if "GPU 0" in text else 40])
        compat.fact("mentions", "this process has" in text.lower(), "total capacity" in text)
        compat.note("text", text)
compat.show("after", x.sum())
torch.cuda.set_per_process_memory_fraction(0.02)
held = []
try:
    while True:
        held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as e:
    compat.fact("limit", len(held))
del held
torch.cuda.empty_cache()
torch.cuda.set_per_process_memory_fraction(1.0)
compat.show("work", torch.randn(512, 512, device="cuda") @ torch.randn(512, 512, device="cuda"))
s = torch.cuda.memory_stats()
compat.fact("stats", s["num_ooms"], s["num_alloc_retries"])
