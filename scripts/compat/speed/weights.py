#: speed: serve
import fcntl
import os

import speed
import torch
from safetensors.torch import load_file, save_file

size = int(os.environ.get("SPEED_WEIGHTS_GB", "4"))
path = os.path.join(os.environ["SPEED_DIR"], "weights.safetensors")
with open(path + ".lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not os.path.exists(path):  # the first process makes it, so it lies in the page cache
        blocks = {f"layers.{i}.weight": torch.empty(8192, 8192, dtype=torch.bfloat16).fill_(i) for i in range(size * 8)}
        save_file(blocks, path + ".new")
        os.rename(path + ".new", path)
        del blocks
total = os.path.getsize(path)
torch.cuda.init()
staging = torch.empty(64 << 20, dtype=torch.uint8).pin_memory()


def load():
    held = load_file(path, device="cuda")
    torch.cuda.synchronize()
    return held


def sample():
    held = []
    seconds = speed.clock(lambda: held.append(load()))
    held.clear()
    return total / seconds / 1e9


def mapped():
    import numpy

    data = torch.from_numpy(numpy.memmap(path, dtype=numpy.uint8, mode="c"))
    target = torch.empty(total, dtype=torch.uint8, device="cuda")
    return total / speed.clock(lambda: target.copy_(data)) / 1e9


load()
speed.serve(
    ("weights_safetensors", "GB/s", ">=1.0", sample),
    ("weights_mmap_copy", "GB/s", ">=1.0", mapped),
)
