#: title: LoRA fine-tuning of a 0.5B model (peft), gradient checkpointing, bf16
#: part: 1
#: timeout: 120
import compat

torch = compat.deterministic()
import models
from peft import LoraConfig, get_peft_model

model = models.qwen2("0.5B").train()
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))
optim = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for step in range(3):
    ids = torch.randint(0, 150000, (2, 256), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optim.step()
    optim.zero_grad()
    compat.fact("loss", loss.item())
compat.show("adapters", torch.cat([p.detach().flatten().float() for p in model.parameters() if p.requires_grad]))
