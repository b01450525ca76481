"""Divides the tokens of a text among processes: the indices of the tokens that each process holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from posenc.arguments import shown, whole
from posenc.positions.layout import Layout

Order: TypeAlias = Literal["contiguous", "zigzag", "striped", "documents"] | Sequence[Int[Tensor, " held"]]
"""How tokens are divided among ``world`` processes:

- ``"contiguous"``: each process holds one run of tokens.
- ``"zigzag"``: the text is cut into 2 world runs, and process r holds runs r and 2 world - 1 - r, so that under a
  causal mask all have the same number of pairs.
- ``"striped"``: process r holds tokens r, r + world, r + 2 world, ...
- ``"documents"``: whole documents, so that attention needs no communication; one with more than a process's share of
  all pairs is divided in zigzag.
- a sequence of ``world`` index tensors, in which every token is once.
"""

OF_SHARD = (
    "a shard does not know the length of its text: use posenc.distributed, or pass "
    "context=Context(lengths=whole.lengths) with the positions of the whole text"
)
ORDERS = ("contiguous", "zigzag", "striped", "documents")


def indices(layout: Layout, world: int, order: Any) -> tuple[Tensor, ...]:
    """The indices of the tokens of each process, by an `Order`. They may be uneven, or empty. Raises ValueError for
    another order, and for indices in which a token is missing or twice."""
    tokens = torch.arange(layout.tokens)
    if isinstance(order, str):
        if order == "contiguous":
            return tokens.tensor_split(world)
        if order == "zigzag":
            return _zigzag(tokens, world)
        if order == "striped":
            return tuple(tokens[rank::world] for rank in range(world))
        if order == "documents":
            return _by_document(layout, world)
    if isinstance(order, str) or not isinstance(order, Sequence):
        names = ", ".join(map(repr, ORDERS))
        raise ValueError(f"order must be one of {names}, or an index tensor for each process, got {shown(order)}")
    if len(order) != world:
        raise ValueError(f"order must have an index tensor for each of {world} processes, got {len(order)}")
    for index in order:
        if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype != torch.int64:
            raise ValueError(f"order must have 1-D int64 tensors of token indices, got {shown(index)}")
    held = torch.cat([index.cpu() for index in order])
    if not torch.equal(held.sort().values, tokens):
        raise ValueError(f"order must have each of the {layout.tokens} tokens once, got {_fault(held, layout.tokens)}")
    return tuple(index.cpu() for index in order)


def _zigzag(tokens: Tensor, world: int) -> tuple[Tensor, ...]:
    runs = tokens.tensor_split(2 * world)
    return tuple(torch.cat((runs[rank], runs[2 * world - 1 - rank])) for rank in range(world))


def _by_document(layout: Layout, world: int) -> tuple[Tensor, ...]:
    """Documents in falling length, each to the process that has the fewest pairs so far."""
    if layout.rows is None or len(layout.rows) != 1:
        raise ValueError(
            "order='documents' needs one row, or rows of the same documents, whose layout is known: pass positions on "
            "the CPU or positions.with_layout(), or another order"
        )
    of_document: dict[int, list[Tensor]] = {}
    for span in layout.rows[0]:
        of_document.setdefault(span.document, []).append(torch.arange(span.start, span.stop))
    texts = sorted((torch.cat(runs) for runs in of_document.values()), key=len, reverse=True)
    is_padding = torch.ones(layout.tokens, dtype=torch.bool)
    for text in texts:
        is_padding[text] = False
    share = sum(len(text) ** 2 for text in texts) / world
    held: list[list[Tensor]] = [[] for _ in range(world)]
    pairs = [0.0] * world
    for text in texts:
        if len(text) ** 2 > share:
            pieces = list(enumerate(_zigzag(text, world)))
        else:
            pieces = [(min(range(world), key=pairs.__getitem__), text)]
        for rank, piece in pieces:
            held[rank].append(piece)
            pairs[rank] += len(text) * len(piece)
    held[-1].append(is_padding.nonzero()[:, 0])
    return tuple(torch.cat(each).sort().values if each else torch.arange(0) for each in held)


def _fault(held: Tensor, tokens: int) -> str:
    outside = held[(held < 0) | (held >= tokens)]
    if len(outside):
        return f"index {int(outside[0])}"
    counts = torch.bincount(held, minlength=tokens)
    token = int((counts != 1).nonzero()[0])
    return f"token {token} {int(counts[token])} times"


def shard(layout: Layout, of: Any, order: Order) -> tuple[Tensor, int]:
    """The indices of one process's tokens, and the number of processes. ``of`` is a DeviceMesh of one axis, or (rank,
    world)."""
    rank, world = _place(of)
    return indices(layout, world, order)[rank], world


def _place(of: Any) -> tuple[int, int]:
    """The rank and the number of processes that ``of`` names: a DeviceMesh of one axis, or (rank, world)."""
    if hasattr(of, "get_local_rank"):
        if of.ndim != 1:
            raise ValueError(f"of must be a mesh of one axis, got one of {of.ndim}: pass mesh['name of an axis']")
        return of.get_local_rank(), of.size()
    if not isinstance(of, tuple) or len(of) != 2:
        raise ValueError(f"of must be a DeviceMesh of one axis, or (rank, world), got {shown(of)}")
    world = whole("world", of[1])
    return whole("rank", of[0], 0, world - 1), world
