"""self-attention-cv: scores from queries and learned vectors, for attention to add to those of the keys.

The modules are made for a fixed number of tokens: fewer are padded with zeros, and the scores of the first are taken.
The package imports torchvision, which these do not use, so its own __init__ is left out.
"""

import importlib
import importlib.util
import sys
import types

import torch

from posenc_check import Attention, NotApplicableError
from posenc_check.subjects import attend


def module_of(name):
    """A module of pos_embeddings, without the package's own __init__."""
    if "self_attention_cv" not in sys.modules:
        parent = types.ModuleType("self_attention_cv")
        parent.__path__ = importlib.util.find_spec("self_attention_cv").submodule_search_locations
        sys.modules["self_attention_cv"] = parent
    return getattr(importlib.import_module("self_attention_cv.pos_embeddings"), name)


def build(name, **options):
    return module_of(name)(**options)


def attention_of_tokens(module, query, key, value, visible):
    """q · R_j, shared by the heads: of any queries, for the first of its tokens."""
    return attend(query, key, value, visible[:, 0], module(query)[..., : key.size(2)])[0]


def attention_of_distances(module, query, key, value, visible):
    """q · R_(j - i): queries are all of its tokens, of which these are the last of the first."""
    tokens = (module.rel_pos_emb.size(-2) + 1) // 2
    before = key.size(2) - query.size(2)
    filled = query.new_zeros(*query.shape[:2], tokens, query.size(3))
    filled[:, :, before : before + query.size(2)] = query
    return attend(query, key, value, visible[:, 0], module(filled)[:, :, before : key.size(2), : key.size(2)])[0]


def attention_of_places(module, query, key, value, visible, query_positions, key_positions):
    """The scores of patches at any places of its map: each query alone at its place, then those of the keys' places."""
    places = torch.cat((query_positions, key_positions), 1)
    if places.min() < 0 or (places.amax((0, 1)) >= torch.tensor([module.h, module.w])).any():
        raise NotApplicableError("the map has no such place")
    asked, keys = (p[..., 0] * module.w + p[..., 1] for p in (query_positions, key_positions))
    rows, heads, queries, dim = query.shape
    alone = query.new_zeros(rows, queries, heads, module.total_tokens, dim)
    at = asked[:, :, None, None, None].expand(-1, -1, heads, 1, dim)
    alone = alone.scatter(3, at, query.transpose(1, 2)[..., None, :])
    scores = module(alone.flatten(0, 1)).unflatten(0, (rows, queries))  # (rows, queries, heads, places, places)
    mine = scores.take_along_dim(asked[:, :, None, None, None], 3).squeeze(3)  # of the place that asks
    bias = mine.take_along_dim(keys[:, None, None, :], 3).transpose(1, 2)
    return attend(query, key, value, visible[:, 0], bias)[0]


absolute = Attention(
    build=build,
    call=attention_of_tokens,
    options={"name": "AbsPosEmb1D", "tokens": 64, "dim_head": 16},
    relative=False,
    max_positions=64,
)
relative = Attention(
    build=build,
    call=attention_of_distances,
    options={"name": "RelPosEmb1D", "tokens": 64, "dim_head": 16},
    relative=True,
    max_positions=64,
    varied={"heads": 3},
)
square = Attention(
    build=build,
    call=attention_of_places,
    options={"name": "RelPosEmb2D", "feat_map_size": (8, 8), "dim_head": 16},
    axes=2,
    relative=True,
    max_positions=8,
    varied={"heads": 3},
)
oblong = Attention(
    build=build,
    call=attention_of_places,
    options={"name": "RelPosEmb2D", "feat_map_size": (8, 9), "dim_head": 16},
    axes=2,
    relative=True,
    max_positions=8,
)

SUBJECTS = (
    ("AbsPosEmb1D", absolute),
    ("RelPosEmb1D", relative),
    ("RelPosEmb2D, 8 × 8", square),
    ("RelPosEmb2D, 8 × 9", oblong),
)
