"""attention() and logits(): PyTorch's scaled_dot_product_attention, plus an encoding."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posenc import compat
from posenc.arguments import instead_of
from posenc.backends import bands
from posenc.backends.call import Call, sliced
from posenc.backends.choose import Explanation
from posenc.backends.plan import attend
from posenc.backends.reference import dense_logits
from posenc.backends.request import FOR_PADDING, Align, Options, Request
from posenc.encoding.encoding import Encoding
from posenc.lowering.forms import added
from posenc.positions.positions import Positions
from posenc.positions.tiles import Window
from posenc.scheme import Scheme


def attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    encoding: Encoding | Scheme | None = None,
    *misplaced: None,
    query_positions: Positions | None = None,
    key_positions: Positions | None = None,
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    window: Window = None,
    sinks: Float[Tensor, " heads"] | Float[Tensor, "batch heads queries"] | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    backend: str = "auto",
    return_lse: bool = False,
    skip_below: float | None = None,
    key_norms: Float[Tensor, "batch kv_heads keys"] | None = None,
    **unknown: None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Scaled dot product attention with a positional encoding: softmax(scores) value.

    The encoding may rotate query and key, modify the scores, and add to the output. The arguments of
    `torch.nn.functional.scaled_dot_product_attention` mean what they mean there, but for is_causal with fewer queries
    than keys.

    - ``query`` (batch, heads, queries, head_dim): what each token asks for.
    - ``key`` (batch, kv_heads, keys, head_dim): with fewer key and value heads than query heads, query heads share
      them, with or without ``enable_gqa``.
    - ``value`` (batch, kv_heads, keys, value_dim): what is averaged.
    - ``encoding``: an `Encoding`, or a scheme, which is then bound to ``query_positions`` and ``key_positions``.
    - ``query_positions``: the positions of the queries, by default the last M of 0 .. N-1. Without an encoding they
      still determine the mask. With more queries than keys they must be given where anything depends on them.
    - ``key_positions``: those of the keys, by default 0 .. N-1, or ``query_positions`` if these alone are given and
      there are as many keys as queries.
    - ``attn_mask``: broadcasts to (batch, heads, queries, keys): bool, True = may attend, or float, added to the
      scores. A float mask is not supported where scores are logarithms of weights, as in stick-breaking.
    - ``is_causal``: whether a query attends only to keys whose order is not above its own. Order is compared, not
      coordinates or indices: with fewer queries than keys, the last query attends to every key.
    - ``align``: which keys the queries are, where no positions are given: ``"lower_right"``, the default, the last of
      them, as with a cache; or ``"upper_left"``, the first, as PyTorch's ``is_causal`` takes them. The names are those
      of `torch.nn.attention.bias`. It matters where queries and keys differ in number; positions say it themselves.
    - ``window``: how many keys a query attends to, counted in order: an int n, the query's own key and the n - 1 before
      it; or (left, right), the number of keys before and after it, None for no limit. With `Chunk(n)` a query attends
      only to keys of its own chunk: coordinates 0 .. n-1, n .. 2n-1, and so on.
    - ``sinks`` (heads,) or (batch, heads, queries): an extra logit in every row's softmax, per head or also per
      query. It has no value. The log-sum-exp includes it.
    - ``dropout_p``: the probability of dropping a weight, applied whenever it is above 0.
    - ``scale``: the factor of the scores, by default 1/sqrt(head_dim).
    - ``enable_gqa``: accepted for PyTorch's sake, and changes nothing.
    - ``backend``: ``"auto"`` (`explain` returns the choice), or one of ``"sdpa"``, ``"native"``, ``"triton"``,
      ``"flex"``, ``"flex_flash"``, ``"chunked"`` and ``"reference"``. A named backend runs or raises ValueError; it
      never falls back.
    - ``return_lse``: also return the log-sum-exp of each row of scores, (batch, heads, queries), which `merge` needs.
      Where scores are logarithms of unnormalized weights, as in stick-breaking, it is the logarithm of their sum.
    - ``skip_below``: the fraction of a row's attention weight that may be skipped. Where a term decays with distance,
      distant keys whose total weight is at most this fraction, whatever the queries and keys, are not computed and
      their values are not read: NaN in them does not propagate. A distant key with a larger score is computed.
      Supported by ``"native"``, ``"triton"`` and ``"flex"``; `explain` reports how much is computed.
      Default: 2**-32, a 256th of float32 rounding (2**-61 for float64 inputs); ``0.0`` computes everything.
    - ``key_norms`` (batch, kv_heads, keys): the norms of the rotated keys, if the caller has them, as `KVCache` does. A
      few queries then need not read the keys that they skip. Norms that are too small skip keys that count.

    The model itself calls ``x = encoding.add(x)``, before query, key and value are projected from x. Tokens attend only
    within their own document. Padding attends to nothing. A query without any visible key gets zeros, also in every
    gradient.

    Fused kernels have only a first derivative: for a second one, or under `torch.func`, use ``backend="reference"``.

    Scores are float32 for half-precision inputs.

    Returns (batch, heads, queries, value_dim) in the query's dtype; with ``return_lse`` that and the log-sum-exp.

    Raises ValueError for shapes that do not fit, for an encoding that adds vectors and whose ``add`` was not called,
    for an unbound scheme that adds, and for a named backend that does not support the call.
    """
    if misplaced or unknown:
        raise _refused(attention, misplaced, unknown)
    options = Options(is_causal, align, window, dropout_p, scale, enable_gqa, backend, return_lse, skip_below)
    out, lse = attend(
        Request(query, key, value, encoding, query_positions, key_positions, attn_mask, sinks, key_norms, options)
    )
    if not return_lse:
        return out
    assert lse is not None
    return out, lse


