"""Swin v2 adds the mask of shifted windows twice."""

import torch
import transformers
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

torch.manual_seed(0)
config = transformers.Swinv2Config(embed_dim=24, depths=[1], num_heads=[2], window_size=2)
layer = Swinv2SelfAttention(config, dim=24, num_heads=2, window_size=2).double().eval()
x = torch.randn(1, 4, 24).double()
mask = torch.tensor([0.0, 0.0, -100.0, -100.0]).double().expand(1, 4, 4)  # the last two patches are of another window


def contrast(mask):
    """How much more log weight the last patch gets than the first."""
    with torch.no_grad():
        weights = layer(x, mask, output_attentions=True)[1].log()
    return weights[..., 3] - weights[..., 0]


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
added = float((contrast(mask) - contrast(None)).mean())
print("expected: -100 on the scores of patches of another window")
print(f"came:     {added:.4g}")
raise SystemExit(abs(added + 100) > 1e-6)
