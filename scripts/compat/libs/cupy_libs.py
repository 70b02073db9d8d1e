#: title: CuPy
#: part: 2
#: compare: numbers 1e-5
#: row: cupy_fft fft
#: row: cupy_linalg linalg
#: row: cupy_sparse sparse
#: row: cupy_streams streams
#: row: cupy_graph graph
#: row: cupy_memory memory
#: row: cupy_texture texture
import sys

import compat
import cupy as cp


def total(name, x):
    compat.fact(name, float(cp.abs(x).astype(cp.float64).sum()))


def fft():
    cp.random.seed(1)
    x = cp.random.random((64, 1000)).astype(cp.complex64)
    total("fft", cp.fft.fft(x))
    total("fft2", cp.fft.fft2(x))
    total("rfft", cp.fft.rfft(x.real))
    total("round trip", cp.fft.ifft(cp.fft.fft(x)) - x + 1)


def linalg():
    cp.random.seed(1)
    a = cp.random.random((64, 64)) + 64 * cp.eye(64)
    total("det", cp.linalg.slogdet(a)[1])
    total("inv", cp.linalg.inv(a))
    total("svd", cp.linalg.svd(a)[1])
    total("eigh", cp.linalg.eigvalsh(a + a.T))
    total("solve", cp.linalg.solve(a, cp.ones(64)))
    total("qr", cp.linalg.qr(a)[1])
    total("tensordot", cp.tensordot(a, a, axes=1))


def sparse():
    import cupyx.scipy.sparse as sp

    m = sp.random(500, 500, density=0.05, format="csr", random_state=3)
    total("spmv", m @ cp.ones(500))
    total("spmm", m @ cp.ones((500, 8)))
    total("spgemm", (m @ m).sum(axis=0))
    total("transpose", m.T.tocsr().data)


def streams():
    s = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]
    parts, events = [], []
    for k, st in enumerate(s):
        with st:
            parts.append(cp.arange(10000, dtype=cp.float64) * k)
            events.append(st.record())
    called = []
    s[0].launch_host_func(lambda x: called.append(x), 42)
    s[0].synchronize()
    for e in events:
        cp.cuda.Stream.null.wait_event(e)
    compat.fact("sum", float(sum(parts).sum()), called, all(e.done for e in events))
    e0, e1 = cp.cuda.Event(), cp.cuda.Event()
    e0.record()
    e1.record()
    e1.synchronize()
    compat.fact("elapsed", 0 <= cp.cuda.get_elapsed_time(e0, e1) < 1000)
    compat.fact("priority", cp.cuda.runtime.deviceGetStreamPriorityRange() if hasattr(cp.cuda.runtime, "deviceGetStreamPriorityRange") else "-")


def graph():
    st = cp.cuda.Stream(non_blocking=True)
    a = cp.zeros(1000)
    out = cp.zeros(1000)
    with st:
        cp.add(a, 1, out=out)  # compiled before the capture
        cp.multiply(out, 2, out=out)
        st.synchronize()
        st.begin_capture()
        cp.add(a, 1, out=out)
        cp.multiply(out, 2, out=out)
        g = st.end_capture()
        g.launch(st)
        st.synchronize()
        compat.fact("one", float(out.sum()))
        a += 5
        g.launch(st)
        st.synchronize()
        compat.fact("two", float(out.sum()))


def memory():
    pool = cp.get_default_memory_pool()
    x = cp.ones(1 << 20)
    compat.fact("used", pool.used_bytes(), pool.total_bytes())
    del x
    pool.free_all_blocks()
    compat.fact("freed", pool.used_bytes(), pool.total_bytes())
    with cp.cuda.using_allocator(cp.cuda.MemoryAsyncPool().malloc):
        total("async", cp.ones(1000) + 1)
    with cp.cuda.using_allocator(cp.cuda.malloc_managed):
        total("managed", cp.ones(1000) + 1)
    import cupyx

    p = cupyx.zeros_pinned(1000, dtype=cp.float32)
    p[:] = 3
    d = cp.empty(1000, dtype=cp.float32)
    d.set(p)
    total("pinned", d)
    try:
        cp.empty(1 << 44, dtype=cp.uint8)
    except cp.cuda.memory.OutOfMemoryError as e:
        compat.fact("OOM", type(e).__name__)
    compat.note("free", cp.cuda.Device().mem_info)
    compat.fact("cc", cp.cuda.Device().compute_capability, cp.cuda.Device().attributes["MultiProcessorCount"])


def texture():
    from cupy.cuda import texture as t
    from cupy.cuda import runtime as rt

    desc = t.ChannelFormatDescriptor(32, 0, 0, 0, rt.cudaChannelFormatKindFloat)
    arr = t.CUDAarray(desc, 64, 32)
    src = cp.arange(64 * 32, dtype=cp.float32).reshape(32, 64)
    arr.copy_from(src)
    obj = t.TextureObject(t.ResourceDescriptor(rt.cudaResourceTypeArray, cuArr=arr),
                          t.TextureDescriptor((rt.cudaAddressModeClamp,) * 2, rt.cudaFilterModeLinear, rt.cudaReadModeElementType))
    k = cp.RawKernel(r'extern "C" __global__ void k(float* o, cudaTextureObject_t t) { int x = threadIdx.x, y = blockIdx.x; o[y * 64 + x] = tex2D<float>(t, x + 0.75f, y + 0.5f); }', "k")
    out = cp.zeros((32, 64), cp.float32)
    k((32,), (64,), (out, obj))
    total("tex2D", out)
    back = cp.zeros_like(src)
    arr.copy_to(back)
    total("back", back)


globals()[sys.argv[1]]()
