"""Models from token ids whose positions are vectors that are added to the embeddings: BERT's table, and sinusoids."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Model
from tests.check.mutants import Mutant

PLACES, DIM = 64, 32


class Bert(nn.Module):
    """Words, types and places, a norm and dropout; then one attention of all with all."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types, self.places = (nn.Embedding(n, DIM) for n in (48, 2, PLACES))
        self.norm, self.dropout = nn.LayerNorm(DIM), nn.Dropout(0.1)
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def position_ids(self, ids: Tensor) -> Tensor:
        if ids.size(1) > PLACES:
            raise ValueError(f"rows must have at most {PLACES} tokens, got {ids.size(1)}")
        return torch.arange(ids.size(1)).expand_as(ids)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.types(torch.zeros_like(ids)) + self.places(self.position_ids(ids))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.dropout(self.norm(self.embedded(ids)))
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class PlacesFirst(Bert):
    """The types are added to the places, the words to both, and all is made larger before the norm, which undoes it."""

    def embedded(self, ids: Tensor) -> Tensor:
        x = self.places(self.position_ids(ids)) + self.types(torch.zeros_like(ids))
        return (x + self.words(ids)) * DIM**0.5


class Sines(Bert):
    """Words times sqrt(dim), and sinusoids, in the order of tensor2tensor."""

    first = 0

    def rates(self) -> Tensor:
        return torch.exp(torch.arange(0, DIM, 2).float() * (-math.log(10_000.0) / DIM))

    def embedded(self, ids: Tensor) -> Tensor:
        phase = torch.outer(torch.arange(self.first, self.first + ids.size(1)).float(), self.rates())
        x = self.dropout(self.words(ids) * DIM**0.5)
        return x + torch.cat((phase.sin(), phase.cos()), -1).to(x)


def read(model: Bert, ids: Tensor) -> Tensor:
    return model(ids)


def table() -> Any:
    import posenc

    return posenc.Learned(PLACES, DIM)


def sinusoids() -> Any:
    import posenc

    return posenc.Sinusoidal(DIM, layout="concatenated")


def match_places(made: Bert, scheme: Any) -> None:
    scheme.weight.data.copy_(made.places.weight.data)


# -- bugs -------------------------------------------------------------------------------------------------------------


class Backwards(Bert):
    def position_ids(self, ids: Tensor) -> Tensor:
        return super().position_ids(ids).flip(1)


class FromOne(Sines):
    first = 1


def of_places(build: Any = Bert) -> Model:
    return Model(build=build, call=read, dim=DIM, max_positions=PLACES, like=table, match=match_places)


def of_sines(build: Any = Sines) -> Model:
    return Model(build=build, call=read, dim=DIM, relative=False, like=sinusoids)


CORRECT = (of_places(), of_places(PlacesFirst), of_sines())
MUTANTS = (
    Mutant("BERT, places backwards", of_places(Backwards), 21, 3),
    Mutant("sinusoids in a model, from 1", of_sines(FromOne), 21, 5),
)
