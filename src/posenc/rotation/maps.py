"""Maps of tokens: what every one of them may be, and those that are no rotation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import one_or, shown

TokenMap: TypeAlias = Callable[[Tensor], Tensor]
"""A map per token: x (batch, heads, tokens, head_dim) to the same batch, heads and tokens, in the same dtype."""


def unchanged(x: Tensor) -> Tensor:
    """The map that leaves a token as it is."""
    return x


@dataclass(frozen=True, eq=False)
class Scaled:
    """Multiplies x (batch, heads, tokens, channels) by a number for each token, in float32 at least, rounded once."""

    factor: Float[Tensor, "rows heads tokens 1"]
    heads: int | None = None  # those of x; None: any number of them, alike

    def __call__(self, x: Float[Tensor, "batch heads tokens channels"]) -> Float[Tensor, "batch heads tokens channels"]:
        """The scaled x, in x's dtype. ValueError where the factor is of other rows, heads or tokens."""
        made = self.factor.shape[:-1]
        is_misfit = x.dim() != 4 or any(not one_or(m, n) for m, n in zip(made, x.shape[:-1], strict=True))
        if is_misfit or (self.heads is not None and self.heads != x.size(1)):
            raise ValueError(f"the scale was made for (batch, heads, tokens) {tuple(made)}, got {tuple(x.shape)}")
        dtype = torch.promote_types(x.dtype, torch.float32)
        return (x.to(dtype) * self.factor.to(dtype)).to(x.dtype)


@dataclass(frozen=True, eq=False)
class OfKeyHeads:
    """A map of keys (batch, heads, tokens, head_dim) of this many heads. The map within takes queries too, which have
    several times as many."""

    turn: TokenMap
    heads: int

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        """What the map makes of x. ValueError for other heads."""
        return self.fitted_to(x)(x)

    def fitted_to(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> TokenMap:
        """The map within. ValueError for an x of other heads."""
        if x.dim() == 4 and x.size(1) != self.heads:
            raise ValueError(
                f"the rotation was made for keys of {self.heads} heads, got {x.size(1)}: build it for as many heads as "
                "keys have"
            )
        return self.turn


def misfit(made: Sequence[int], x: Tensor) -> str:
    """What is said of an x that is not of the (batch, heads, tokens) that a rotation was made for."""
    of_heads = made[1] != 1 and x.dim() == 4 and x.size(1) != made[1]
    hint = ": build it for as many heads as keys have" if of_heads else ""
    return f"the rotation was made for (batch, heads, tokens) {tuple(made)}, got {tuple(x.shape)}{hint}"


def shared_by(of_heads: Tensor, heads: int) -> Tensor:
    """What stands (rows, made for heads, ...), for ``heads`` heads: where there are several times as many, which are
    queries, each group that shares a key shares what is the key's. As it is where the numbers do not fit."""
    group, over = heads // of_heads.size(1), heads % of_heads.size(1)  # a graph's symbols have no divmod
    return of_heads if over or group <= 1 else of_heads.repeat_interleave(group, 1)


def in_bands(
    maps: Sequence[Sequence[tuple[TokenMap, TokenMap]]], query: Tensor, key: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Queries and keys as each band has them. ``maps`` are those of one rotation after another, of queries and of keys:
    a pair for each band, or one for all. What bands share is made once. ValueError where they get several widths."""
    turned = [(query, key)]
    for of_bands in maps:
        if len(of_bands) == len(turned) == 1:
            turned = [(of_q(q), of_k(k)) for (of_q, of_k), (q, k) in zip(of_bands, turned, strict=True)]
            continue
        turned = turned if len(turned) > 1 else turned * len(of_bands)
        of_bands = of_bands if len(of_bands) > 1 else list(of_bands) * len(turned)
        # Compared by "is": a compiled graph that holds the id of a tensor would be compiled anew for each tensor.
        known: list[tuple[TokenMap, Tensor, Tensor]] = []

        def once(turn: TokenMap, x: Tensor, known: list[tuple[TokenMap, Tensor, Tensor]] = known) -> Tensor:
            for same, of, out in known:
                if of is x and same is turn:
                    return out
            known.append((turn, x, turn(x)))
            return known[-1][2]

        turned = [(once(of_q, q), once(of_k, k)) for (of_q, of_k), (q, k) in zip(of_bands, turned, strict=True)]
    widths = [x.size(-1) for pair in turned for x in pair]
    if len(turned) > 1 and len(set(widths)) > 1:
        raise ValueError(
            f"bands must make queries and keys as wide as the rotation does for near pairs, {widths[0]}, got {widths}"
        )
    return turned


def one_scale(scales: Sequence[float | None]) -> str:
    """What is said of several rotations that each bring a factor of the inner product."""
    return (
        "one rotation alone can bring a scale, since it is the factor of queries and keys as that one makes them, "
        f"got {', '.join(map(shown, scales))}"
    )
