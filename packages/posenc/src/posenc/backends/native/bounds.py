"""Upper bounds of scores, from norms of vectors, by which the kernel skips keys of negligible weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.native.structures import SPAN
from posenc.encoding.horizon import skip_threshold

UNBOUNDED = ("key_vectors", "plane", "by_row", "by_column", "away")  # terms without a bound
FEWEST_KEYS = 256  # the minimum for which bounds pay off
FEWEST_QUERIES = 16  # the minimum for which computing the norms of all keys pays off


def bounds_of(
    query: Tensor, key: Tensor, given: Mapping[str, Tensor], function: Sequence[int], scale: float, skip_below: float
) -> dict[str, Tensor]:
    """The tensors of `bounds.h`, by name; empty if no key can be skipped.

    ``given`` are the operator's tensors by name. Keys can be skipped because of a bias (heads or 1, entries, 1) that
    decays far enough, or of cumulative features (batch, heads, tokens). A function of the score has no such bound.
    "key_norms" (batch, kv_heads, keys) are the norms of keys, if the caller has them.
    """
    keys, bias = key.size(2), given.get("bias")
    if function[0] or any(name in given for name in UNBOUNDED) or skip_below <= 0 or keys < FEWEST_KEYS:
        return {}
    key_norms = given.get("key_norms")
    if key_norms is None and query.size(2) < FEWEST_QUERIES:  # the kernel checks computed scores instead
        return {}
    if "key_clock" not in given and (bias is None or not _falls(bias, skip_threshold(skip_below, keys))):
        return {}
    shift = given.get("shift")
    moved = query if shift is None else query + shift[:, None]
    bounds = {
        "query_most": _lengths(moved) * (scale * _growth(given)),
        "key_most": _greatest(_lengths(key) if key_norms is None else key_norms),
    }
    if bias is not None:
        bounds["bias_most"] = _greatest(bias[..., 0])
    if "vectors" in given:
        vectors = _lengths(given["vectors"]).amax(-1, keepdim=True)
        met = _lengths(given["meeting"]) if "meeting" in given else _lengths(query) * scale
        bounds["meeting_most"] = met * vectors
    if "key_clock" in given:
        bounds["clock_least"] = -_greatest(-given["key_clock"])
    return {name: x.contiguous() for name, x in bounds.items()}


def _falls(bias: Tensor, by: float) -> bool:
    """Whether a bias decays so far that keys can be skipped because of it alone. False with NaN."""
    least, most = torch.aminmax(bias)
    return bool(least - most < by)


def _lengths(x: Tensor) -> Tensor:
    found = torch.linalg.vector_norm(x, dim=-1)
    # An upper bound without a float32 copy of x: the norm rounded to bfloat16 may be too low by a factor of 1 - 2**-9.
    return found if found.dtype != torch.bfloat16 else found.float() * (1 + 2**-8)


def _growth(given: Mapping[str, Tensor]) -> Tensor | float:
    """The largest factor by which the rotation can increase |q| |k|: other channels keep their norm."""
    if "query_cos" not in given:
        return 1.0
    most = [torch.hypot(given[f"{side}_cos"], given[f"{side}_sin"]).amax().clamp(min=1.0) for side in ("query", "key")]
    return most[0] * most[1]


def _greatest(x: Tensor) -> Tensor:
    """The maximum of every `SPAN` elements of (..., n), (..., spans)."""
    missing = -x.size(-1) % SPAN
    return F.pad(x, (0, missing), value=-torch.inf).unflatten(-1, (-1, SPAN)).amax(-1)
