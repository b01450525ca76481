"""PyTorch itself: attention and encoder layers, which know no positions: (rows, tokens, dim), padding as a mask."""

import torch

from posenc_check import Layer


def build_attention():
    return torch.nn.MultiheadAttention(32, 4, batch_first=True)


def build_encoder():
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2)


def attend(module, x, padding=None, memory=None):
    memory = x if memory is None else memory
    return module(x, memory, memory, key_padding_mask=None if padding is None else ~padding, need_weights=False)[0]


def attend_causally(module, x, padding=None):
    mask = torch.nn.Transformer.generate_square_subsequent_mask(x.size(1), dtype=x.dtype)
    hidden = None if padding is None else torch.zeros_like(padding, dtype=x.dtype).masked_fill(~padding, -torch.inf)
    return module(x, x, x, attn_mask=mask, key_padding_mask=hidden, is_causal=True, need_weights=False)[0]


def encode(module, x, padding=None):
    return module(x, src_key_padding_mask=None if padding is None else ~padding)


attention = Layer(build=build_attention, call=attend, jitter=0.2)
causal = Layer(build=build_attention, call=attend_causally, causal=True, jitter=0.2)
encoder = Layer(build=build_encoder, call=encode, jitter=0.2)

SUBJECTS = (
    ("nn.MultiheadAttention", attention),
    ("nn.MultiheadAttention, causal", causal),
    ("nn.TransformerEncoder", encoder),
)
