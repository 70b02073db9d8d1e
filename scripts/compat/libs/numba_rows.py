#: title: numba-cuda: kernels, shared memory, atomics, device functions, streams, random numbers, cooperative grid sync
#: part: 2
import numpy as np

if not hasattr(np, "row_stack"):  # NumPy 2.5 took the name away that numba-cuda still overloads
    np.row_stack = np.vstack
import compat
from numba import cuda, float32
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32


@cuda.jit
def add(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += i


@cuda.jit
def total(a, out):
    s = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    n = 128
    while n:
        if t < n:
            s[t] += s[t + n]
        cuda.syncthreads()
        n //= 2
    if t == 0:
        cuda.atomic.add(out, 0, s[0])


@cuda.jit
def draw(states, out):
    i = cuda.grid(1)
    out[i] = xoroshiro128p_uniform_float32(states, i)


@cuda.jit
def rounds(a):
    g = cuda.cg.this_grid()
    i = cuda.grid(1)
    for k in range(4):
        b = a[(i + 1) % a.size]
        g.sync()
        a[i] = b
        g.sync()


d = cuda.to_device(np.zeros(1024, np.float32))
add[4, 256](d)
compat.show("add", d.copy_to_host())
out = cuda.to_device(np.zeros(1, np.float32))
total[4, 256](d, out)
compat.show("total", out.copy_to_host())
o = cuda.device_array(1024, np.float32)
draw[4, 256](create_xoroshiro128p_states(1024, seed=1), o)
compat.show("random", o.copy_to_host())
s = cuda.stream()
with cuda.pinned(np.ones(1000)):
    pass
h = cuda.pinned_array(1024, np.float32)
d.copy_to_host(h, stream=s)
s.synchronize()
compat.show("stream", h)
r = cuda.to_device(np.arange(1024, dtype=np.int32))
rounds[4, 256](r)
compat.show("grid sync", r.copy_to_host())
m = cuda.managed_array(100, dtype=np.float32)
m[:] = 1
add[1, 128](m)
cuda.synchronize()
compat.show("managed", np.array(m))
compat.fact("name", cuda.get_current_device().name, cuda.get_current_device().compute_capability)
