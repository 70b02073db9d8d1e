"""Speed programs: one process measures whenever the runner says so, so that native and forwarded samples alternate.

The runner writes "go" lines; each is answered by one line "NAME VALUE UNIT GOAL" per measure and then a line ".".
"""
import os
import sys
import time

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def clock(work, times=1, sync=None):
    """Seconds that one of `times` calls of work takes, the GPU's part included."""
    if sync is None:
        import torch

        sync = torch.cuda.synchronize
    sync()
    start = time.perf_counter()
    for _ in range(times):
        work()
    sync()
    return (time.perf_counter() - start) / times


def serve(*measures):
    """Each measure is (name, unit, goal for value/native, function that returns a sample)."""
    out = os.fdopen(os.dup(1), "w")
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        if line.strip() != "go":
            break
        for name, unit, goal, sample in measures:
            print(name, sample(), unit, goal, file=out, flush=True)
        print(".", file=out, flush=True)
