"""ESM-1b with token dropout, which is on in its weights, does not run in half precision."""

import argparse
from importlib.metadata import version

import esm
import torch
from esm.model.esm1 import ProteinBertModel

args = argparse.Namespace(
    arch="roberta_large",
    layers=1,
    embed_dim=32,
    ffn_embed_dim=32,
    attention_heads=2,
    max_positions=16,
    emb_layer_norm_before=True,
    token_dropout=True,
)
model = ProteinBertModel(args, esm.data.Alphabet.from_architecture("roberta_large")).eval().bfloat16()
ids = torch.tensor([[0, 5, 6, 7, 2]])
try:
    came = str(model(ids)["logits"].dtype)
except RuntimeError as error:
    came = f"RuntimeError: {error}"

print(f"fair-esm {version('fair-esm')}, torch {torch.__version__}")
print("expected: torch.bfloat16, as from ESM-2")
print(f"came:     {came}")
raise SystemExit(came != "torch.bfloat16")
