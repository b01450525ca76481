"""attention() and logits(): PyTorch's scaled_dot_product_attention, plus an encoding."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posenc import compat
from posenc.arguments import check_flag, check_type, is_number, shown
from posenc.backends import bands
from posenc.backends.call import Call, Far, sliced
from posenc.backends.choice import BACKENDS as BACKENDS
from posenc.backends.choice import Explanation
from posenc.backends.reference import dense_logits
from posenc.encoding import Context, Encoding, Rotation
from posenc.forms import added
from posenc.horizon import skipped_by_default
from posenc.pieces import Bias, Fold, adds, gives_weights
from posenc.positions import Positions
from posenc.scheme import Chunk, Scheme, Window, check_window, is_scheme
from posenc.tiles import Visibility, distances, tiles


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
      (left, right), the number of places back and forth, None for all. A `Chunk` of n: each its own n coordinates.
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
    check_flag("enable_gqa", enable_gqa)
    _check_sinks(sinks, query)
    bound = _bound(query, key, value, encoding, query_positions, key_positions)
    call = _call(query, key, value, bound, attn_mask, is_causal, window, dropout_p, scale, return_lse, sinks)
    _check_norms(key_norms, call.key)
    call = replace(call, skip_below=_share(skip_below, call.dtype), key_norms=key_norms)
    _check_value_door(call)
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
        out = bound.rotate_output(out)
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
    bound = _bound(query, key, key, encoding, query_positions, key_positions)
    call = _call(query, key, key, bound, None, is_causal, window, 0.0, scale, False, None, checks=False)
    with _without_autocast(query):
        return dense_logits(call)


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
    check_flag("enable_gqa", enable_gqa)
    _check_sinks(sinks, query)
    bound = _bound(query, key, value, encoding, query_positions, key_positions)
    call = _call(query, key, value, bound, attn_mask, is_causal, window, dropout_p, scale, return_lse, sinks)
    _check_norms(key_norms, call.key)
    call = replace(call, skip_below=_share(skip_below, call.dtype), key_norms=key_norms)
    _check_value_door(call)
    _bind_pairs(call)
    return bands.explain(call)


def _bound(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    encoding: Encoding | Scheme | None,
    query_positions: Positions | None,
    key_positions: Positions | None,
) -> Encoding:
    """The encoding, or the scheme bound to the positions; all of it checked against the tensors."""
    _check_tensors(query, key, value)
    if isinstance(encoding, Tensor):
        raise ValueError(
            f"encoding must be an Encoding, a Scheme or None; pass a mask as attn_mask=, got {shown(encoding)}"
        )
    if encoding is not None and not isinstance(encoding, Encoding) and not is_scheme(encoding):
        check_type("encoding", encoding, Encoding, Scheme, None)
    check_type("query_positions", query_positions, Positions, None)
    check_type("key_positions", key_positions, Positions, None)
    if isinstance(encoding, Encoding):
        if query_positions is not None or key_positions is not None:
            raise ValueError("encoding is bound to positions already; give it alone, or a scheme with positions")
        encoding.check(query, key)
        encoding.check_token_doors()
        return encoding
    query_positions, key_positions = _default_positions(query, key, query_positions, key_positions)
    bound = _bind(encoding, query_positions, key_positions, torch.promote_types(query.dtype, torch.float32))
    bound.check(query, key)
    return bound


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bound: Encoding,
    attn_mask: Tensor | None,
    is_causal: bool,
    window: Window,
    dropout_p: float,
    scale: float | None,
    return_lse: bool,
    sinks: Tensor | None,
    checks: bool = True,
) -> Call:
    if attn_mask is not None:
        _check_mask(attn_mask, (*query.shape[:3], key.size(2)), query)
        attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + attn_mask.shape)
    if not _is_number(dropout_p) or not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p must be within [0, 1), got {shown(dropout_p)}")
    if scale is None:
        scale = bound.scale if bound.scale is not None else 1 / math.sqrt(query.size(-1))
    elif not _is_number(scale) or not -math.inf < scale < math.inf:
        raise ValueError(f"scale must be a finite number or None, got {shown(scale)}")
    if gives_weights(bound.pieces[:-1]):
        raise ValueError(
            "a score term stands after one that gives the logarithms of weights, which are not normalised again, and "
            "would change them: put the scheme that gives weights last"
        )
    if attn_mask is not None and attn_mask.is_floating_point() and gives_weights(bound.pieces):
        raise ValueError(
            "attn_mask is added to scores that are the logarithms of weights and are not normalised again, which would "
            f"change them: pass it as bool, True = may be seen, got {shown(attn_mask)}"
        )
    if sinks is not None and gives_weights(bound.pieces):
        raise ValueError("sinks take a share of weights that sum to 1, and the scheme's weights do not: leave them out")
    flag: object = is_causal
    if not isinstance(flag, torch.SymBool):  # a compiler's
        check_flag("is_causal", flag)
    check_flag("return_lse", return_lse)
    if isinstance(window, Chunk):
        bound, window = bound.in_chunks(window.size), None
    left, right = check_window(window)
    if _is_autocast(query):  # as PyTorch's own attention does
        query, key, value = (x.to(torch.get_autocast_dtype(query.device.type)) for x in (query, key, value))
    value = bound.rotate_value(value)
    (query, key), *far = bound.rotate_bands(query, key)
    banded = bound.banded
    reaches = () if banded is None else tuple(band.reach for band in banded.bands)
    call = Call(
        query,
        key,
        value,
        bound.query_positions,
        bound.key_positions,
        bound.pieces,
        bound.values,
        attn_mask,
        Visibility(is_causal, left, right),
        dropout_p,
        scale,
        return_lse or sinks is not None or gives_weights(bound.pieces),
        bound.context.heads,
        bound.query_features,
        bound.key_features,
        bands=tuple(Far(reach, *of_band) for reach, of_band in zip(reaches, far, strict=True)),
        chunk=None if banded is None else banded.chunk,
    )
    if checks:
        _check_direction(call, bound.rotations)
    return call


def _check_direction(call: Call, rotations: tuple[Rotation, ...]) -> None:
    """ValueError where a term or a rotation that is made for keys behind the query meets one after it, as far as can be
    told."""
    made = [piece.distance for piece in call.pieces if isinstance(piece, Bias) and piece.distance.looks_back]
    refusals = [rotation.refuses for rotation in rotations if rotation.refuses is not None]
    if not (made or refusals) or call.visibility.furthest == 0 or torch.compiler.is_compiling():
        return
    mask = call.attn_mask
    # A mask of a row for each query may be the causal one; one row for several queries hides no later key from all.
    if mask is not None and (call.query.size(2) == 1 or (mask.size(2) != 1 and mask.stride(2) != 0)):
        return
    if 0 in (call.query.size(2), call.key.size(2)):
        return
    ends = None
    if call.layouts is not None:
        ends = distances(list(tiles(*call.layouts, call.visibility, call.query.size(0))))
    if made and ends is not None and ends[1] > 0:
        raise ValueError(
            f"{made[0].scheme} as it is made encodes keys behind the query alone, and without a causal mask a query "
            f"sees keys after it: pass is_causal=True (an attn_mask may stand beside it), or make it with "
            f"{made[0].looks_back}"
        )
    ahead = ends[1] if ends is not None else math.inf if call.visibility.furthest is None else 0
    for refuses in refusals:
        reason = refuses(call.query.dtype, ahead)
        if reason is not None:
            raise ValueError(reason)


def _check_sinks(sinks: Tensor | None, query: Tensor) -> None:
    if sinks is None:
        return
    heads = query.size(1) if isinstance(query, Tensor) and query.dim() == 4 else "heads"
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point() or tuple(sinks.shape) != (heads,):
        raise ValueError(f"sinks must be a floating tensor ({heads},), a logit for each head, got {shown(sinks)}")
    if sinks.device != query.device:
        raise ValueError(f"sinks must be on {query.device} like query, got {sinks.device}")


def _is_number(value: object) -> bool:
    """Whether it is a number, or a compiler's sign for one."""
    return is_number(value) or isinstance(value, (torch.SymInt, torch.SymFloat))


