"""Learned functions of the distance as people write them: FIRE, KERPLE, and DeBERTa's buckets."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Bias, Layer
from tests.check.mutants import Mutant

ABOVE = 1e-6


class FIRE(nn.Module):
    """The authors' module: a network of the distance over the query's position, both through a logarithm."""

    def __init__(self, heads: int = 3, width: int = 8, init_c: float = 0.1, init_L: float = 16.0) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, heads))
        self.c, self.L_multiplier = nn.Parameter(torch.tensor(init_c)), nn.Parameter(torch.tensor(1.0))
        self.init_L = init_L

    def log(self, x: Tensor) -> Tensor:
        return ((self.c * x).abs() + 1).log()

    def normalizer(self, query: Tensor, key: Tensor) -> Tensor:
        """(rows, queries, 1)"""
        return torch.maximum(query[:, :, None], self.threshold())

    def threshold(self) -> Tensor:
        return (self.L_multiplier * self.init_L).abs()

    def share(self, distance: Tensor, normalizer: Tensor) -> Tensor:
        return self.log(distance) / (self.log(normalizer) + ABOVE)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = self.exact(query), self.exact(key)
        distance = (query[:, :, None] - key[:, None, :]).clamp(min=0)
        share = self.share(distance, self.normalizer(query, key)).to(self.c.dtype)
        return self.mlp(share[..., None]).permute(0, 3, 1, 2)

    def exact(self, positions: Tensor) -> Tensor:
        return positions.to(torch.promote_types(self.c.dtype, torch.float32))


def fire(made: FIRE, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return made(query_positions, key_positions)


class KERPLE(nn.Module):
    """The authors' logarithm, for queries that are the last of the keys."""

    def __init__(self, heads: int = 3) -> None:
        super().__init__()
        self.bias_p = nn.Parameter(0.5 + torch.rand(heads, 1, 1))
        self.bias_a = nn.Parameter(0.1 + torch.rand(heads, 1, 1))

    def penalty(self, distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
        return p * (1 + a * distance).log()

    def distance(self, query_length: int, key_length: int) -> Tensor:
        index = torch.arange(key_length)
        return (index[key_length - query_length :, None] - index).abs()

    def forward(self, query_length: int, key_length: int) -> Tensor:
        p, a = self.bias_p.clamp(min=0.01), self.bias_a.clamp(min=0.01)
        return -self.penalty(self.distance(query_length, key_length).to(p.dtype), p, a)


class Power(KERPLE):
    def penalty(self, distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
        return a * distance ** p.clamp(max=2)


def kerple(made: KERPLE, query_length: int, key_length: int) -> Tensor:
    return made(query_length, key_length)


class DeBERTa(nn.Module):
    """Version 2's attention, with its own projections of relative positions, 16 buckets and distances up to 40."""

    buckets, furthest = 16, 40

    def __init__(self) -> None:
        super().__init__()
        self.query_proj, self.key_proj, self.value_proj = (nn.Linear(32, 32) for _ in range(3))
        self.pos_query_proj, self.pos_key_proj = (nn.Linear(32, 32) for _ in range(2))
        self.rel_embeddings = nn.Embedding(2 * self.buckets, 32)

    def log_bucket(self, relative: Tensor) -> Tensor:
        mid = self.buckets // 2
        inside = (relative < mid) & (relative > -mid)
        away = torch.where(inside, mid - 1, relative.abs())
        position = self.log_position(away.double(), mid).to(relative)
        return torch.where(away <= mid, relative, position * relative.sign())

    def log_position(self, away: Tensor, mid: int) -> Tensor:
        return ((away / mid).log() / math.log((self.furthest - 1) / mid) * (mid - 1)).ceil() + mid

    def relative(self, positions: Tensor) -> Tensor:
        return self.log_bucket(positions[:, :, None] - positions[:, None, :])

    def scale(self) -> float:
        return 1 / (3 * 8) ** 0.5

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (4, 8)).transpose(-2, -3)

    def meets(self, query: Tensor, key: Tensor, relative: Tensor) -> Tensor:
        span, table = self.buckets, self.rel_embeddings.weight
        key_rows, query_rows = self.split(self.pos_key_proj(table)), self.split(self.pos_query_proj(table))
        c2p = (query @ key_rows.mT).gather(-1, self.asked(relative, span)[:, None].expand(-1, 4, -1, -1))
        p2c = (key @ query_rows.mT).gather(-1, self.answered(relative, span)[:, None].expand(-1, 4, -1, -1))
        return c2p + p2c.mT

    def asked(self, relative: Tensor, span: int) -> Tensor:
        return (relative + span).clamp(0, 2 * span - 1)

    def answered(self, relative: Tensor, span: int) -> Tensor:
        """(keys, queries): of each key, the rows of its queries, at query minus key too."""
        return (relative.mT + span).clamp(0, 2 * span - 1)

    def forward(self, x: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
        if positions is None:
            positions = (torch.ones(x.shape[:2]) if mask is None else mask).long().cumsum(-1) - 1
        query, key, value = (self.split(p(x)) for p in (self.query_proj, self.key_proj, self.value_proj))
        scores = (query @ key.mT + self.meets(query, key, self.relative(positions))) * self.scale()
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], torch.finfo(scores.dtype).min)
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


