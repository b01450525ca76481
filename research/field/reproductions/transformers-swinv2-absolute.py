"""Swin v2 with use_absolute_embeddings=True does not run: its table has a row more than there are patches."""

import torch
import transformers

torch.manual_seed(0)
config = transformers.Swinv2Config(
    image_size=8,
    patch_size=2,
    embed_dim=24,
    depths=[1],
    num_heads=[2],
    window_size=2,
    use_absolute_embeddings=True,
)
model = transformers.Swinv2Model(config).eval()

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
print("expected: an output for each of the 16 patches")
try:
    print("came:     outputs of shape", tuple(model(torch.zeros(1, 3, 8, 8)).last_hidden_state.shape))
except RuntimeError as error:
    print("came:     RuntimeError:", error)
    raise SystemExit(1) from None
