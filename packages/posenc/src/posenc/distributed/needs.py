"""`Needs`: which keys of each process the queries of each process may attend to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import Chunk, Visibility, Window, check_window


def mask_of(is_causal: bool, window: Window) -> tuple[Visibility, int | None]:
    """The visibility that a window gives, and the size of chunks, if it is a `Chunk`."""
    if isinstance(window, Chunk):
        return Visibility(is_causal), window.size
    return Visibility(is_causal, *check_window(window)), None


class Needs:
    """Which keys of each process the queries of each process may attend to, by positions alone, so that all processes
    find the same. With ``chunk``, tokens attend only within chunks of so many coordinates."""

    def __init__(self, shards: Sequence[Positions], visibility: Visibility, chunk: int | None = None) -> None:
        shards = shards if chunk is None else [shard.in_chunks(chunk) for shard in shards]
        rows = max(shard.rows for shard in shards)
        self.visibility = visibility
        self._shards = [(shard.order.expand(rows, -1).cpu(), shard.document.expand(rows, -1).cpu()) for shard in shards]
        self._found: dict[tuple[int, int], tuple[slice | None, int]] = {}

    def __len__(self) -> int:
        return len(self._shards)

    def keys(self, queries_of: int, keys_of: int) -> slice | None:
        """The keys of process ``keys_of``, from the first to the last, that queries of process ``queries_of`` may
        attend to; None if there are none."""
        return self._between(queries_of, keys_of)[0]

    def pairs(self, queries_of: int, keys_of: int) -> int:
        """How many pairs of these queries and keys may attend to one another."""
        return self._between(queries_of, keys_of)[1]

    def _between(self, queries_of: int, keys_of: int) -> tuple[slice | None, int]:
        which = queries_of, keys_of
        if which not in self._found:
            self._found[which] = _needed(self._shards[queries_of], self._shards[keys_of], self.visibility)
        return self._found[which]


def _needed(
    query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], visibility: Visibility
) -> tuple[slice | None, int]:
    """The keys from the first to the last that any query sees, and the number of pairs, without a tensor of pairs: keys
    are sorted by row, document and order, and each query sees those between two places."""
    (order, document), (key_order, key_document) = query, key
    is_token, is_key = document != PADDING, key_document != PADDING
    row = torch.arange(len(order))[:, None]
    rows, documents, orders = row.expand_as(order)[is_token], document[is_token], order[is_token]
    key_rows, key_documents = row.expand_as(key_order)[is_key], key_document[is_key]
    key_orders, index = key_order[is_key], torch.arange(key_order.size(1)).expand_as(key_order)[is_key]
    if not len(orders) or not len(key_orders):
        return None, 0
    # By ranks, which are small numbers, whatever documents and orders are.
    texts, number = torch.unique(torch.cat((documents, key_documents)), return_inverse=True)
    text = torch.cat((rows, key_rows)) * len(texts) + number
    text, key_text = text[: len(rows)], text[len(rows) :]
    steps, step = torch.unique(key_orders, return_inverse=True)
    places, sorting = (key_text * len(steps) + step).sort()
    least = torch.iinfo(torch.int64).min
    oldest = torch.full_like(orders, least) if visibility.left is None else _ahead(orders, -visibility.left)
    newest = (
        torch.full_like(orders, -(least + 1)) if visibility.furthest is None else _ahead(orders, visibility.furthest)
    )
    start = torch.searchsorted(places, text * len(steps) + torch.searchsorted(steps, oldest))
    stop = torch.searchsorted(places, text * len(steps) + torch.searchsorted(steps, newest, right=True))
    start, stop = start[start < stop], stop[start < stop]
    if not len(start):
        return None, 0
    bounds = torch.zeros(len(places) + 1, dtype=torch.int64)  # +1 where a range begins, -1 where it ends
    bounds.scatter_add_(0, start, torch.ones_like(start)).scatter_add_(0, stop, -torch.ones_like(stop))
    seen = index[sorting[bounds.cumsum(0)[:-1] > 0]]
    return slice(int(seen.min()), int(seen.max()) + 1), int((stop - start).sum())


def _ahead(orders: Tensor, by: int) -> Tensor:
    """orders + by, at most the largest and least whole numbers."""
    limits = torch.iinfo(torch.int64)
    return orders.clamp(min=limits.min - by) + by if by < 0 else orders.clamp(max=limits.max - by) + by
