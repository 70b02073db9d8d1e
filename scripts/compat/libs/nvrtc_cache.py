#: title: NVRTC finds what it compiled: in the same process and in the next, with other options, with CUDA_CACHE_DISABLE
#: part: 2
#: note: --use_fast_math after other options is not compared: driver 580's cache leaves --ftz and two more out of its key, and gives the other program's code
import hashlib
import os
import subprocess
import sys
import time

import compat
from cuda.bindings import nvrtc

SOURCE = b"""
template <int N> __device__ float f(float x) { return f<N - 1>(x * 1.01f + sqrtf(x)) * x; }
template <> __device__ float f<0>(float x) { return x; }
extern "C" __global__ void k(float *p) { p[threadIdx.x] = f<60>(p[threadIdx.x]); }
"""


def ok(r):
    assert int(r[0]) == 0, r[0]
    return r[1] if len(r) == 2 else r[1:]


def build(name, *options, say=compat.fact):
    options = [b"--gpu-architecture=sm_90a", b"--enable-cache-trace", *options]
    program = ok(nvrtc.nvrtcCreateProgram(SOURCE, b"k.cu", 0, [], []))
    start = time.perf_counter()
    ok(nvrtc.nvrtcCompileProgram(program, len(options), options))
    took = time.perf_counter() - start
    log = b" " * ok(nvrtc.nvrtcGetProgramLogSize(program))
    ok(nvrtc.nvrtcGetProgramLog(program, log))
    image = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))
    ok(nvrtc.nvrtcGetCUBIN(program, image))
    say(name, "PTX found", b"retrieved cached ptx" in log, "cubin found", b"retrieved cached cubin" in log, hashlib.sha256(image).hexdigest()[:24])
    compat.note(name, f"{took * 1e3:.1f} ms")


if len(sys.argv) > 1:
    build(sys.argv[1])
else:
    build("first")
    build("second")
    build("no fused multiply-add", b"--fmad=false")
    build("fast", b"--use_fast_math", say=compat.note)
    build("second again")
    again = [sys.executable, os.path.abspath(__file__)]
    sys.stdout.flush()
    subprocess.run([*again, "the next process"], check=True)
    subprocess.run([*again, "disabled"], check=True, env={**os.environ, "CUDA_CACHE_DISABLE": "1"})
