"""rotary-embedding-torch: rotations as its README shows them, rotate_queries_or_keys and rotate_queries_and_keys.

It claims relative positions, interleaved pairs and base 10000, xPos included, and rotates a cache's newest keys with
`offset`; rotate_queries_with_cached_keys is what the README gives for xPos with a cache.
"""

from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

from posenc_check import Attention, Rotary
from posenc_check.subjects import attend


def rotate(module, x, offset):
    return module.rotate_queries_or_keys(x, offset=offset)


def attention(module, query, key, value, visible):
    """xPos: a cache keeps keys as they are, and all of them are rotated anew for the newest queries."""
    if query.size(2) == key.size(2):
        query, key = module.rotate_queries_and_keys(query, key)
    else:
        query, key = module.rotate_queries_with_cached_keys(query, key)
    return attend(query, key, value, visible[:, 0])[0]


def rotate_at(module, x, positions):
    """With positions of each token: its forward makes their phases, which apply_rotary_emb takes."""
    return apply_rotary_emb(module(positions)[:, None], x)


rotary = Rotary(
    build=RotaryEmbedding,
    call=rotate,
    options={"dim": 16, "theta": 10000},
    relative=True,
    causal=True,
    base=10000.0,
    layout="interleaved",
    varied={"theta": 500, "dim": 8, "interpolate_factor": 2.0},
)
rotary_partial = Rotary(
    build=RotaryEmbedding,
    call=rotate,
    options={"dim": 8},
    relative=True,
    causal=True,
    base=10000.0,
    layout="interleaved",
    rotary_dim=8,
)
rotary_positions = Rotary(
    build=RotaryEmbedding,
    call=rotate_at,
    options={"dim": 16},
    relative=True,
    causal=True,
    base=10000.0,
    layout="interleaved",
)
xpos = Attention(
    build=RotaryEmbedding, call=attention, options={"dim": 16, "use_xpos": True}, causal=True, relative=True
)

SUBJECTS = (
    ("RotaryEmbedding", rotary),
    ("RotaryEmbedding, half of the channels", rotary_partial),
    ("RotaryEmbedding, told positions", rotary_positions),
    ("RotaryEmbedding, xPos", xpos),
)
