"""Builds and calls a small decoder with a scheme, for ``posenc check rope``; scripts of findings import this module."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.models import Decoder, KVCache
from posenc.positions.positions import Positions
from posenc.schemes.catalog import scheme_from_names
from posenc.schemes.entry import Shape

HEADS, HEAD_DIM, LAYERS, VOCABULARY = 6, 16, 2, 48
LONGEST = 2048  # positions of a table


def build_decoder(name: str, **options: Any) -> nn.Module:
    """A decoder with a scheme or a composition, by name."""
    dim = HEADS * HEAD_DIM
    position = scheme_from_names(name, Shape(dim, HEADS, HEAD_DIM, LONGEST))
    return Decoder(VOCABULARY, dim, LAYERS, HEADS, position=position, **options)


def call_decoder(
    made: Any,
    ids: Tensor,
    positions: Tensor | None = None,
    document: Tensor | None = None,
    order: Tensor | None = None,
    cache: Any = None,
) -> tuple[Tensor, Any]:
    """The logits of (rows, tokens) and the cache; ``document`` is of all tokens so far. All are of segment 0."""
    if cache is None:
        cache = None if torch.is_grad_enabled() else KVCache()
    start = 0 if cache is None else len(cache)
    line = torch.arange(start, start + ids.size(1)).expand(ids.shape)
    document = None if document is None else document[:, start:]
    where = Positions(
        line if positions is None else positions,
        order=line if order is None else order,
        document=document,
        segment=torch.zeros(ids.shape, dtype=torch.int64),
    )
    return made(ids, where, cache=cache), cache
