"""The MSA Transformer divides scores by the depth of the batch: an alignment beside a deeper one is another."""

from importlib.metadata import version

import torch
from esm.axial_attention import RowSelfAttention

ROWS, MORE, COLUMNS = 2, 3, 7  # of an alignment, of padding, of both

torch.manual_seed(0)
layer = RowSelfAttention(32, 2).double().eval()
x = torch.randn(ROWS, COLUMNS, 1, 32).double()
padding = torch.arange(ROWS + MORE)[None, :, None].expand(1, -1, COLUMNS) >= ROWS
with torch.no_grad():
    alone, _ = layer(x)
    filled = torch.cat((x, torch.zeros(MORE, COLUMNS, 1, 32).double()))
    beside, _ = layer(filled, self_attn_padding_mask=padding)
    layer.align_scaling = lambda q: layer.scaling / ROWS**0.5
    mended, _ = layer(filled, self_attn_padding_mask=padding)
off = float((beside[:ROWS] - alone).abs().max())
rest = float((mended[:ROWS] - alone).abs().max())

print(f"fair-esm {version('fair-esm')}, torch {torch.__version__}")
print("expected: padding below an alignment changes nothing of it, to 1e-9")
print(f"came:     off by {off:.2g}; by {rest:.1g} with the scale of its own {ROWS} rows")
raise SystemExit(off > 1e-9)