def deberta(layer: DeBERTa, x: Tensor, positions: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    return layer(x, positions, padding)


# -- the schemes that they are ----------------------------------------------------------------------------------------


def like_fire() -> Any:
    import posenc

    return posenc.FIRE(3, 8, 16.0)


def match_fire(made: FIRE, scheme: Any) -> None:
    scheme.c.data.copy_(made.c.data)
    scheme.multiple.data.copy_(made.L_multiplier.data)
    scheme.inner.load_state_dict(made.mlp[0].state_dict())
    scheme.outer.load_state_dict(made.mlp[2].state_dict())


def like_kerple() -> Any:
    import posenc

    return posenc.KERPLE(3)


def like_power() -> Any:
    import posenc

    return posenc.KERPLE(3, "power")


def match_kerple(made: KERPLE, scheme: Any) -> None:
    scheme.p.data.copy_(made.bias_p.data.flatten())
    scheme.a.data.copy_(made.bias_a.data.flatten())


def like_deberta() -> Any:
    import posenc

    return posenc.DeBERTa(4, 8, max_distance=40, num_buckets=16)


def match_deberta(made: DeBERTa, scheme: Any) -> None:
    scheme.relative.rows.load_state_dict(made.rel_embeddings.state_dict())
    scheme.query.load_state_dict(made.pos_query_proj.state_dict())
    scheme.key.load_state_dict(made.pos_key_proj.state_dict())


# -- bugs -------------------------------------------------------------------------------------------------------------


class NormalizedByLength(FIRE):
    """The length of the text, in the place of the query's position."""

    def normalizer(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.maximum(key.amax(-1)[:, None, None].expand(-1, query.size(1), 1), self.threshold())


class NormalizedByKey(FIRE):
    def normalizer(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.maximum(key[:, None, :], self.threshold())


class ThresholdIgnored(FIRE):
    """The first queries are divided by their own position alone."""

    def normalizer(self, query: Tensor, key: Tensor) -> Tensor:
        return query[:, :, None]


class ThresholdAlone(FIRE):
    """min() where it is max()."""

    def normalizer(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.minimum(query[:, :, None], self.threshold())


class NormalizedOnce(FIRE):
    """The logarithm is of the distance alone."""

    def share(self, distance: Tensor, normalizer: Tensor) -> Tensor:
        return self.log(distance) / (normalizer + ABOVE)


class LogarithmOfTheShare(FIRE):
    def share(self, distance: Tensor, normalizer: Tensor) -> Tensor:
        return self.log(distance / (normalizer + ABOVE))


class MultiplierIgnored(FIRE):
    def threshold(self) -> Tensor:
        return torch.tensor(self.init_L, dtype=self.c.dtype)


class CountedInTheDtype(FIRE):
    def exact(self, positions: Tensor) -> Tensor:
        return positions.to(self.c.dtype)


class WithoutOne(KERPLE):
    """log(a d), from distance 1 on."""

    def penalty(self, distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
        return p * (a * distance.clamp(min=1)).log()


class Rewarded(KERPLE):
    def penalty(self, distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
        return -super().penalty(distance, p, a)


class ParametersExchanged(KERPLE):
    def penalty(self, distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
        return super().penalty(distance, a, p)


class LogarithmToTen(KERPLE):
    def penalty(self, distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
        return super().penalty(distance, p, a) / math.log(10)


class FirstRows(KERPLE):
    """Queries are taken for the first of the keys."""

    def distance(self, query_length: int, key_length: int) -> Tensor:
        return super().distance(key_length, key_length)[:query_length]


class KeptWithItsParameters(KERPLE):
    """The matrix of the longest text so far, parameters and all."""

    kept: Tensor | None = None

    def forward(self, query_length: int, key_length: int) -> Tensor:
        if self.kept is None or self.kept.size(-1) != key_length:
            self.kept = super().forward(key_length, key_length).detach()
        return self.kept[:, key_length - query_length :]


class PowerOfTheProduct(Power):
    def penalty(self, distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
        return (a * distance) ** p.clamp(max=2)


class PowerExchanged(Power):
    def penalty(self, distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
        return super().penalty(distance, a, p)


class LogOfTheWholeDistance(DeBERTa):
    """max_position in the place of max_position - 1."""

    def log_position(self, away: Tensor, mid: int) -> Tensor:
        return ((away / mid).log() / math.log(self.furthest / mid) * (mid - 1)).ceil() + mid


class BucketsRoundedDown(DeBERTa):
    def log_position(self, away: Tensor, mid: int) -> Tensor:
        return ((away / mid).log() / math.log((self.furthest - 1) / mid) * (mid - 1)).floor() + mid


class BucketsOverMid(DeBERTa):
    """mid in the place of mid - 1: the last bucket is past the table and clamped."""

    def log_position(self, away: Tensor, mid: int) -> Tensor:
        return ((away / mid).log() / math.log((self.furthest - 1) / mid) * mid).ceil() + mid


class NoBuckets(DeBERTa):
    """position_buckets is not read; far distances are clamped."""

    def log_bucket(self, relative: Tensor) -> Tensor:
        return relative


class DistanceTurned(DeBERTa):
    """Key minus query."""

    def relative(self, positions: Tensor) -> Tensor:
        return super().relative(positions).mT


class KeysNotTransposed(DeBERTa):
    """Position to content at key minus query, as the paper has it and the code does not."""

    def answered(self, relative: Tensor, span: int) -> Tensor:
        return (relative + span).clamp(0, 2 * span - 1)


class ScaleOfTwoTerms(DeBERTa):
    def scale(self) -> float:
        return 1 / (2 * 8) ** 0.5


def of_fire(build: Any = FIRE, **claims: Any) -> Bias:
    return Bias(build=build, call=fire, causal=True, like=like_fire, match=match_fire, **claims)


def of_kerple(build: Any = KERPLE, like: Any = like_kerple) -> Bias:
    said = {"causal": True, "relative": True, "like": like, "match": match_kerple}
    return Bias(build=build, call=kerple, **said)


def of_deberta(build: Any = DeBERTa) -> Layer:
    said = {"relative": True, "directed": True, "like": like_deberta, "match": match_deberta}
    return Layer(build=build, call=deberta, **said)


CORRECT = (of_fire(), of_kerple(), of_kerple(Power, like_power), of_deberta())
MUTANTS = (
    Mutant("FIRE, normalised by the length", of_fire(NormalizedByLength), 8, 6),
    Mutant("FIRE, normalised by the key", of_fire(NormalizedByKey), 21, 18),
    Mutant("FIRE, no threshold", of_fire(ThresholdIgnored), 21, 18),
    Mutant("FIRE, the lesser of position and threshold", of_fire(ThresholdAlone), 21, 18),
    Mutant("FIRE, no logarithm below", of_fire(NormalizedOnce), 21, 18),
    Mutant("FIRE, the logarithm of the share", of_fire(LogarithmOfTheShare), 21, 18),
    Mutant("FIRE, the multiplier ignored", of_fire(MultiplierIgnored, jitter=0.2), 21, 9),
    Mutant("FIRE, counted in the dtype of its parameters", of_fire(CountedInTheDtype), 1, 1),
    Mutant("KERPLE, without 1 +", of_kerple(WithoutOne), 21, 16),
    Mutant("KERPLE, far tokens rewarded", of_kerple(Rewarded), 21, 16),
    Mutant("KERPLE, parameters exchanged", of_kerple(ParametersExchanged), 21, 16),
    Mutant("KERPLE, the logarithm to ten", of_kerple(LogarithmToTen), 21, 16),
    Mutant("KERPLE, the first rows", of_kerple(FirstRows), 9, 5),
    Mutant("KERPLE, kept with its parameters", of_kerple(KeptWithItsParameters), 4, 9),
    Mutant("KERPLE, the power of the product", of_kerple(PowerOfTheProduct, like_power), 21, 16),
    Mutant("KERPLE, power and slope exchanged", of_kerple(PowerExchanged, like_power), 21, 16),
    Mutant("DeBERTa, the logarithm of the whole distance", of_deberta(LogOfTheWholeDistance), 21, 7),
    Mutant("DeBERTa, buckets rounded down", of_deberta(BucketsRoundedDown), 21, 7),
    Mutant("DeBERTa, buckets over the middle", of_deberta(BucketsOverMid), 21, 7),
    Mutant("DeBERTa, no buckets", of_deberta(NoBuckets), 21, 7),
    Mutant("DeBERTa, key minus query", of_deberta(DistanceTurned), 21, 18),
    Mutant("DeBERTa, keys not transposed", of_deberta(KeysNotTransposed), 21, 18),
    Mutant("DeBERTa, the scale of two terms", of_deberta(ScaleOfTwoTerms), 21, 18),
)
