"""What scores can be at most, from lengths of vectors: by it the kernel leaves out what nobody can see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.backends.native.structures import SPAN
from posenc.encoding.horizon import faint

UNBOUNDED = ("key_vectors", "plane", "by_row", "by_column", "away")  # of which no bound is made
FEWEST_KEYS = 256  # that are worth the asking
FEWEST_QUERIES = 16  # that are worth to measure all keys for, where nobody keeps their lengths


def bounds_of(
    query: Tensor, key: Tensor, given: Mapping[str, Tensor], function: Sequence[int], scale: float, skip_below: float
) -> dict[str, Tensor]:
    """The tensors of `bounds.h`, by name; none where no key can be too faint.

    ``given`` is what the operator is given by name: a bias (heads or 1, entries, 1) that falls far enough, or clocks
    (batch, heads, tokens), are what makes a key faint. What a function makes of scores has no such bound. "key_norms"
    (batch, kv_heads, keys) are the lengths of keys where the caller keeps them.
    """
    keys, bias = key.size(2), given.get("bias")
    if function[0] or any(name in given for name in UNBOUNDED) or skip_below <= 0 or keys < FEWEST_KEYS:
        return {}
    key_norms = given.get("key_norms")
    if key_norms is None and query.size(2) < FEWEST_QUERIES:  # the kernel leaves out what its scores show to be faint
        return {}
    if "key_clock" not in given and (bias is None or not _falls(bias, faint(skip_below, keys))):
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
    """Whether a bias falls so far that a key may be too faint to be seen, by it alone. One with NaN does not."""
    least, most = torch.aminmax(bias)
    return bool(least - most < by)


def _lengths(x: Tensor) -> Tensor:
    found = torch.linalg.vector_norm(x, dim=-1)
    # A bound, and no copy of x in single precision: rounded to bfloat16, the length may be less by 2**-9 of itself.
    return found if found.dtype != torch.bfloat16 else found.float() * (1 + 2**-8)


def _growth(given: Mapping[str, Tensor]) -> Tensor | float:
    """How much longer a query and a key may become together by being turned: what is not turned keeps its length."""
    if "query_cos" not in given:
        return 1.0
    most = [torch.hypot(given[f"{side}_cos"], given[f"{side}_sin"]).amax().clamp(min=1.0) for side in ("query", "key")]
    return most[0] * most[1]


def _greatest(x: Tensor) -> Tensor:
    """Of (..., n) the greatest of every `SPAN`, (..., spans)."""
    missing = -x.size(-1) % SPAN
    return F.pad(x, (0, missing), value=-torch.inf).unflatten(-1, (-1, SPAN)).amax(-1)
