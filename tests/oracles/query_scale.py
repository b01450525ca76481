"""Queries that grow with the number of tokens up to them, n = p + 1.

    llama4          1 + a ln(1 + floor(n / L))          transformers, models/llama4, of layers without RoPE
    ministral3      1 + a ln(1 + floor((n - 1) / L))    models/ministral3 and models/mistral4
    inkling         1 + a ln max(1, n / L)              models/inkling
    beam            (1 + n / L)^a                       models/beam, which writes exp(a log1p(n / L))
    rerope          max(1, ln n / ln L)                 ports of the author's code
    mistral_large4  s_h ln n + b_h                      models/mistral_large4
    ssmax           s_h ln n                            Nakanishi 2025 (arXiv 2501.19399)

Conventions: keys are left alone; p is the token's position, from 0 on, fractional if it likes.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .attention import vector
from .case import HEADS, Case, rows

L, A = 4, 0.35


def factor(form: str, p: float, s: float = 0.0, b: float = 0.0) -> float:
    """c(n) of one head."""
    n = p + 1
    if form == "llama4":
        return 1 + A * math.log(1 + n // L)
    if form == "ministral3":
        return 1 + A * math.log(1 + p // L)
    if form == "inkling":
        return 1 + A * math.log(n / L) if n > L else 1.0
    if form == "beam":
        return math.exp(A * math.log1p(n / L))
    if form == "rerope":
        return max(1.0, math.log(n) / math.log(L))
    return s * math.log(n) + b


def grown(form: str) -> Callable[[Tensor, Any, Any], Tensor]:
    """The queries, each times its number."""

    def turn(x: Tensor, positions: Any, scheme: Any) -> Tensor:
        s = vector(scheme.s) if hasattr(scheme, "s") else [0.0] * HEADS
        b = vector(scheme.b) if getattr(scheme, "b", None) is not None else [0.0] * HEADS
        factors = [
            [[factor(form, max(p, 0.0), s[h], b[h]) for p in line] for h in range(HEADS)] for line in rows(positions)
        ]
        return x * x.new_tensor(factors)[..., None]

    return turn


def _fixed(form: str) -> Case:
    arguments = {"length": L} | ({} if form == "rerope" else {"strength": A})
    return Case(lambda QueryScale: QueryScale(form, **arguments), turn_query=grown(form), from_zero=True)


CASES = {f"query_scale {form}": _fixed(form) for form in ("llama4", "ministral3", "inkling", "beam", "rerope")} | {
    f"query_scale {form}": Case(
        lambda QueryScale, form=form: QueryScale(form, num_heads=HEADS), turn_query=grown(form), from_zero=True
    )
    for form in ("mistral_large4", "ssmax")
}