def _share(skip_below: float | None, dtype: torch.dtype) -> float:
    if skip_below is None:
        return skipped_by_default(dtype)
    if not is_number(skip_below) or not 0 <= skip_below < 1:
        raise ValueError(f"skip_below must be within [0, 1), or None for 2**-32, got {shown(skip_below)}")
    return skip_below


def _check_norms(key_norms: Tensor | None, key: Tensor) -> None:
    if key_norms is None:
        return
    is_tensor = isinstance(key_norms, Tensor) and key_norms.is_floating_point() and not key_norms.requires_grad
    if not is_tensor or key_norms.shape != key.shape[:3] or key_norms.device != key.device:
        shape = tuple(key.shape[:3])
        raise ValueError(
            f"key_norms must be a floating tensor {shape} on {key.device}, the norm of each key, without a gradient, "
            f"got {shown(key_norms)}"
        )


def _check_value_door(call: Call) -> None:
    """ValueError where the value door has vectors of another width, or for other heads."""
    block = call.raw_block()
    for term in call.values:
        vectors = block.of_heads(
            term.vectors(torch.zeros(1, dtype=torch.int64, device=call.query.device)), term.distance.scheme
        )
        if vectors.size(-1) != call.value.size(-1):
            raise ValueError(
                f"value must have a value_dim of {vectors.size(-1)} for the value door, got {call.value.size(-1)}"
            )


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


