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


def encode(layer: T5, x: Tensor) -> Tensor:
    return layer(x, None)[0]


# -- the schemes that they are ----------------------------------------------------------------------------------------


def like_decoder() -> Any:
    import posenc

    return posenc.T5(4, num_buckets=16, max_distance=40)


def like_encoder() -> Any:
    import posenc

    return posenc.T5(4, num_buckets=16, max_distance=40, bidirectional=True)


# -- bugs -------------------------------------------------------------------------------------------------------------


class OwnBucketsOneMore(T5):
    """<= where it is <: the first shared distance has a bucket that is not its own."""

    def of_distance(self, distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
        return super().of_distance(distance - (distance > num_buckets // 2).long(), num_buckets, max_distance)


class LogarithmToTwo(T5):
    """One of the two logarithms is to 2."""

    def of_distance(self, distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
        return super().of_distance(
            distance, num_buckets, round((num_buckets // 2) * (2 * max_distance / num_buckets) ** math.log(2))
        )


class Rounded(T5):
    """round() where int() cuts off."""

    def of_distance(self, distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
        exact = num_buckets // 2
        share = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
        large = exact + (share * (num_buckets - exact)).round().long()
        return torch.where(distance < exact, distance, large.clamp(max=num_buckets - 1))


class LastBucketNeverRead(T5):
    """min(…, num_buckets - 2)"""

    def of_distance(self, distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
        return super().of_distance(distance, num_buckets, max_distance).clamp(max=num_buckets - 2)


class MaxDistanceLeft(T5):
    """The function's default, 128, counts."""

    def bucket(self, relative_position: Tensor, bidirectional: bool, num_buckets: int, max_distance: int) -> Tensor:
        return super().bucket(relative_position, bidirectional, num_buckets, 128)


class SignExchanged(T5):
    def relative(self, query: Tensor, key: Tensor) -> Tensor:
        return -super().relative(query, key)


class HalvesExchanged(T5):
    """Keys before the query take the second half of the buckets."""

    def bucket(self, relative_position: Tensor, bidirectional: bool, num_buckets: int, max_distance: int) -> Tensor:
        return super().bucket(-relative_position, bidirectional, num_buckets, max_distance)


class NeverBidirectional(T5):
    """An encoder with the buckets of decoders."""

    def bucket(self, relative_position: Tensor, bidirectional: bool, num_buckets: int, max_distance: int) -> Tensor:
        return super().bucket(relative_position, False, num_buckets, max_distance)


class AlwaysBidirectional(T5):
    """A decoder with the buckets of encoders: half as many."""

    def bucket(self, relative_position: Tensor, bidirectional: bool, num_buckets: int, max_distance: int) -> Tensor:
        return super().bucket(relative_position, True, num_buckets, max_distance)


class BlindToDirection(T5):
    """abs() before the halves are told apart."""

    def relative(self, query: Tensor, key: Tensor) -> Tensor:
        return -super().relative(query, key).abs()


class ExactBeforeHalving(T5):
    """Half of all buckets are exact, of which a side has as many."""

    def of_distance(self, distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
        return distance.clamp(max=num_buckets - 1)


class BiasDivided(T5):
    """The bias is divided by sqrt(d), as no score is here."""

    def biased(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores + bias / 8**0.5


class ProductDivided(T5):
    """Products are divided by sqrt(d), as T5's are not."""

    def biased(self, scores: Tensor, bias: Tensor) -> Tensor:
        return scores / 8**0.5 + bias


class Viewed(T5):
    """view in the place of permute."""

    def compute_bias(self, query: Tensor, key: Tensor) -> Tensor:
        return super().compute_bias(query, key).permute(0, 2, 3, 1).reshape(1, 4, len(query), len(key))


class FirstRowsInDecode(T5):
    """The bias of the first queries, whatever the cache holds."""

    def bias(self, new: int, total: int) -> Tensor:
        return self.compute_bias(torch.arange(new), torch.arange(total))


class LengthOfNewInDecode(T5):
    """The last row of the bias of new tokens alone, for all keys."""

    def bias(self, new: int, total: int) -> Tensor:
        return self.compute_bias(
            torch.arange(new - 1, new) if new == 1 else torch.arange(total - new, total), torch.arange(total)
        )


class BiasKept(T5):
    """Computed at the first call and handed on, as to the next layers, but also to the next call."""

    kept: Tensor | None = None

    def bias(self, new: int, total: int) -> Tensor:
        if self.kept is None or self.kept.size(-1) < total or self.kept.size(-2) < new:
            self.kept = super().bias(new, total)
        return self.kept[:, :, :new, :total]


def of_decoder(build: Any = T5, **claims: Any) -> Layer:
    return Layer(**{"build": build, "call": decode, "causal": True, "relative": True, "like": like_decoder, **claims})


def of_encoder(build: Any = T5, **claims: Any) -> Layer:
    said = {"options": {"is_decoder": False}, "relative": True, "directed": True, "like": like_encoder}
    return Layer(**{"build": build, "call": encode, **said, **claims})


VARIED = {"varied": {"max_distance": 20, "num_buckets": 8}}

CORRECT = (
    of_decoder(),
    of_encoder(),
    of_decoder(**VARIED),
    of_decoder(ProductDivided),  # what others make of T5's bias, who do not claim its scale
    of_encoder(softmax_scale=1.0),
)
MUTANTS = (
    Mutant("T5, one more bucket of its own", of_decoder(OwnBucketsOneMore), 21, 7),
    Mutant("T5, a logarithm to 2", of_decoder(LogarithmToTwo), 21, 7),
    Mutant("T5, buckets rounded", of_decoder(Rounded), 21, 7),
    Mutant("T5, the last bucket never read", of_decoder(LastBucketNeverRead), 21, 7),
    Mutant("T5, max_distance left at 128", of_decoder(MaxDistanceLeft), 21, 7),
    Mutant("T5, max_distance counts for nothing", of_decoder(MaxDistanceLeft, **VARIED), 14, 7),
    Mutant("T5, the sign of the distance in a decoder", of_decoder(SignExchanged), 21, 8),
    Mutant("T5, the sign of the distance in an encoder", of_encoder(SignExchanged), 21, 8),
    Mutant("T5, halves exchanged", of_encoder(HalvesExchanged), 21, 8),
    Mutant("T5, an encoder with a decoder's buckets", of_encoder(NeverBidirectional), 21, 8),
    Mutant("T5, a decoder with an encoder's buckets", of_decoder(AlwaysBidirectional), 21, 8),
    Mutant("T5, an encoder blind to direction", of_encoder(BlindToDirection), 21, 8),
    Mutant("T5, all buckets of a side exact", of_encoder(ExactBeforeHalving), 21, 7),
    Mutant("T5, the bias divided", of_encoder(BiasDivided), 21, 16),
    Mutant("T5, products divided", of_encoder(ProductDivided, softmax_scale=1.0), 21, 16),
    Mutant("T5, view in the place of permute", of_decoder(Viewed), 8, 11),
    Mutant("T5, the first rows of the bias in decode", of_decoder(FirstRowsInDecode), 8, 5),
    Mutant("T5, one token's bias from the length of new ones", of_decoder(LengthOfNewInDecode), 8, 5),
    Mutant("T5, the bias of an earlier call", of_decoder(BiasKept), 5, 5),
)
