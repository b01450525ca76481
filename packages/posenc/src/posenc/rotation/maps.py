"""Maps of tokens: their type, maps other than rotations, and their application to bands."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from posenc.arguments import one_or, shown

FOR_KEY_HEADS = ": build it for as many heads as keys have"

TokenMap: TypeAlias = Callable[[Tensor], Tensor]
"""A map per token: x (batch, heads, tokens, head_dim) to the same batch, heads and tokens, in the same dtype."""


def unchanged(x: Tensor) -> Tensor:
    """The identity map."""
    return x


@dataclass(frozen=True, eq=False)
class Scaled:
    """Multiplies x (batch, heads, tokens, channels) by a number per token, in float32 or wider, rounded once."""

    factor: Float[Tensor, "rows heads tokens 1"]
    heads: int | None = None  # the number of heads of x; None: any

    def __call__(self, x: Float[Tensor, "batch heads tokens channels"]) -> Float[Tensor, "batch heads tokens channels"]:
        """The scaled x, in x's dtype. Raises ValueError if the shapes do not match."""
        check_fits("the scale", self.factor.shape[:-1], x, self.heads)
        dtype = torch.promote_types(x.dtype, torch.float32)
        return (x.to(dtype) * self.factor.to(dtype)).to(x.dtype)


@dataclass(frozen=True, eq=False)
class InTurn:
    """Maps that are applied one after the other."""

    maps: tuple[TokenMap, ...]

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        """The mapped x."""
        return reduce(lambda y, turn: turn(y), self.maps, x)


@dataclass(frozen=True, eq=False)
class OfHeads:
    """A map of keys, or of queries, (batch, heads, tokens, head_dim) with this number of heads. The wrapped map also
    accepts those with more heads."""

    turn: TokenMap
    heads: int
    side: Literal["keys", "queries"] = "keys"

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        """The mapped x. Raises ValueError for another number of heads."""
        return self.fitted_to(x)(x)

    def fitted_to(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> TokenMap:
        """The wrapped map. Raises ValueError for another number of heads."""
        if x.dim() == 4 and x.size(1) != self.heads:
            hint = FOR_KEY_HEADS if self.side == "keys" else ""
            raise ValueError(f"the rotation was made for {self.side} of {self.heads} heads, got {x.size(1)}{hint}")
        return self.turn


def kind_of(turn: TokenMap) -> Hashable:
    """What a map does, by its name and the channels and heads that it changes. Queries and keys must not be mapped by
    two maps of a kind."""
    inside = turn.turn if isinstance(turn, OfHeads) else turn
    name, told = getattr(inside, "__qualname__", type(inside).__qualname__), getattr(inside, "__dict__", {})
    return name, *(told[part] for part in ("first", "heads") if isinstance(told.get(part), (int, range)))


def check_fits(what: str, made: Sequence[int], x: Tensor, heads: int | None = None, hint: str = "") -> None:
    """ValueError, ending with ``hint`` for a wrong number of heads, unless x is (batch, heads, tokens, channels) and
    the (batch, heads, tokens) that ``what`` was made for broadcast to it. ``heads`` is their exact number, if given."""
    is_misfit = x.dim() != 4 or any(not one_or(m, n) for m, n in zip(made, x.shape[:-1], strict=True))
    if is_misfit or (heads is not None and heads != x.size(1)):
        hint = hint if x.dim() == 4 and not one_or(made[1], x.size(1)) else ""
        raise ValueError(f"{what} was made for (batch, heads, tokens) {tuple(made)}, got {tuple(x.shape)}{hint}")


def shared_by(of_heads: Tensor, heads: int) -> Tensor:
    """A tensor (rows, key heads, ...) repeated for ``heads`` query heads; unchanged if ``heads`` is not a multiple."""
    group, over = heads // of_heads.size(1), heads % of_heads.size(1)  # symbolic sizes do not support divmod
    return of_heads if over or group <= 1 else of_heads.repeat_interleave(group, 1)


def in_bands(
    maps: Sequence[Sequence[tuple[TokenMap, TokenMap]]], query: Tensor, key: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Queries and keys of each band. ``maps`` are the query and key maps of consecutive rotations: a pair for each
    band, or one for all. Maps that bands share run once. Raises ValueError for several widths."""
    turned = [(query, key)]
    for of_bands in maps:
        if len(of_bands) == len(turned) == 1:
            turned = [(of_q(q), of_k(k)) for (of_q, of_k), (q, k) in zip(of_bands, turned, strict=True)]
            continue
        turned = turned if len(turned) > 1 else turned * len(of_bands)
        of_bands = of_bands if len(of_bands) > 1 else list(of_bands) * len(turned)
        known: list[tuple[TokenMap, Tensor, Tensor]] = []
        turned = [
            (_once(of_q, q, known), _once(of_k, k, known))
            for (of_q, of_k), (q, k) in zip(of_bands, turned, strict=True)
        ]
    widths = [x.size(-1) for pair in turned for x in pair]
    if len(turned) > 1 and len(set(widths)) > 1:
        raise ValueError(
            f"bands must give queries and keys the width that they have for near pairs, {widths[0]}, got {widths}"
        )
    return turned


def _once(turn: TokenMap, x: Tensor, known: list[tuple[TokenMap, Tensor, Tensor]]) -> Tensor:
    """``turn(x)``, found among ``known`` or put there."""
    for same, of, out in known:
        if of is x and same is turn:  # a graph that depends on the id of a tensor would be recompiled for each tensor
            return out
    known.append((turn, x, turn(x)))
    return known[-1][2]


def one_scale(scales: Sequence[float | None]) -> str:
    """The error message for several rotations that each set the softmax scale."""
    return f"only one rotation can set the softmax scale, got {', '.join(map(shown, scales))}"
