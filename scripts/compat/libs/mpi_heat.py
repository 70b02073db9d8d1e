#: title: two MPI processes on one GPU: a heat equation whose halves exchange their edges, and a spectral Poisson solver by distributed FFT
#: part: 4
#: timeout: 90
"""mpi4py over any MPI that mpiexec starts. Each step of the stencil sends one row each way; the FFT transposes by all-to-all."""
import os
import shutil
import sys

if "PMI_RANK" not in os.environ and "OMPI_COMM_WORLD_RANK" not in os.environ:
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    mpiexec = shutil.which("mpiexec") or (beside if os.path.exists(beside) else None) or sys.exit("no mpiexec on this machine")
    root = ["--allow-run-as-root"] if "open" in os.popen(f"{mpiexec} --version").read().lower() else []
    os.execv(mpiexec, [mpiexec, *root, "-n", "2", sys.executable, *sys.argv])

import compat
import cupy as cp
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank
assert size == 2

step = cp.RawKernel(
    r"""
extern "C" __global__ void step(const double *u, double *v, int rows, int cols) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y + 1;
  if (j > 0 && j < cols - 1 && i < rows - 1) {
    const double *p = u + (long)i * cols + j;
    v[(long)i * cols + j] = *p + 0.2 * (p[-1] + p[1] + p[-cols] + p[cols] - 4 * *p);
  }
}""",
    "step",
)


def heat(n=512, steps=200):
    """Each process has n/2 rows and one more on each side; the inner one is its neighbour's edge."""
    rows = n // 2 + 2
    u = cp.zeros((rows, n))
    u[1:-1, n // 4 : n // 2] = 1.0 + rank
    v = u.copy()
    mine, ghost = (1, 0) if rank else (rows - 2, rows - 1)
    out, into = np.empty(n), np.empty(n)
    for _ in range(steps):
        u[mine].get(out=out)
        comm.Sendrecv(out, other, recvbuf=into, source=other)
        u[ghost] = cp.asarray(into)
        step(((n + 127) // 128, rows - 2), (128,), (u, v, rows, n))
        u, v = v, u
    return u[1:-1]


def reference(n=512, steps=200):
    u = np.zeros((n + 2, n))
    u[1 : n // 2 + 1, n // 4 : n // 2] = 1.0
    u[n // 2 + 1 : -1, n // 4 : n // 2] = 2.0
    for _ in range(steps):
        v = u.copy()
        v[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.2 * (u[1:-1, :-2] + u[1:-1, 2:] + u[:-2, 1:-1] + u[2:, 1:-1] - 4 * u[1:-1, 1:-1])
        u = v
    return u[1:-1]


def transposed(a, n):
    """The other half of the transposed matrix: all-to-all of two blocks, through the host."""
    half = n // 2
    send = np.ascontiguousarray(np.stack([a[:, :half].T.get(), a[:, half:].T.get()]))
    recv = np.empty_like(send)
    comm.Alltoall(send, recv)
    return cp.asarray(np.concatenate([recv[0], recv[1]], axis=1))


def poisson(n=512):
    """Solves -laplace(u) = f on a torus: FFT of rows, transposition, FFT of columns, and back; returns the largest error."""
    half = n // 2
    x = 2 * np.pi * np.arange(n) / n
    y = x[rank * half : (rank + 1) * half]
    want = np.sin(3 * y)[:, None] * np.cos(5 * x)[None, :]
    f = cp.asarray(34.0 * want)
    k = cp.asarray(np.fft.fftfreq(n, 1 / n))
    spectrum = cp.fft.fft(transposed(cp.fft.fft(f, axis=1), n), axis=1)
    square = k[rank * half : (rank + 1) * half, None] ** 2 + k[None, :] ** 2
    spectrum = cp.where(square == 0, 0, spectrum / cp.where(square == 0, 1, square))
    u = cp.fft.ifft(transposed(cp.fft.ifft(spectrum, axis=1), n), axis=1).real
    return float(abs(u - cp.asarray(want)).max())


half = heat()
parts = comm.gather(half.get(), root=0)
errors = comm.gather(poisson(), root=0)
if rank == 0:
    whole = np.concatenate(parts)
    compat.show("heat", whole)
    compat.fact("heat agrees with the CPU", bool(abs(whole - reference()).max() < 1e-12))
    compat.fact("poisson agrees with the exact solution", all(e < 1e-10 for e in errors))
