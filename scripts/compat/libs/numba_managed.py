#: title: numba-cuda: managed arrays that kernels and NumPy use in turns, of every size, attached to the host, on streams, structured
#: part: 2
#: env: CAUSEWAY_MANAGED=gpu
import numpy as np

if not hasattr(np, "row_stack"):  # NumPy 2.5 took the name away that numba-cuda still overloads
    np.row_stack = np.vstack
import compat
from numba import cuda


@cuda.jit
def step(a, v):
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        a[i] = a[i] * 3 + v


@cuda.jit
def histogram(a, out):
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        cuda.atomic.add(out, a[i] % out.size, 1)


@cuda.jit
def move(points, by):
    i = cuda.grid(1)
    if i < points.size:
        points[i]["x"] += by
        points[i]["id"] = i


for n in (1, 1000, 70_001, 1_000_003):
    a = cuda.managed_array(n, dtype=np.int64)
    a[:] = want = np.arange(n)
    for turn in range(3):
        step[64, 128](a, turn)
        cuda.synchronize()
        a[turn % n] += 7
        want = want * 3 + turn
        want[turn % n] += 7
    assert (np.array(a) == want).all()
    compat.show(f"turns {n}", np.array(a))
h = cuda.managed_array(256, dtype=np.int32)
h[:] = 0
histogram[64, 128](a, h)
cuda.synchronize()
compat.fact("histogram", int(h.sum()), int(np.argmax(h)))
m = cuda.managed_array((300, 200), dtype=np.float32, order="F")
m[:, :] = 2
m[7, :] = np.arange(200)
compat.show("two-dimensional", np.ascontiguousarray(m))
p = cuda.managed_array(1000, dtype=np.dtype([("x", np.float32), ("id", np.int32)], align=True))
p["x"] = 1.5
move[8, 128](p, 2)
cuda.synchronize()
compat.fact("structured", float(p["x"].sum()), int(p["id"].sum()))
s = cuda.stream()
own = cuda.managed_array(50_000, dtype=np.int64, stream=s, attach_global=False)
own[:] = 1
cuda.synchronize()
compat.fact("attached to the host", int(own.sum()))
d = cuda.to_device(np.array(a))
step[64, 128](d, 1)
compat.fact("to device", bool((d.copy_to_host() == np.array(a) * 3 + 1).all()))
