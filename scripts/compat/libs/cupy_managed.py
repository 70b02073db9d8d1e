#: title: CuPy on a pool of managed memory, as RAPIDS uses: arrays, kernels, the processor's own access, memory that goes back and comes again
#: part: 2
#: compare: numbers 1e-5
#: env: CAUSEWAY_MANAGED=gpu
import ctypes

import compat
import cupy as cp
import numpy as np

pool = cp.cuda.MemoryPool(cp.cuda.malloc_managed)
cp.cuda.set_allocator(pool.malloc)


def host(x):
    """The processor's view of an array's own memory."""
    cp.cuda.Device().synchronize()
    return np.ctypeslib.as_array(ctypes.cast(x.data.ptr, ctypes.POINTER(ctypes.c_uint8)), (x.nbytes,)).view(x.dtype).reshape(x.shape)


x = cp.arange(3_000_000, dtype=cp.float64)
y = cp.sqrt(x) + 1
compat.fact("sum", float(y.sum()))
h = host(y)
compat.fact("seen by the processor", float(h[::1000].sum()), float(h[-1]))
h[:] = 2  # and written by it
compat.fact("and written", float(y.sum()), float((x * y)[-1]))

keys = cp.random.RandomState(5).randint(0, 1000, 500_000)
values, counts = cp.unique(keys, return_counts=True)
compat.fact("group", len(values), int(host(counts).sum()), int(counts.max() >= counts.min()))
order = cp.argsort(keys, kind="stable")
compat.fact("sorted", bool((np.diff(host(keys[order])) >= 0).all()))

m = cp.arange(512 * 512, dtype=cp.float32).reshape(512, 512) % 7
compat.fact("product", float((m @ m.T).sum()))
host(m)[0, :] = 0
compat.fact("after a row of zeros", float((m @ m.T).sum()))

scale = cp.RawKernel("extern \"C\" __global__ void scale(float *p, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i] *= 3; }", "scale")
a = cp.ones(100_000, dtype=cp.float32)
for k in range(5):
    scale((400,), (256,), (a, a.size))
    host(a)[k] = 1
compat.show("kernel and processor in turn", a)

sizes = [100, 5_000, 70_000, 900_000, 3_000_000]
for turn in range(4):
    some = [cp.full(n, turn, dtype=cp.int32) for n in sizes]
    compat.fact("turn", turn, [int(host(s)[-1]) + int(s.sum()) for s in some])
    del some
compat.fact("held by the pool", pool.used_bytes() > 0, pool.total_bytes() >= pool.used_bytes())
with cp.cuda.Stream(non_blocking=True) as s:
    b = cp.arange(200_000, dtype=cp.int64)
    b *= 2
    s.synchronize()
    compat.fact("stream", int(host(b)[777]), int(b.sum()))
g = cp.arange(1000, dtype=cp.float32)
p = cp.cuda.runtime.pointerGetAttributes(g.data.ptr)
compat.fact("memory type", int(p.type))
del x, y, h, keys, values, counts, order, m, a, b, g
pool.free_all_blocks()
compat.fact("given back", pool.used_bytes(), pool.total_bytes())
