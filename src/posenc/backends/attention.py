"""attention() and logits(): PyTorch's scaled_dot_product_attention, plus an encoding."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posenc import compat
from posenc.backends import ranges as bands
from posenc.backends.call import Call, sliced
from posenc.backends.choice import Explanation
from posenc.backends.reference import dense_logits
from posenc.backends.request import bound, call_of, request
from posenc.encoding.encoding import Encoding
from posenc.encoding.pieces import Fold, adds, gives_weights
from posenc.lowering.forms import added
from posenc.positions.positions import Positions
from posenc.positions.tiles import Window
from posenc.scheme import Scheme


def attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    encoding: Encoding | Scheme | None = None,
    *,
    query_positions: Positions | None = None,
    key_positions: Positions | None = None,
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    window: Window = None,
    sinks: Float[Tensor, " heads"] | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    backend: str = "auto",
    return_lse: bool = False,
    skip_below: float | None = None,
    key_norms: Float[Tensor, "batch kv_heads keys"] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scores) value, with positions: rotates query and key, changes the scores, adds to the output.

    The signature is that of `torch.nn.functional.scaled_dot_product_attention`, plus:

    - ``encoding``: what a scheme gave for some positions, or the scheme itself, which is then bound to
      ``query_positions`` and ``key_positions``. By default keys are at 0 .. N-1 and queries are the last M of them.
      With ``query_positions`` alone, as many keys have the same. Without an encoding positions still rule what is seen.
    - ``window``: how far a query sees, counted along the order: a number of keys, of which its own is the last; or
      (left, right), the number of places back and forth, None for all. With `Chunk(n)` a query
      sees the keys of its own chunk alone: of coordinates 0 .. n-1, n .. 2n-1, and so on.
    - ``sinks``: a logit for each head that every query sees beside its keys. It has no value, and takes a share of the
      weights. The log-sum-exp includes it.
    - ``backend``: ``"auto"``, of which `explain` says what it takes; or the name of one, ``"sdpa"``, ``"native"``,
      ``"triton"``, ``"tiled"``, ``"flex"``, ``"chunked"`` or ``"reference"``, which then runs or raises ValueError, and
      never falls back.
    - ``skip_below``: the share of a row's weight that may be left out. Where a term fades with the distance, far keys
      that all together have less of the weight, whatever queries and keys hold, need not be computed, nor their values
      read: NaN in those is not seen. A far key whose score is high enough to count is computed. ``"native"``,
      ``"tiled"`` and ``"flex"`` do so, and `explain` says how much is computed. By default 2**-32, a 256th of the
      rounding of float32 (for float64 inputs 2**-61); ``0.0`` computes everything.
    - ``key_norms``: the norms of the keys, after rotation, where the caller keeps them, as `KVCache` does: then a few
      queries need not read the keys that they leave out. Norms that are too small would leave out keys that count.
    - ``return_lse``: also return the log-sum-exp of each row of scores, (batch, heads, queries), by which partial
      results can be merged. Where scores are the logarithms of weights that are not normalised, as stick-breaking's
      are, it is that of their sum.

    The model opens the add door, ``x = encoding.add(x)``, since it acts before x becomes query, key and value. An
    encoding that adds and was not added is a ValueError, and so is an unbound scheme that adds.

    ``is_causal`` compares order, not coordinates and not indices: with fewer queries than keys the last query sees
    every key. Tokens see only their own document, and padding nothing. A query that sees no key gives zeros, in the
    output and in every gradient. Fewer key and value heads than query heads mean grouped queries, with ``enable_gqa``
    or without. ``attn_mask`` broadcasts to (batch, heads, queries, keys): bool, True = may be seen, or float, added to
    the scores; not where these are logarithms of weights, as stick-breaking's are. ``dropout_p`` is applied whenever it
    is above 0.

    Fused kernels have a first derivative alone: for the second, or under `torch.func`, take ``backend="reference"``.

    Returns (batch, heads, queries, value_dim) in the query's dtype; scores are in float32 for half-precision inputs.
    """
    encoding, call = request(
        query,
        key,
        value,
        encoding,
        query_positions,
        key_positions,
        attn_mask=attn_mask,
        is_causal=is_causal,
        window=window,
        sinks=sinks,
        dropout_p=dropout_p,
        scale=scale,
        enable_gqa=enable_gqa,
        return_lse=return_lse,
        skip_below=skip_below,
        key_norms=key_norms,
    )
    run = bands.runner(call, backend)
    # Autocast would cast the bias together with the query: a bfloat16 ALiBi has 769 values over 4096 keys.
    with _without_autocast(query):
        out, lse = run()
        if gives_weights(call.pieces):
            assert lse is not None
            out = (out.to(lse.dtype) * lse.exp()[..., None]).to(out.dtype)  # the sum that it was divided by
        if sinks is not None:
            assert lse is not None
            out, lse = _with_sinks(out, lse, sinks)
        out = encoding.rotate_output(out)
    if not return_lse:
        return out
    assert lse is not None
    return out, lse


