"""Rotations with bands: runs near and distant pairs, which are rotated differently, as separate calls, and merges them.

A band is a range of distances. If coordinates increase by one with the order, as in texts, it is a window. Bands by
chunks of coordinates become documents, or orders that count chunks. Otherwise a mask selects the pairs. Every pair is
in exactly one band, so merging by log-sum-exp is exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from posenc import compat
from posenc.arguments import shown
from posenc.backends import choose
from posenc.backends.call import Call, RotatedBand, counted
from posenc.backends.reference import REFERENCE
from posenc.positions.positions import Positions
from posenc.positions.tiles import Visibility


def merge(
    parts: Sequence[tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "batch heads queries"]]],
) -> tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "batch heads queries"]]:
    """Merges attention over disjoint parts of the keys into attention over all keys.

    Formula: lse = log sum_n e^(lse_n), out = sum_n e^(lse_n - lse) out_n, for parts (out_n, lse_n) returned by
    ``attention(..., return_lse=True)``. Differentiable. A query without any visible key in any part gives zeros and a
    log-sum-exp of -inf. Raises ValueError for parts of different shapes.
    """
    pairs = isinstance(parts, Sequence) and all(isinstance(part, Sequence) and len(part) == 2 for part in parts)
    if not pairs or not parts:
        raise ValueError(f"parts must be pairs (out, lse), got {shown(parts)}")
    for out, lse in parts:
        if out.shape != parts[0][0].shape or lse.shape != out.shape[:-1]:
            shape = tuple(parts[0][0].shape)
            raise ValueError(
                f"parts must have shapes {shape} and {shape[:-1]}, got {tuple(out.shape)} and {tuple(lse.shape)}"
            )
    every = torch.stack([lse for _, lse in parts])
    blind = (every == -torch.inf).all(0)
    whole = every.masked_fill(blind, 0.0).logsumexp(0).masked_fill(blind, -torch.inf)
    shares = every.masked_fill(blind, 0.0).softmax(0).masked_fill(blind, 0.0)
    outs = torch.stack([out for out, _ in parts])
    return (shares[..., None] * outs.to(shares.dtype)).sum(0).to(outs.dtype), whole


def sink_of(sinks: Tensor, lse: Float[Tensor, "batch heads queries"]) -> Float[Tensor, "batch heads queries"]:
    """The sink of every row, one more key without a value, from those of `attention`, in the log-sum-exp's dtype."""
    sinks = sinks.to(lse.dtype)
    return (sinks if sinks.dim() == 3 else sinks[:, None]).expand_as(lse)


MERGED = "which is needed to merge near and distant pairs, which are rotated differently"
Run = Callable[[Call], tuple[Tensor, Tensor | None]]


def runner(call: Call, backend: str) -> Run:
    """A function that runs the call, with one backend or one for each band; a call without bands it runs like any other
    with the same plan. Raises ValueError if the named backend cannot run it."""
    is_auto = isinstance(backend, str) and backend == "auto"
    if not call.bands:
        return choose.choose(call)[0] if is_auto else choose.named(call, backend)
    if backend == "reference" or (is_auto and _is_dense(call)):
        return REFERENCE
    chosen = selections(call)
    parts = calls(call, chosen)
    each = [choose.choose(band)[0] if is_auto else choose.named(band, backend, MERGED) for _, band in parts]

    def run(call: Call) -> tuple[Tensor, Tensor | None]:
        found = []
        for at, (runs, (_, band)) in enumerate(zip(each, calls(call, chosen), strict=True)):
            if call.store is not None:
                band.with_store(call.store.setdefault(f"band {at}", {}))
            out, lse = runs(band)
            assert lse is not None
            found.append((out, lse))
        return merge(found)

    return run


def explain(call: Call) -> choose.Explanation:
    """The explanation of a call's backend for "auto", and of every band."""
    if not call.bands:
        return choose.explain(call)
    parts = calls(call)
    if _is_dense(call):
        why = "distant pairs are rotated differently, and there are few enough scores to compute all bands densely"
        refused = [
            (backend.name, f"{name}: {reason}")
            for backend in choose.BACKENDS
            for name, band in reversed(parts)  # the reason of the first band stays
            if backend is not REFERENCE and (reason := backend.refuses(band)) is not None
        ]
        return choose.Explanation("reference", why, dict(refused))
    bands = tuple((name, choose.explain(band)) for name, band in parts)
    names = " + ".join(dict.fromkeys(each.backend for _, each in bands))
    picked = "by a mask" if any(band.attn_mask is not call.attn_mask for _, band in parts) else "by positions"
    why = f"{names}: distant pairs are rotated differently, so each band is a separate call, its pairs selected "
    return choose.Explanation(names, f"{why}{picked}, and they are merged by log-sum-exp", {}, bands=bands)


def _is_dense(call: Call) -> bool:
    """Whether to compute the scores of all bands densely: they are few, or only the reference has the derivative."""
    if compat.is_forward_mode():
        return True
    pairs = call.query.size(2) * call.key.size(2)
    is_few = not torch.compiler.is_compiling() and pairs <= choose.FEW_PAIRS
    return is_few and call.query.size(0) * call.query.size(1) * pairs <= choose.FEW_SCORES


