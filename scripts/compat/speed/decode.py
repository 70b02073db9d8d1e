#: speed: serve eager
#: speed: serve graphed
#: speed: serve compiled
import sys

import speed
import models
import torch

mode = sys.argv[1]
torch._inductor.config.compile_threads = 1
model = models.qwen2("0.5B")


def measure(batch):
    d = models.Decoder(model, batch, context=4096, mode=mode)
    d.prefill(torch.randint(0, 150000, (batch, 32), device="cuda"))
    d.decode(8)
    steps = 32 if mode == "eager" else 96

    def sample():
        d.cache.layers[0].cumulative_length  # the cache goes on; a reset keeps it inside its length
        for layer in d.cache.layers:
            layer.cumulative_length.fill_(40)
        return batch * 1.0 / speed.clock(lambda: d.decode(steps), 1) * steps

    return sample


batches = (1,) if mode == "compiled" else (1, 16)
speed.serve(*((f"decode_0.5B_b{b}_{mode}", "tokens/s", ">=0.98", measure(b)) for b in batches))
