#: title: decoding of a transformers model, random weights
#: part: 1
#: timeout: 120
#: row: decode_0.5B_b1_eager 0.5B 1 eager
#: row: decode_0.5B_b16_eager 0.5B 16 eager
#: row: decode_0.5B_b1_graphed 0.5B 1 graphed
#: row: decode_0.5B_b16_graphed 0.5B 16 graphed
#: row: decode_1.5B_b1_eager 1.5B 1 eager
#: row: decode_1.5B_b16_eager 1.5B 16 eager
#: row: decode_1.5B_b1_graphed 1.5B 1 graphed
#: row: decode_1.5B_b16_graphed 1.5B 16 graphed
import sys

import compat

torch = compat.deterministic()
import models

size, batch, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
model = models.qwen2(size)
compat.show("weights", model.model.embed_tokens.weight[:1000])
prompt = torch.randint(0, 150000, (batch, 16), device="cuda")
if mode == "eager":
    with torch.inference_mode():
        compat.show("generate", model.generate(prompt, max_new_tokens=24, do_sample=False))
d = models.Decoder(model, batch, mode=mode)
d.prefill(prompt)
tokens = d.decode(24)
compat.show("tokens", tokens)
compat.fact("first", tokens[0, :8].tolist())
