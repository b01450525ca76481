"""local-attention: LocalAttention and LocalMHA, as LocalTransformer calls them, and LocalTransformer itself.

With a cache they take one token at a time, as `generate` gives it to them, and no mask. LocalMHA pads what it is given
to whole windows, and exact_windowsize, its default, is said to let a query see as many keys as the window is long.
"""

import random

import torch
from local_attention import LocalAttention, LocalMHA
from local_attention.transformer import LocalTransformer

from posenc_check import Attention, Layer, Model, NotApplicableError


def build_mha(**options):
    return LocalMHA(dim=32, dim_head=16, heads=2, **options)


def build_transformer(**options):
    random.seed(0)  # by which hyper_connections draws the first stream of each layer
    return LocalTransformer(
        num_tokens=48, max_seq_len=128, dim=32, depth=2, dim_head=16, heads=2, local_attn_window_size=8, **options
    )


def attend(module, query, key, value, query_document=None, key_document=None):
    """Its mask says which keys there are. Queries are the keys."""
    if query.size(2) != key.size(2):
        raise NotApplicableError("queries are the keys")
    if key_document is None or (key_document == 0).all():
        return module(query, key, value)
    if (key_document > 0).any():
        raise NotApplicableError("it knows no documents")
    return module(query, key, value, mask=key_document >= 0)


def encode(module, x, padding=None):
    return module(x, mask=None if padding is None or padding.all() else padding)


def decode(module, x, cache=None):
    if cache is None:
        return module(x, return_cache=True)
    outs = []
    for token in x.split(1, 1):
        out, cache = module(token, cache=cache, return_cache=True)
        outs.append(out)
    return torch.cat(outs, 1), cache


def decode_text(model, ids, cache=None):
    """As `generate` does: all tokens so far, of which a model with a cache takes the last."""
    if cache is None:
        logits, kept = model(ids, return_cache=True)
        return logits, (ids, kept)
    seen, kept = cache
    outs = []
    for token in ids.split(1, 1):
        seen = torch.cat((seen, token), 1)
        out, kept = model(seen, cache=kept, return_cache=True)
        outs.append(out)
    return torch.cat(outs, 1), (seen, kept)


attention = Attention(
    build=LocalAttention,
    call=attend,
    options={"dim": 16, "window_size": 8, "autopad": True, "exact_windowsize": True},
    relative=True,
    normalized=True,
)
attention_causal = Attention(
    build=LocalAttention,
    call=attend,
    options={"dim": 16, "window_size": 8, "causal": True, "autopad": True, "exact_windowsize": True},
    causal=True,
    relative=True,
    window=8,
    normalized=True,
)
encoder = Layer(build=build_mha, call=encode, options={"window_size": 8}, relative=True, jitter=0.2)
decoder = Layer(
    build=build_mha, call=decode, options={"window_size": 8, "causal": True}, causal=True, relative=True, jitter=0.2
)
decoder_padded = Layer(
    build=build_mha, call=encode, options={"window_size": 8, "causal": True}, causal=True, relative=True, jitter=0.2
)
decoder_xpos = Layer(
    build=build_mha,
    call=decode,
    options={"window_size": 8, "causal": True, "use_xpos": True},
    causal=True,
    relative=True,
    jitter=0.2,
)
decoder_normed = Layer(
    build=build_mha,
    call=decode,
    options={"window_size": 8, "causal": True, "qk_rmsnorm": True, "use_rotary_pos_emb": False},
    causal=True,
    jitter=0.2,
    order_free=True,
)
decoder_blocks = Layer(
    build=build_mha,
    call=decode,
    options={"window_size": 8, "causal": True, "exact_windowsize": False, "use_rotary_pos_emb": False},
    causal=True,
    jitter=0.2,
    order_free=True,
)
transformer = Model(build=build_transformer, call=decode_text, causal=True, max_positions=128, jitter=0.2)
transformer_dynamic = Model(
    build=build_transformer,
    call=decode_text,
    options={"use_dynamic_pos_bias": True},
    causal=True,
    max_positions=128,
    jitter=0.2,
    dtype=torch.float32,
)

SUBJECTS = (
    ("LocalAttention", attention),
    ("LocalAttention, causal", attention_causal),
    ("LocalMHA", encoder),
    ("LocalMHA, causal", decoder_padded),
    ("LocalMHA, causal, with a cache", decoder),
    ("LocalMHA, xPos", decoder_xpos),
    ("LocalMHA, qk_rmsnorm", decoder_normed),
    ("LocalMHA, two windows whole", decoder_blocks),
    ("LocalTransformer", transformer),
    ("LocalTransformer, dynamic", transformer_dynamic),
)
