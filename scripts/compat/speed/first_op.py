#: speed: spawn 5
import time

start = time.perf_counter()
import torch

imported = time.perf_counter()
torch.ones(1, device="cuda").add_(1).item()
print("torch_first_op_after_import", time.perf_counter() - imported, "s", "<=1.0")
