"""labml-nn: ALiBi as annotated there: the biases of a causal mask, and the attention layer that adds them."""

import torch
from labml_nn.transformers.alibi import AlibiMultiHeadAttention, get_alibi_biases

from posenc_check import Bias, Layer


def build_heads(heads):
    return heads


def bias(heads, query_length, key_length):
    """The module's get_alibi_biases takes the mask, whose rows are queries: here the last of the keys."""
    mask = torch.ones(key_length, key_length).tril()[key_length - query_length :]
    return get_alibi_biases(heads, mask).permute(2, 0, 1)


def layer(module, x):
    """It takes (tokens, rows, dim) and the mask [query, key, 1]."""
    x = x.transpose(0, 1)
    mask = torch.ones(x.size(0), x.size(0)).tril()[..., None].bool()
    return module(query=x, key=x, value=x, mask=mask).transpose(0, 1)


alibi = Bias(
    build=build_heads, call=bias, options={"heads": 4}, heads=4, causal=True, relative=True, heads_option="heads"
)
attention = Layer(
    build=AlibiMultiHeadAttention, call=layer, options={"heads": 4, "d_model": 32, "dropout_prob": 0.0}, causal=True
)

SUBJECTS = (
    ("get_alibi_biases", alibi),
    ("AlibiMultiHeadAttention", attention),
)
