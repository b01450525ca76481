"""fair-esm: ESM-2 (rotary), ESM-1b (learned) and ESM-1 (sinusoidal) with random weights, called by amino acids.

Padding has the padding token, as the batch converter gives it. Token dropout, which scales by how many tokens are
masked, is off.
"""

import argparse

import esm
import torch
from esm.model.esm1 import ProteinBertModel
from esm.rotary_embedding import RotaryEmbedding

from posenc_check import Model, Rotary

SMALL = {"layers": 2, "embed_dim": 32, "ffn_embed_dim": 48, "attention_heads": 2}


def build_esm2():
    return esm.ESM2(num_layers=2, embed_dim=32, attention_heads=2, token_dropout=False)


def build_esm1b(max_positions):
    args = argparse.Namespace(**SMALL, arch="roberta_large", max_positions=max_positions, emb_layer_norm_before=True)
    return ProteinBertModel(args, esm.data.Alphabet.from_architecture("roberta_large"))


def build_esm1():
    args = argparse.Namespace(**SMALL, arch="protein_bert_base", final_bias=True)
    model = ProteinBertModel(args, esm.data.Alphabet.from_architecture("protein_bert_base"))
    model.embed_positions._float_tensor.zero_()  # it says the dtype alone, and holds what lay in memory
    return model


def encode(model, ids, padding=None):
    """What the layers give, of the twenty amino acids, which are tokens 4 to 23."""
    ids = ids % 20 + 4
    ids = ids if padding is None else ids.masked_fill(~padding, model.padding_idx)
    last = len(model.layers)
    return model(ids, repr_layers=[last])["representations"][last]


def rotate(module, x):
    """Queries are (rows · heads, tokens, head_dim)."""
    return module(x.flatten(0, 1), x.flatten(0, 1))[0].view_as(x)


rotary = Rotary(
    build=RotaryEmbedding, call=rotate, options={"dim": 16}, relative=True, base=10000.0, layout="half", causal=True
)
esm2 = Model(build=build_esm2, call=encode, relative=True, jitter=0.2, dtype=torch.float32)
esm1b = Model(
    build=build_esm1b,
    call=encode,
    options={"max_positions": 128},
    relative=False,
    max_positions=128,
    jitter=0.2,
    dtype=torch.float32,
)
esm1 = Model(build=build_esm1, call=encode, relative=False, jitter=0.2, dtype=torch.float32)

SUBJECTS = (
    ("RotaryEmbedding", rotary),
    ("ESM-2", esm2),
    ("ESM-1b", esm1b),
    ("ESM-1", esm1),
)