def _bind(scheme: Scheme | None, query_positions: Positions, key_positions: Positions, dtype: torch.dtype) -> Encoding:
    if scheme is None:
        return Encoding(query_positions, key_positions, context=Context())  # a compiler makes no default of its own
    if "add" in scheme.doors:
        raise ValueError(
            f"{type(scheme).__name__} adds to the input, before query, key and value are projected from it: "
            "bind it, encoding = scheme(positions), call x = encoding.add(x), and pass that encoding"
        )
    return scheme(query_positions, key_positions, dtype=dtype)


def _is_autocast(x: Tensor) -> bool:
    """Whether autocast would cast x: it leaves float64 alone, and does not know every device (meta)."""
    kind = x.device.type
    return x.dtype != torch.float64 and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _without_autocast(x: Tensor) -> AbstractContextManager[object]:
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _default_positions(
    query: Tensor, key: Tensor, query_positions: Positions | None, key_positions: Positions | None
) -> tuple[Positions, Positions]:
    for name, x, positions in (("query", query, query_positions), ("key", key, key_positions)):
        if positions is not None and positions.order.size(1) != x.size(2):
            raise ValueError(f"{name}_positions must be of {x.size(2)} tokens like {name}, got {len(positions)}")
    if key_positions is None and query_positions is not None:
        if query.size(2) != key.size(2):
            raise ValueError(
                f"key_positions must be given with query_positions where there are {query.size(2)} queries and "
                f"{key.size(2)} keys: where the keys are cannot be told from the queries"
            )
        key_positions = query_positions
    if key_positions is None:
        key_positions = Positions.arange(key.size(2), device=key.device)
    if query_positions is None:
        if query.size(2) > key.size(2):
            raise ValueError(
                f"queries are by default the last of the keys, but there are {query.size(2)} queries and "
                f"{key.size(2)} keys: give query_positions and key_positions"
            )
        query_positions = key_positions[key.size(2) - query.size(2) :]
    return query_positions, key_positions


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
            raise ValueError(f"{name} must be a floating tensor (batch, heads, tokens, head_dim), got {shown(x)}")
        if x.device != query.device:
            raise ValueError(f"{name} must be on {query.device} like query, got {x.device}")
        if x.dtype != query.dtype and not (_is_autocast(query) and _is_autocast(x)):
            raise ValueError(f"{name} must be {query.dtype} like query, got {x.dtype}")
        if x.size(0) != query.size(0):
            raise ValueError(f"{name} must have batch {query.size(0)} like query, got {x.size(0)}")
    if query.size(-1) == 0:
        raise ValueError(f"query must have a head_dim above 0, got {tuple(query.shape)}")
    if key.size(-1) != query.size(-1):
        raise ValueError(f"key must have head_dim {query.size(-1)} like query, got {key.size(-1)}")
    if value.shape[1:3] != key.shape[1:3]:
        raise ValueError(
            f"value must have heads and tokens {tuple(key.shape[1:3])} like key, got {tuple(value.shape[1:3])}"
        )
    if key.size(1) == 0 or query.size(1) % key.size(1):
        raise ValueError(f"query heads must be a multiple of key heads, got {query.size(1)} and {key.size(1)}")


def _check_mask(mask: Tensor, shape: tuple[int, ...], query: Tensor) -> None:
    if not isinstance(mask, Tensor) or (mask.dtype != torch.bool and not mask.is_floating_point()):
        raise ValueError(
            f"attn_mask must be a tensor of bool (True = may be seen) or float (added to scores), got {shown(mask)}"
        )
    if mask.device != query.device:
        raise ValueError(f"attn_mask must be on {query.device} like query, got {mask.device}")
    if not 2 <= mask.dim() <= 4 or any(m not in (1, n) for m, n in zip(mask.shape[::-1], shape[::-1], strict=False)):
        raise ValueError(
            f"attn_mask must broadcast to (batch, heads, queries, keys) = {shape}, got {tuple(mask.shape)}"
        )
