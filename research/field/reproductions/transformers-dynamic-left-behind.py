"""Dynamic scaling: a call after a longer one is rotated by the frequencies of the longer one."""

import torch
import transformers

TRAINED = 16
SIZES = {"vocab_size": 48, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}

torch.manual_seed(0)
config = transformers.LlamaConfig(
    **SIZES,
    initializer_range=0.3,
    max_position_embeddings=TRAINED,
    rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
)
model = transformers.LlamaForCausalLM(config).eval()
ids = torch.randint(3, 48, (1, TRAINED))
with torch.no_grad():
    before = model(input_ids=ids).logits
    model(input_ids=ids.repeat(1, 4))
    after = model(input_ids=ids).logits
off = float((after - before).abs().max())

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
print(f"expected: {TRAINED} tokens, the trained length, give the same before a text of {4 * TRAINED} and after it")
print(f"came:     off by {off:.2g}, where the largest is {float(before.abs().max()):.2g}")
raise SystemExit(off > 1e-5)
