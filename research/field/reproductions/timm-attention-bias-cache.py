"""LeViT and its like: weights that are loaded in evaluation mode leave the old position bias in use."""

import sys
from unittest.mock import MagicMock

import torch

for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
    sys.modules["torchvision" + name] = MagicMock()  # timm imports it, and this does not need it

import timm
from timm.models import efficientformer, levit, tiny_vit

stale = []
for module in (levit, efficientformer, tiny_vit):
    attention = module.Attention(32, 16, 2, resolution=(2, 3))
    attention.eval()
    with torch.no_grad():
        attention(torch.zeros(1, 6, 32))
        state = {key: value.clone() for key, value in attention.state_dict().items()}
        state["attention_biases"] += 1.0
        attention.load_state_dict(state)
        used = attention.get_attention_biases(torch.device("cpu"))
        if not torch.equal(used, attention.attention_biases[:, attention.attention_bias_idxs]):
            stale.append(module.__name__.rpartition(".")[2])

print(f"timm {timm.__version__}, torch {torch.__version__}")
print("expected: the bias that was loaded")
print("came:    ", f"the one before it in {', '.join(stale)}" if stale else "the bias that was loaded")
raise SystemExit(bool(stale))
