"""x-transformers does not run on rows that are padded on the left with scaled_sinu_pos_emb=True."""

from importlib.metadata import version

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper


def generated(**options):
    layers = Decoder(dim=32, depth=1, heads=2, attn_dim_head=16, verbose=False)
    model = TransformerWrapper(num_tokens=16, max_seq_len=64, attn_layers=layers, **options)
    lengths = {"prompt_lens": torch.tensor([3, 5])}
    return tuple(AutoregressiveWrapper(model).generate(torch.ones(2, 5).long(), 4, **lengths).shape)


plain = generated()
try:
    came = f"tokens of shape {generated(scaled_sinu_pos_emb=True)}"
except RuntimeError as error:
    came = f"RuntimeError: {str(error).splitlines()[0]}"

print(f"x-transformers {version('x-transformers')}, torch {torch.__version__}")
print(f"expected: tokens of shape {plain} for prompts of 3 and 5, as with learned positions")
print(f"came:     {came}")
raise SystemExit("Error" in came)
