"""DeBERTa's last layer cannot be repeated: with z_steps above 1 the model appends to a tuple."""

import torch
import transformers

torch.manual_seed(0)
config = transformers.DebertaV2Config(
    vocab_size=48,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
)
model = transformers.DebertaV2Model(config).eval()
model.z_steps = 2

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
print("expected: an output for each of the 13 tokens")
try:
    print("came:     outputs of shape", tuple(model(input_ids=torch.arange(3, 16)[None]).last_hidden_state.shape))
except AttributeError as error:
    print("came:     AttributeError:", error)
    raise SystemExit(1) from None