def _refused(function: Callable[..., Any], misplaced: tuple[object, ...], unknown: Mapping[str, object]) -> TypeError:
    """The error for arguments that one of these functions does not take, with the name to pass instead."""
    if misplaced:
        return TypeError(
            f"{function.__name__} takes tensors and the encoding by position, got {len(misplaced)} too many: "
            "PyTorch's attention(q, k, v, mask, 0.1, True) is attention(q, k, v, attn_mask=mask, dropout_p=0.1, "
            "is_causal=True)"
        )
    argument, parameters = next(iter(unknown)), inspect.signature(function).parameters.values()
    if argument == "key_padding_mask":
        return TypeError(f"{function.__name__} has no argument {argument!r}; {FOR_PADDING}")
    known = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    known += sorted(EXPLAINED) if function is explain else []
    return TypeError(f"{function.__name__} has no argument {argument!r}{instead_of(argument, known)}")


def logits(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    encoding: Encoding | Scheme | None = None,
    *misplaced: None,
    query_positions: Positions | None = None,
    key_positions: Positions | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    window: Window = None,
    scale: float | None = None,
    **unknown: None,
) -> Float[Tensor, "batch heads queries keys"]:
    """All scores, as the reference backend computes them: after the rotate and score doors, before mask and softmax.

    ``is_causal`` and ``window`` do not mask the result. Schemes that depend on the whole row, such as CoPE, use them to
    know which keys a query attends to. Returns float32 for half-precision inputs, float64 for float64 inputs.
    """
    if misplaced or unknown:
        raise _refused(logits, misplaced, unknown)
    options = Options(is_causal, align, window, scale=scale)
    request = Request(query, key, key, encoding, query_positions, key_positions, options=options).bound()
    with compat.without_autocast(query):
        return dense_logits(request.call(request.settled()).rotated())


def explain(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    encoding: Encoding | Scheme | None = None,
    *misplaced: None,
    **options: Any,
) -> Explanation:
    """Which backend `attention` uses for these arguments, why, and why the others cannot run them.

    ``options`` are those of `attention`, such as ``is_causal=True``, without ``backend``.

    Raises the errors that `attention` raises, including those for a wrong number of heads or a distance beyond a table.
    Computes nothing of the size of the scores; on the CPU it may run the race that decides (docs/performance.md).

    >>> print(posenc.explain(q, k, v, posenc.ALiBi(12), is_causal=True))
    native: every term depends on distance, and the kernel computes the scores on the fly
    """
    if misplaced or not options.keys() <= EXPLAINED:
        raise _refused(explain, misplaced, {name: x for name, x in options.items() if name not in EXPLAINED})
    *_, call = Request.of(query=query, key=key, value=value, encoding=encoding, **options).checked()
    _bind_pairs(call)
    return bands.explain(call)


KEYWORDS = inspect.signature(attention).parameters.values()
EXPLAINED = {x.name for x in KEYWORDS if x.kind is x.KEYWORD_ONLY} - {"backend"}
"""The options of `explain`."""


@torch.no_grad()
def _bind_pairs(call: Call) -> None:
    """Binds every pair term once, so that it can raise its errors. Query and key have no data, so nothing is computed
    from them. A term that must read data raises its errors when it runs."""
    call.check()
    few = call.part(slice(0, 1), slice(0, 1))  # a single pair is enough to check heads and widths
    score_terms = [sliced(term, slice(0, 1), slice(0, 1)) for term in call.score_terms]

    def shape_of(x: Tensor) -> Tensor:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    with compat.without_numbers():
        query, key = shape_of(few.query), shape_of(few.key)
        # Without copies, torch would warn about the gradient of a view of a table.
        score_terms = [term.mapped(lambda side, x: shape_of(x)) for term in score_terms]
    pair = replace(few, query=query, key=key).block()
    with warnings.catch_warnings():
        # PyTorch asks each tensor for its .grad here, and warns where an encoding has a copy of a parameter.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        for term in score_terms:
            with suppress(RuntimeError):
                if term.adds:
                    added(term, pair)
