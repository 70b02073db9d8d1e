#: title: memory statistics, snapshot, empty_cache, memory pools
#: part: 1
import compat

torch = compat.deterministic()
keep = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (1, 3, 20, 100)]
del keep[1]
s = torch.cuda.memory_stats()
for k in ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current", "num_alloc_retries", "num_ooms", "segment.all.current", "allocation.all.allocated"):
    compat.fact(k, s[k])
compat.fact("summary", "Allocated memory" in torch.cuda.memory_summary())
compat.fact("snapshot", sorted((g["total_size"], g["allocated_size"]) for g in torch.cuda.memory_snapshot()))
free0, total = torch.cuda.mem_get_info()
keep.clear()
torch.cuda.empty_cache()
free1, _ = torch.cuda.mem_get_info()
compat.fact("reserved", torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved())
compat.note("free", free0, free1, total)
compat.fact("total", total)
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = torch.ones(1 << 20, device="cuda")
compat.show("pool", x.sum())
torch.cuda.memory._record_memory_history(max_entries=100)
y = torch.ones(5 << 20, device="cuda")
compat.fact("history", len(torch.cuda.memory._snapshot()["device_traces"][0]) > 0)
compat.fact("used", torch.cuda.device_memory_used() > 0)
