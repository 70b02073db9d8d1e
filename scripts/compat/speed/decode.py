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

    @torch.inference_mode()
    def sample():
        for layer in d.cache.layers:  # back to the end of the prompt: the cache has an end
            layer.cumulative_length.fill_(32)
        return batch * steps / speed.clock(lambda: d.decode(steps))

    return sample


batches = (1,) if mode == "compiled" else (1, 16)
speed.serve(*((f"decode_0.5B_b{b}_{mode}", "tokens/s", ">=0.98", measure(b)) for b in batches))
