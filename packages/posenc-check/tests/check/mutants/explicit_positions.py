"""Positions that are told, with gaps and by row; batches whose rows are strangers; and layers that are told none."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc_check import Layer, Model
from posenc_check.subjects import call_module
from tests.check.mutants import Mutant
from tests.check.mutants.layers import HEAD_DIM, HEADS, Rotating, call

PLACES = 40


# -- bugs: other rows --------------------------------------------------------------------------------------------------


class FarthestOfTheBatch(Rotating):
    """Positions are interpolated into those it was trained at, by the farthest that there is in the batch."""

    def turn(self, x: Tensor, places: Tensor, all_places: Tensor) -> Tensor:
        far = all_places.max().clamp(min=8 * PLACES) / (8 * PLACES)
        return super().turn(x, places / far, all_places)


# -- layers that are told nothing --------------------------------------------------------------------------------------


class Alone(nn.Module):
    """Attention with a bias for each distance, for layers that are given vectors alone."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.project, self.out = nn.Linear(32, 3 * HEADS * HEAD_DIM), nn.Linear(HEADS * HEAD_DIM, 32)
        self.table = nn.Parameter(torch.randn(HEADS, 129))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(self.before(x)).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        place = torch.arange(x.size(1))
        mask = self.bias(place[:, None], place)
        if self.causal:
            mask = mask.masked_fill(place > place[:, None], -torch.inf)
        return self.out(F.scaled_dot_product_attention(query, key, value, mask.to(query)).transpose(1, 2).flatten(2))

    def before(self, x: Tensor) -> Tensor:
        return x

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        return self.table[:, (k - q).clamp(-64, 64) + 64]


class Shifted(Alone):
    """Half of the channels are those of the token before (RWKV's token shift)."""

    def before(self, x: Tensor) -> Tensor:
        own, earlier = x.chunk(2, -1)
        return torch.cat((own, F.pad(earlier, (0, 0, 1, 0))[:, :-1]), -1)


class Twice(nn.Module):
    """Two of them, each with its norm."""

    def __init__(self, layer: type[Alone] = Alone, second: type[Alone] = Alone) -> None:
        super().__init__()
        self.first, self.second, self.norm = layer(), second(), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(self.norm(x))
        return x + self.second(self.norm(x))


class Unnormalised(Alone):
    """What comes out of attention grows with the tokens there were."""

    def forward(self, x: Tensor) -> Tensor:
        count = torch.arange(1, x.size(1) + 1).to(x)[:, None]
        return super().forward(x) * count.sqrt()


# -- tables with an end ------------------------------------------------------------------------------------------------


class Table(nn.Module):
    """A learned vector for each of 40 positions, and the mean of the tokens so far."""

    rows = PLACES

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.table = nn.Embedding(48, 32), nn.Embedding(self.rows, 32)

    def forward(self, ids: Tensor) -> Tensor:
        self.refuse(ids.size(1))
        x = self.embedding(ids) + self.table(self.places(ids))
        return x.cumsum(1) / torch.arange(1, ids.size(1) + 1).to(x)[:, None]

    def places(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.size(1))

    def refuse(self, tokens: int) -> None:
        if tokens > PLACES:
            raise ValueError(f"rows must have at most {PLACES} tokens, got {tokens}")


class TooLongError(Exception):
    """An error of one's own."""


class RefusedByAnErrorOfItsOwn(Table):
    def refuse(self, tokens: int) -> None:
        if tokens > PLACES:
            raise TooLongError(f"a row has at most {PLACES} tokens")


class RefusedWhileRunning(Table):
    def refuse(self, tokens: int) -> None:
        if tokens > PLACES:
            raise RuntimeError("the row is too long")


class OneRowShort(Table):
    rows = PLACES - 1


# -- subjects ----------------------------------------------------------------------------------------------------------


def told(build: Any, **claims: Any) -> Layer:
    return Layer(**{"build": build, "call": call, "causal": True, "relative": True, **claims})


def alone(build: Any, **claims: Any) -> Layer:
    return Layer(**{"build": build, "call": call_module, **claims})


def table(build: Any, **claims: Any) -> Model:
    return Model(**{"build": build, "call": call_module, "causal": True, "max_positions": PLACES, **claims})


CORRECT = (
    alone(Alone, normalized=True),
    alone(Alone, options={"causal": True}, causal=True, normalized=True),
    alone(Twice, normalized=True, directed=True),
    alone(Shifted, options={"causal": True}, causal=True, normalized=True),
    table(Table),
    table(RefusedByAnErrorOfItsOwn, max_positions=None),
    table(RefusedWhileRunning, max_positions=None),
)
MUTANTS = (
    Mutant("scaled by the farthest of the batch", told(FarthestOfTheBatch), 19, 6),
    Mutant("sums in place of means", alone(Unnormalised, normalized=True), 19, 18),
    Mutant("a table of one row too few", table(OneRowShort), 19, 14),
)
