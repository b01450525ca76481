"""attention-gym: score mods, called as FlexAttention calls them, with index tensors that broadcast.

A score mod is given q_idx and kv_idx: it is asked for the bias of queries and keys at these.
"""

import torch
from attn_gym.mods import generate_alibi_bias
from attn_gym.mods.sandwich import generate_sandwich_bias

from posenc_check import Bias


def build_alibi(heads):
    return generate_alibi_bias(heads), heads


def build_sandwich(heads):
    return generate_sandwich_bias(heads, max_seq_len=2048), heads


def bias(made, query_length, key_length):
    """Queries are the last of the keys: FlexAttention hands a mod their indices, and leaves offsets to who wraps it."""
    mod, heads = made
    h = torch.arange(heads).view(-1, 1, 1)
    i = torch.arange(key_length - query_length, key_length).view(1, -1, 1)
    j = torch.arange(key_length).view(1, 1, -1)
    return mod(torch.zeros(heads, query_length, key_length, dtype=torch.float64), torch.tensor(0), h, i, j)


alibi = Bias(
    build=build_alibi, call=bias, options={"heads": 4}, heads=4, causal=True, relative=True, heads_option="heads"
)
sandwich = Bias(
    build=build_sandwich, call=bias, options={"heads": 4}, heads=4, causal=True, relative=True, max_positions=2048
)

SUBJECTS = (
    ("generate_alibi_bias", alibi),
    ("generate_sandwich_bias", sandwich),
)
