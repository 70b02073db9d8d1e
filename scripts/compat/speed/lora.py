#: speed: serve
import speed
import models
import torch
from peft import LoraConfig, get_peft_model

model = models.qwen2("0.5B").train()
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
optim = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
ids = torch.randint(0, 150000, (4, 512), device="cuda")


def step():
    model(input_ids=ids, labels=ids).loss.backward()
    optim.step()
    optim.zero_grad()


for _ in range(3):
    step()
speed.serve(("lora_0.5B_tokens", "tokens/s", ">=0.98", lambda: ids.numel() / speed.clock(step, 4)))