@dataclass(frozen=True, eq=False)
class Selection:
    """The pairs of a band: those with start <= distance < end, where None is no end. ``how`` are the fields of a `Call`
    that select them; without any, a mask does. It has none of a layer's tensors."""

    band: int  # 0: near pairs
    start: int | None
    end: int | None
    how: Mapping[str, Any]


def selections(call: Call) -> list[Selection]:
    """The bands with unmasked pairs. They depend on positions and on what may be seen, not on queries and keys."""
    ends, is_even = [None, *(band.reach for band in call.bands), None], rises_with_order(call)
    counting: dict[str, Any] = {}
    found = []
    for at, (start, end) in enumerate(itertools.pairwise(ends)):
        how: Mapping[str, Any] | None = {}
        if is_even:
            how = _by_order(call, start, end) if call.chunk is None else _by_chunks(call, start, end, counting)
        if how is not None:
            found.append(Selection(at, start, end, how))
    return found


def calls(call: Call, chosen: Sequence[Selection] | None = None) -> list[tuple[str, Call]]:
    """A call for each of the chosen bands, by default of `selections`, with its name. No pair is in two of them."""
    whole = replace(call, bands=(), return_lse=True)
    rotated = (RotatedBand(0, call.query, call.key), *call.bands)
    found = []
    for of in selections(call) if chosen is None else chosen:
        band, norms = rotated[of.band], None if of.band else call.key_norms  # key_norms are those of near pairs
        every = replace(whole, query=band.query, key=band.key, key_norms=norms, **of.how)
        found.append((_name(call, of.start), every if of.how else _by_mask(every, of.start, of.end)))
    return found


def _name(call: Call, start: int | None) -> str:
    if start is None:
        return "near pairs"
    return (
        f"pairs at distance {start} or more"
        if call.chunk is None
        else f"pairs {start} chunks of {call.chunk} or more apart"
    )


def rises_with_order(call: Call) -> bool:
    """Whether, in each document, coordinates are known to be order plus a constant."""
    if call.layouts is None:
        return False
    query, key = call.layouts
    for row in range(max(len(query.rows or ()), len(key.rows or ()))):
        known: dict[int, int] = {}
        for span in (*query.of_row(row), *key.of_row(row)):
            if span.line is None or span.order_step != 1:
                return False
            ahead = span.line - span.order
            if known.setdefault(span.document, ahead) != ahead:
                return False
    return True


def _by_order(call: Call, start: int | None, end: int | None) -> Mapping[str, Any] | None:
    """What selects pairs with start <= o_i - o_j < end; None if a window masks all of them."""
    seen = call.visibility
    left = seen.left
    if end is not None:
        left = end - 1 if left is None else min(left, end - 1)
    if start is None:
        return {"visibility": replace(seen, left=left)}
    if left is not None and left < start:
        return None
    # Neither causality nor a window to the right masks keys this far back.
    return {"visibility": Visibility(False, left, -start)}


def _by_chunks(call: Call, start: int | None, end: int | None, counting: dict[str, Any]) -> Mapping[str, Any]:
    """What selects pairs with start <= g_i - g_j < end, where g counts chunks: documents, or orders that are
    ``counting`` chunks, which bands share. Nothing if a window splits chunks, and in a compiled graph, which serves any
    number of them."""
    seen, size = call.visibility, call.chunk
    assert size is not None
    if seen.left is not None or seen.right is not None or torch.compiler.is_compiling():
        return {}
    if start is None and seen.is_causal:  # causality masks later chunks
        return _of_both(call, lambda positions: positions.in_chunks(size)) if end == 1 else {}
    left, right = None if end is None else end - 1, None if start is None else -start
    if not counting:
        counting.update(_of_both(call, lambda positions: _counting(positions, size)))
    return {**counting, "visibility": Visibility(False, left, right)}


def _of_both(call: Call, place: Callable[[Positions], Positions]) -> Mapping[str, Any]:
    """The positions of queries and keys, placed; the same object for both if they were the same."""
    queries, keys = call.query_positions, call.key_positions
    of_keys = place(keys)
    return {"query_positions": of_keys if queries is keys else place(queries), "key_positions": of_keys}


def _counting(positions: Positions, size: int) -> Positions:
    """The same tokens, whose order counts chunks: earlier chunks have only earlier tokens, so causality masks none.
    Their layout follows from the one that is known, so it is not compared with the values."""
    layout = positions.layout.in_chunks(size, lambda s, n: replace(s, order=n, order_step=0))
    return positions._like(order=counted(positions, size))._of(layout)


def _by_mask(call: Call, start: int | None, end: int | None) -> Call:
    """The call of the band's pairs, selected by a dense mask."""
    apart = call.apart()[:, None]
    outside = torch.zeros_like(apart, dtype=torch.bool)
    if start is not None:
        outside = outside | (apart < start)
    if end is not None:
        outside = outside | (apart >= end)
    mask = call.attn_mask
    if mask is None or mask.dtype == torch.bool:
        return replace(call, attn_mask=~outside if mask is None else mask & ~outside)
    return replace(call, attn_mask=mask.masked_fill(outside, -torch.inf))
