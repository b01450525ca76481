"""T5's attention as transformers has it: buckets of distances, in encoder and decoder, with a cache."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.tools.check import Layer
from tests.check.mutants import Mutant

Cache = tuple[Tensor, Tensor] | None


class T5(nn.Module):
    """Four heads; scores are not divided by sqrt(d), as T5 does not."""

    def __init__(self, is_decoder: bool = True, num_buckets: int = 16, max_distance: int = 40) -> None:
        super().__init__()
        self.is_decoder, self.num_buckets, self.max_distance = is_decoder, num_buckets, max_distance
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(num_buckets, 4)

    def bucket(self, relative_position: Tensor, bidirectional: bool, num_buckets: int, max_distance: int) -> Tensor:
        first = torch.zeros_like(relative_position)
        if bidirectional:
            num_buckets //= 2
            first = (relative_position > 0).long() * num_buckets
            distance = relative_position.abs()
        else:
            distance = -relative_position.clamp(max=0)
        return first + self.of_distance(distance, num_buckets, max_distance)

    def of_distance(self, distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
        exact = num_buckets // 2
        share = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
        large = exact + (share * (num_buckets - exact)).long()
        return torch.where(distance < exact, distance, large.clamp(max=num_buckets - 1))

    def relative(self, query: Tensor, key: Tensor) -> Tensor:
        return key[None] - query[:, None]

    def compute_bias(self, query: Tensor, key: Tensor) -> Tensor:
        bucket = self.bucket(self.relative(query, key), not self.is_decoder, self.num_buckets, self.max_distance)
        return self.relative_attention_bias(bucket).permute(2, 0, 1)[None]

    def biased(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores + bias

    def forward(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        query, key, value = (p(x).unflatten(-1, (4, 8)).transpose(1, 2) for p in (self.q, self.k, self.v))
        if cache is not None:
            key, value = torch.cat((cache[0], key), 2), torch.cat((cache[1], value), 2)
        new, total = x.size(1), key.size(2)
        scores = self.biased(query @ key.mT, self.bias(new, total).to(x.dtype))
        visible = torch.ones(1, 1, new, total).bool()
        if self.is_decoder:
            visible = visible.tril(total - new)
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        out = F.softmax(scores.float(), dim=-1).type_as(scores) @ value
        return self.o(out.transpose(1, 2).flatten(2)), (key, value)

    def bias(self, new: int, total: int) -> Tensor:
        return self.compute_bias(torch.arange(total - new, total), torch.arange(total))


def decode(layer: T5, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
    return layer(x, cache)


# -- the schemes that they are ----------------------------------------------------------------------------------------


def like_decoder() -> Any:
    import posenc

    return posenc.T5(4, num_buckets=16, max_distance=40)


# -- bugs -------------------------------------------------------------------------------------------------------------


class ProductDivided(T5):
    """Products are divided by sqrt(d), as T5's are not."""

    def biased(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores / 8**0.5 + bias


class Viewed(T5):
    """view in the place of permute."""

    def compute_bias(self, query: Tensor, key: Tensor) -> Tensor:
        return super().compute_bias(query, key).permute(0, 2, 3, 1).reshape(1, 4, len(query), len(key))


def of_decoder(build: Any = T5, **claims: Any) -> Layer:
    return Layer(**{"build": build, "call": decode, "causal": True, "relative": True, "like": like_decoder, **claims})


VARIED = {"varied": {"max_distance": 20, "num_buckets": 8}}

CORRECT = (
    of_decoder(),
    of_decoder(**VARIED),
    of_decoder(ProductDivided),  # what others make of T5's bias, who do not claim its scale
)
MUTANTS = (Mutant("T5, view in the place of permute", of_decoder(Viewed), 8, 11),)
