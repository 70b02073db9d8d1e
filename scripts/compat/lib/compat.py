"""What the compatibility programs print. Lines that begin with '#' are not compared; every other line is."""
import hashlib
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _bytes(x):
    if hasattr(x, "detach"):  # torch
        import torch

        x = x.detach().contiguous().cpu()
        return x.reshape(-1).view(torch.uint8).numpy().tobytes(), tuple(x.shape), str(x.dtype)
    if hasattr(x, "get") and not isinstance(x, dict):  # cupy
        x = x.get()
    import numpy

    x = numpy.ascontiguousarray(x)
    return x.tobytes(), x.shape, str(x.dtype)


def show(name, x):
    """One array, bit by bit: shape, type, SHA-256 of its bytes."""
    raw, shape, kind = _bytes(x)
    print(f"{name} {list(shape)} {kind} {hashlib.sha256(raw).hexdigest()[:24]}", flush=True)


def fact(name, *values):
    """Anything whose repr is the same on each side."""
    print(name, *(v if isinstance(v, str) else repr(v) for v in values), flush=True)


def note(name, *values):
    """Something that may differ: a time, free memory."""
    print("#", name, *values, flush=True)


def deterministic(seed=0):
    """PyTorch's own switches for results that repeat bit by bit."""
    import torch

    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    return torch