def _with_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp with one more logit in every row's denominator: out sigmoid(lse - sink)."""
    sink = sinks.to(lse.dtype)[:, None]
    return (out.to(lse.dtype) * (lse - sink).sigmoid()[..., None]).to(out.dtype), torch.logaddexp(
        lse, sink.expand_as(lse)
    )


def logits(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    encoding: Encoding | Scheme | None = None,
    *,
    query_positions: Positions | None = None,
    key_positions: Positions | None = None,
    is_causal: bool = False,
    window: Window = None,
    scale: float | None = None,
) -> Float[Tensor, "batch heads queries keys"]:
    """The scores, all of them, as the reference has them: after the rotate and score doors, before mask and softmax.

    ``is_causal`` and ``window`` do not mask; they tell schemes that look along the row, such as CoPE, which keys a
    query sees. Float32 for half-precision inputs, float64 for float64 ones.
    """
    encoding = bound(query, key, key, encoding, query_positions, key_positions)
    call = call_of(query, key, key, encoding, None, is_causal, window, 0.0, scale, False, None)
    with _without_autocast(query):
        return dense_logits(call.turned())


def explain(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    encoding: Encoding | Scheme | None = None,
    *,
    query_positions: Positions | None = None,
    key_positions: Positions | None = None,
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    window: Window = None,
    sinks: Float[Tensor, " heads"] | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    skip_below: float | None = None,
    key_norms: Float[Tensor, "batch kv_heads keys"] | None = None,
) -> Explanation:
    """Which backend `attention` takes for these arguments, why, and why the others cannot run them.

    What `attention` would refuse, for other heads or distances past a table too, is the same error here; nothing of the
    size of the scores is computed.

    >>> print(posenc.explain(q, k, v, posenc.ALiBi(12), is_causal=True))
    native: every term goes by distance, and the kernel makes the scores as it goes
    """
    _, call = request(
        query,
        key,
        value,
        encoding,
        query_positions,
        key_positions,
        attn_mask=attn_mask,
        is_causal=is_causal,
        window=window,
        sinks=sinks,
        dropout_p=dropout_p,
        scale=scale,
        enable_gqa=enable_gqa,
        return_lse=return_lse,
        skip_below=skip_below,
        key_norms=key_norms,
    )
    _bind_pairs(call)
    return bands.explain(call)


@torch.no_grad()
def _bind_pairs(call: Call) -> None:
    """Makes every pair term once, so that it can refuse. Query and key have shapes and no numbers, so that nothing is
    computed from them; a term that must look at numbers raises its errors when it runs."""
    call.check()
    few = call.part(slice(0, 1), slice(0, 1))  # what it says of heads and widths it says of one pair
    pieces = [sliced(piece, slice(0, 1), slice(0, 1)) for piece in call.pieces]

    def shape_of(x: Any) -> Any:
        return None if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)

    with compat.without_numbers():
        query, key = shape_of(few.query), shape_of(few.key)
        # A view of a table's rows, met as it is, would be asked for its gradient, of which torch warns.
        pieces = [
            replace(p, query=shape_of(p.query), key=shape_of(p.key)) if isinstance(p, Fold) else p for p in pieces
        ]
    pair = replace(few, query=query, key=key).block()
    for piece in pieces:
        with suppress(RuntimeError):
            if adds(piece):
                added(piece, pair)


def _without_autocast(x: Tensor) -> AbstractContextManager[object]:
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
