"""Queries that grow with the number of tokens up to them, n = p + 1.

    llama4          1 + a ln(1 + floor(n / L))          transformers, models/llama4, of layers without RoPE
    ministral3      1 + a ln(1 + floor((n - 1) / L))    models/ministral3 and models/mistral4
    inkling         1 + a ln max(1, n / L)              models/inkling
    beam            (1 + n / L)^a                       models/beam, which writes exp(a log1p(n / L))
    rerope          max(1, ln n / ln L)                 ports of the author's code
    mistral_large4  s_h ln n + b_h                      models/mistral_large4
    ssmax           s_h ln n                            Nakanishi 2025 (arXiv 2501.19399)

and with n the length of the row, its highest position and one more, for all of its queries:

    chunkllama      (0.05 ln(n / L) + 1)^2 past L, else 1    get_mscale of chunkllama_attn_replace.py, of both sides
    qwen2_5_1m      max(0.1 ln(n / L) + 1, 1)                vLLM's dual_chunk_flash_attn.py, of keys

Conventions: keys are left alone; p is the token's position, from 0 on, fractional if it likes.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .attention import vector
from .case import HEADS, Case, rows

L, A = 4, 0.35
OF_ROWS = ("chunkllama", "qwen2_5_1m")


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
    if form == "chunkllama":
        return (A * math.log(n / L) + 1) ** 2 if n > L else 1.0
    if form == "qwen2_5_1m":
        return max(A * math.log(n / L) + 1, 1.0) if n else 1.0  # a row of padding has no length
    return s * math.log(n) + b


def places(positions: Any, form: str) -> list[list[float]]:
    """p of every token, and in the last two forms of all tokens the last one of the row."""
    if form not in OF_ROWS:
        return rows(positions)
    real = positions.expand(2).document.tolist()
    found = []
    for line, document in zip(rows(positions), real, strict=True):
        last = max((p for p, d in zip(line, document, strict=True) if d >= 0), default=-1)
        found.append([last] * len(line))
    return found


def grown(form: str) -> Callable[[Tensor, Any, Any], Tensor]:
    """The queries, each times its number."""

    def turn(x: Tensor, positions: Any, scheme: Any) -> Tensor:
        s = vector(scheme.s) if hasattr(scheme, "s") else [0.0] * HEADS
        b = vector(scheme.b) if getattr(scheme, "b", None) is not None else [0.0] * HEADS
        factors = [
            [[factor(form, p if form in OF_ROWS else max(p, 0.0), s[h], b[h]) for p in line] for h in range(HEADS)]
            for line in places(positions, form)
        ]
        return x * x.new_tensor(factors)[..., None]

    return turn


def _fixed(form: str) -> Case:
    arguments = {"length": L} | ({} if form == "rerope" else {"strength": A})
    of_rows = form in OF_ROWS
    return Case(
        lambda QueryScale: QueryScale(form, **arguments),
        turn_query=grown(form),
        from_zero=not of_rows,
        one_document=of_rows,
    )


FIXED = ("llama4", "ministral3", "inkling", "beam", "rerope", *OF_ROWS)
CASES = {f"query_scale {form}": _fixed(form) for form in FIXED} | {
    f"query_scale {form}": Case(
        lambda QueryScale, form=form: QueryScale(form, num_heads=HEADS), turn_query=grown(form), from_zero=True
    )
    for form in ("mistral_large4", "ssmax")
}
