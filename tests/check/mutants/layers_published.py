"""Layers with the bias or rotation of a published scheme, and with one that differs from it in one thing."""

import math
from typing import Any

import torch
from torch import Tensor, nn

import posenc
from posenc.tools.check import Layer, Rotary
from tests.check.mutants import Mutant
from tests.check.mutants.layers_details import Conformer, Fading, fade, hear
from tests.check.mutants.phase import Turn, turn

HEADS, HEAD_DIM = 4, 8


class Biased(nn.Module):
    """Attention with six heads in groups of three, and a bias for each head of queries."""

    heads, groups = 6, 2
    causal = True

    def __init__(self) -> None:
        super().__init__()
        self.query, self.rest = nn.Linear(32, 6 * 8), nn.Linear(32, 2 * 2 * 8)

    def bias(self, distance: Tensor) -> Tensor:
        """(heads, tokens, tokens), by how far the key is before the query."""
        raise NotImplementedError

    def scale(self) -> float:
        return 8**-0.5

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.size(1))
        query = self.query(x).unflatten(-1, (self.heads, 8)).transpose(1, 2)
        key, value = self.rest(x).unflatten(-1, (2, self.groups, 8)).permute(2, 0, 3, 1, 4)
        key, value = (part.repeat_interleave(self.heads // self.groups, 1) for part in (key, value))
        distance = place[:, None] - place
        scores = query @ key.mT * self.scale() + self.bias(distance)
        if self.causal:
            scores = scores.masked_fill(distance < 0, -torch.inf)
        return (scores.softmax(-1).to(value.dtype) @ value).transpose(1, 2).flatten(2)


def attend(made: Any, x: Tensor) -> Tensor:
    return made(x)


class Linear(Biased):
    """ALiBi."""

    def slopes(self) -> Tensor:
        """Those of 4 heads, and every other one of 8."""
        return 2.0 ** -torch.tensor([2, 4, 6, 8, 1, 3])

    def bias(self, distance: Tensor) -> Tensor:
        return -self.slopes()[:, None, None] * distance


class SlopesOfTheRatio(Linear):
    """2^(-8h/H), which is right for powers of two."""

    def slopes(self) -> Tensor:
        return 2.0 ** (-8 * torch.arange(1, 7) / 6)


class SlopesByGroup(Linear):
    """Slopes stand by the head in its group, and then by the group."""

    def slopes(self) -> Tensor:
        return super().slopes().view(2, 3).T.flatten()


class SlopesSharedByGroup(Linear):
    """All heads of a group have the slope of its first."""

    def slopes(self) -> Tensor:
        return super().slopes()[::3].repeat_interleave(3)


class SlopesScaled(Linear):
    """The sum of product and bias is divided by the root."""

    def bias(self, distance: Tensor) -> Tensor:
        return super().bias(distance) * self.scale()


class Buckets(Biased):
    """T5's bias for encoders and decoders, with scores that are not divided."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 6)

    def scale(self) -> float:
        return 1.0

    def far(self, distance: Tensor, exact: int, buckets: int) -> Tensor:
        ratio = (distance.clamp(min=1).double() / exact).log() / math.log(48 / exact)
        return exact + (ratio * (buckets - exact) + 1e-9).long()

    def bucket(self, distance: Tensor, buckets: int = 16) -> Tensor:
        distance = distance.clamp(min=0)
        exact = buckets // 2
        return torch.where(distance < exact, distance, self.far(distance, exact, buckets).clamp(max=buckets - 1))

    def bias(self, distance: Tensor) -> Tensor:
        return self.table(self.bucket(distance)).permute(2, 0, 1)


class BucketsBothWays(Buckets):
    causal = False

    def bias(self, distance: Tensor) -> Tensor:
        return self.table(self.bucket(distance.abs(), 8) + 8 * (distance < 0)).permute(2, 0, 1)


class BucketsOfTheOtherSide(BucketsBothWays):
    """Keys before the query have the second half."""

    def bias(self, distance: Tensor) -> Tensor:
        return self.table(self.bucket(distance.abs(), 8) + 8 * (distance > 0)).permute(2, 0, 1)


class BucketsOfTwo(Buckets):
    """The logarithm runs to 128, whatever the configuration says."""

    def far(self, distance: Tensor, exact: int, buckets: int) -> Tensor:
        ratio = (distance.clamp(min=1).double() / exact).log() / math.log(128 / exact)
        return exact + (ratio * (buckets - exact) + 1e-9).long()


class BucketsWithoutAFloor(Buckets):
    """Rounds to the nearest bucket."""

    def far(self, distance: Tensor, exact: int, buckets: int) -> Tensor:
        ratio = (distance.clamp(min=1).double() / exact).log() / math.log(48 / exact)
        return exact + (ratio * (buckets - exact)).round().long()


class OneFurther(Conformer):
    """The middle of the sines is taken one too far."""

    def distances(self, tokens: int) -> Tensor:
        return super().distances(tokens) + 1


class Backwards(Conformer):
    """Sines run from after to before."""

    def distances(self, tokens: int) -> Tensor:
        return -super().distances(tokens)


class BiasesExchanged(Conformer):
    """The bias of positions is added for the content, and the other way round."""

    def forward(self, x: Tensor) -> Tensor:
        self.content, self.position = self.position, self.content
        out = super().forward(x)
        self.content, self.position = self.position, self.content
        return out


class Sliced(Turn):
    """MLA's heads: the last half of the channels is turned, in pairs of neighbours."""

    def __init__(self) -> None:
        super().__init__(head_dim=8, layout="interleaved")

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return torch.cat((x[..., :8], super().forward(x[..., 8:], positions)), -1)


class WholeHeadTurned(Turn):
    """The whole head is turned."""

    def __init__(self) -> None:
        super().__init__(layout="interleaved")


class FirstHalfTurned(Sliced):
    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return super().forward(x.roll(8, -1), positions).roll(8, -1)


class FrequenciesOfTheHead(Sliced):
    """Those of 16 channels in a slice of 8."""

    def theta(self) -> Tensor:
        return self.base ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 16)


class FadingByPairs(Fading):
    """The scale's base is 32, a tenth of what it was said to be."""

    def __init__(self) -> None:
        super().__init__()
        self.scale_base = 51.2


def fade_the_other(made: Fading, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Queries shrink and keys grow: what is far counts more."""
    return made(query, positions, -1), made(key, positions, 1)


def terms_of(made: Conformer, scheme: Any) -> None:
    scheme.projection.data.copy_(made.positional.weight.unflatten(0, (HEADS, HEAD_DIM)))
    scheme.content_bias.data.copy_(made.content[:, 0])
    scheme.position_bias.data.copy_(made.position[:, 0])


def table_of(made: Buckets, scheme: Any) -> None:
    for parameter in scheme.parameters():
        parameter.data.copy_(made.table.weight)


def linear(build: Any) -> Layer:
    return Layer(build=build, call=attend, causal=True, relative=True, like=posenc.ALiBi(6))


def buckets(build: Any, both: bool = False) -> Layer:
    like = posenc.T5(6, num_buckets=16, max_distance=48, bidirectional=both)
    return Layer(build=build, call=attend, causal=not both, relative=True, like=like, match=table_of)


def conformer(build: Any) -> Layer:
    like = posenc.TransformerXL(HEADS, HEAD_DIM)
    return Layer(build=build, call=hear, relative=True, like=like, match=terms_of)


def sliced(build: Any) -> Rotary:
    return Rotary(build=build, call=turn, relative=True, layout=None, like=posenc.MLA(16, 8))


def fading(build: Any, call: Any = fade) -> Rotary:
    like = posenc.XPos(16, layout="interleaved")
    return Rotary(build=build, call=call, causal=True, relative=True, max_positions=4096, scale=None, like=like)


CORRECT = (
    linear(Linear),
    buckets(Buckets),
    buckets(BucketsBothWays, both=True),
    conformer(Conformer),
    sliced(Sliced),
    fading(Fading),
)
MUTANTS = (
    Mutant("slopes of a ratio in a layer", linear(SlopesOfTheRatio), caught_by=21, pain=16),
    Mutant("slopes in another order of groups", linear(SlopesByGroup), caught_by=21, pain=16),
    Mutant("slopes shared in a group", linear(SlopesSharedByGroup), caught_by=21, pain=16),
    Mutant("slopes scaled with the product", linear(SlopesScaled), caught_by=21, pain=16),
    Mutant("buckets of the other side", buckets(BucketsOfTheOtherSide, both=True), caught_by=21, pain=7),
    Mutant("buckets up to 128", buckets(BucketsOfTwo), caught_by=21, pain=7),
    Mutant("buckets rounded", buckets(BucketsWithoutAFloor), caught_by=21, pain=7),
    Mutant("sines one too far", conformer(OneFurther), caught_by=21, pain=11),
    Mutant("sines backwards", conformer(Backwards), caught_by=21, pain=11),
    Mutant("biases exchanged", conformer(BiasesExchanged), caught_by=21, pain=7),
    Mutant("MLA's whole head turned", sliced(WholeHeadTurned), caught_by=21, pain=8),
    Mutant("the other part of MLA's head turned", sliced(FirstHalfTurned), caught_by=21, pain=8),
    Mutant("frequencies of the head for its slice", sliced(FrequenciesOfTheHead), caught_by=21, pain=7),
    Mutant("fading ten times as fast", fading(FadingByPairs), caught_by=21, pain=7),
    Mutant("fading with nearness", fading(Fading, fade_the_other), caught_by=21, pain=8),
)
