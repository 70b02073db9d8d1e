#: title: cuda.core: Device, Stream, Program, Linker, launch, memory resources, events, graphs
#: part: 2
import compat
import numpy as np

try:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
except ImportError:
    from cuda.core.experimental import Device, LaunchConfig, Program, ProgramOptions, launch

dev = Device(0)
dev.set_current()
s = dev.create_stream()
code = 'extern "C" __global__ void k(float* o, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) o[i] = 2.0f * i; }'
arch = "sm_" + "".join(map(str, dev.compute_capability))
compat.fact("device", dev.name, arch)
kernel = Program(code, code_type="c++", options=ProgramOptions(arch=arch)).compile("cubin").get_kernel("k")
buf = dev.allocate(4000, stream=s)
launch(s, LaunchConfig(grid=4, block=256), kernel, buf, np.int32(1000))
s.sync()
import cupy as cp

compat.show("result", cp.ndarray(1000, cp.float32, cp.cuda.MemoryPointer(cp.cuda.UnownedMemory(int(buf.handle), 4000, buf), 0)))
e = s.record()
e.sync()
compat.fact("event", e.is_done)
buf.close(s)
s.sync()
s.close()
