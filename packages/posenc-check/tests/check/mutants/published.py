"""Schemes that are another than they are said to be: every law holds, and the numbers are wrong."""

import math

import torch
from torch import Tensor, nn

import posenc
from posenc_check import Attention, Bias, Layer, Rotary
from tests.check.mutants import Mutant

# -- biases ------------------------------------------------------------------------------------------------------------


class Buckets(nn.Module):
    """T5's table, with the logarithm in float32."""

    def __init__(self, heads: int = 3, both: bool = False, late: int = 0, base: float = math.e) -> None:
        super().__init__()
        self.table, self.both, self.late, self.base = nn.Embedding(32, heads), both, late, base

    def bucket(self, away: Tensor) -> Tensor:
        size, first = 32, torch.zeros_like(away)
        if self.both:
            size, first = 16, 16 * (away > 0).long()
        away = away.abs() if self.both else (-away).clamp(min=0)
        exact = size // 2 + self.late
        steps = (away.float() / exact).log() / math.log(self.base) / math.log(128 / exact, self.base) * (size - exact)
        return first + torch.where(away < exact, away, (exact + steps.long()).clamp(max=size - 1))

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return self.table(self.bucket(key_positions[:, None, :] - query_positions[:, :, None])).permute(0, 3, 1, 2)


def add(made: nn.Module, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return made(query_positions, key_positions)


# -- rotations ---------------------------------------------------------------------------------------------------------


def nothing(**options: float) -> dict[str, float]:
    return options


def usual(base: float = 0.0) -> dict[str, float]:
    """Whatever base it is given."""
    return {}


def frequencies(base: float = 10_000.0, factor: float = 1.0, low: float = 1.0, high: float = 32.0) -> Tensor:
    """YaRN's: as they are for the fast pairs, divided by the factor for the slow ones, a ramp between."""
    theta = base ** (-torch.arange(0, 16, 2).double() / 16)
    if factor == 1.0:
        return theta
    turns = [16 * math.log(64 / (n * 2 * math.pi)) / (2 * math.log(base)) for n in (high, low)]
    first, last = max(math.floor(turns[0]), 0), min(math.ceil(turns[1]), 15)
    share = ((torch.arange(8).double() - first) / max(last - first, 0.001)).clamp(0, 1)
    return theta * (1 - share) + theta / factor * share


def turn(made: dict[str, float], x: Tensor, positions: Tensor) -> Tensor:
    angle = positions[:, None, :, None].double() * frequencies(**made)
    cos, sin = angle.cos(), angle.sin()
    left, right = x.double().chunk(2, -1)
    scale = 0.1 * math.log(made.get("factor", 1.0)) + 1.0
    return (torch.cat((left * cos - right * sin, right * cos + left * sin), -1) * scale).to(x.dtype)


def turn_back(made: dict[str, float], x: Tensor, positions: Tensor) -> Tensor:
    return turn(made, x, -positions)


def turn_from_one(made: dict[str, float], x: Tensor, positions: Tensor) -> Tensor:
    """Positions counted from 1 give the same scores."""
    return turn(made, x, positions + 1)


def turn_interleaved(made: dict[str, float], x: Tensor, positions: Tensor) -> Tensor:
    there = [c for pair in zip(range(8), range(8, 16), strict=True) for c in pair]
    back = torch.tensor(there).argsort()
    return turn(made, x[..., back], positions)[..., there]


YARN = posenc.RoPE(16, scaling=posenc.YaRN(factor=4.0, original_length=64))


def rope(base: float = 10_000.0) -> posenc.RoPE:
    return posenc.RoPE(16, base=base)


# -- layers ------------------------------------------------------------------------------------------------------------


class Sloping(nn.Module):
    """Causal attention of 12 heads with ALiBi, which takes vectors alone."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(48, 144), nn.Linear(48, 48)

    def slopes(self) -> list[float]:
        return [*(2 ** -(n + 1) for n in range(8)), *(2 ** -((2 * n + 1) / 2) for n in range(4))]

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).unflatten(-1, (3, 12, 4)).permute(2, 0, 3, 1, 4)
        line = torch.arange(x.size(1))
        bias = torch.tensor(self.slopes(), dtype=x.dtype)[:, None, None] * (line - line[:, None])
        bias = bias.masked_fill(line > line[:, None], torch.finfo(bias.dtype).min)
        out = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.out(out.transpose(1, 2).flatten(2))


class SlopesOfOneRow(Sloping):
    """As for a power of two, which 12 is not."""

    def slopes(self) -> list[float]:
        return [2 ** (-8 * (n + 1) / 12) for n in range(12)]


class Waves(nn.Module):
    """Adds sines and cosines to what is scaled before."""

    def __init__(self, concatenated: bool = False, step: int = 2) -> None:
        super().__init__()
        self.concatenated, self.step = concatenated, step

    def forward(self, x: Tensor) -> Tensor:
        theta = 10_000.0 ** (-torch.arange(0, 32, 2).double() * self.step / 2 / 32)
        phase = torch.arange(x.size(1)).double()[:, None] * theta
        waves = phase.sin(), phase.cos()
        code = torch.cat(waves, -1) if self.concatenated else torch.stack(waves, -1).flatten(-2)
        return 32**0.5 * x + code.to(x.dtype)


class Clipped(nn.Module):
    """Shaw's keys and values, distances clipped to 4, in a function of query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = (nn.Parameter(torch.randn(9, 16)) for _ in range(2))

    def index(self, away: Tensor) -> Tensor:
        return away.clamp(-4, 4) + 4

    def forward(self, query: Tensor, key: Tensor, value: Tensor, places: Tensor, others: Tensor) -> Tensor:
        index = self.index(others[:, None, :] - places[:, :, None])
        met = torch.einsum("bhid,bijd->bhij", query, self.keys[index])
        weights = ((query @ key.mT + met) / 4).softmax(-1)
        return weights @ value + torch.einsum("bhij,bijd->bhid", weights, self.values[index])


class ClippedLate(Clipped):
    def index(self, away: Tensor) -> Tensor:
        return away.clamp(-3, 4) + 4


class OnItsHead(Clipped):
    """The table the wrong way round."""

    def index(self, away: Tensor) -> Tensor:
        return super().index(-away)


def of_vectors(made: nn.Module, x: Tensor) -> Tensor:
    return made(x)


def of_clipped(
    made: Clipped, query: Tensor, key: Tensor, value: Tensor, query_positions: Tensor, key_positions: Tensor
) -> Tensor:
    return made(query, key, value, query_positions, key_positions)


def shaws(made: Clipped, scheme: nn.Module) -> None:
    scheme.get_parameter("key_table").copy_(made.keys)
    scheme.get_parameter("value_table").copy_(made.values)


def built(**how: object) -> Rotary:
    return Rotary(**{"build": nothing, "call": turn, "relative": True, **how})  # type: ignore[arg-type]


def biased(build: type, **how: object) -> Bias:
    return Bias(**{"build": build, "call": add, "relative": True, **how})  # type: ignore[arg-type]


BOTH = {"both": True}
SCALED = {"factor": 4.0}
CORRECT = (
    biased(Buckets, causal=True, like="t5", heads_option="heads"),
    biased(Buckets, options=BOTH, like=posenc.T5(3, bidirectional=True)),
    built(like=rope, options={"base": 500.0}, varied={"base": 70.0}),
    built(like="rope", base=10_000.0),
    built(call=turn_from_one, like=posenc.RoPE(16)),
    built(call=turn_interleaved, like="rope(layout='interleaved')"),
    built(options=SCALED, scale=None, like=YARN),
    Layer(build=Sloping, call=of_vectors, dim=48, causal=True, relative=True, like=posenc.ALiBi(12)),
    Layer(build=Waves, call=of_vectors, like="sinusoidal"),
    Layer(build=Waves, call=of_vectors, options={"concatenated": True}, like="sinusoidal(layout='concatenated')"),
    Attention(build=Clipped, call=of_clipped, relative=True, like=posenc.Shaw(16, 4), match=shaws),
)
MUTANTS = (
    Mutant("buckets that begin a token late", biased(Buckets, options={"late": 1}, causal=True, like="t5"), 21, 7),
    Mutant("the usual base whatever it is told", built(build=usual, like=rope, varied={"base": 70.0}), 21, 7),
    Mutant("turned the other way", built(call=turn_back, like="rope"), 21, 8),
    Mutant(
        "twelve slopes as for a power of two",
        Layer(build=SlopesOfOneRow, call=of_vectors, dim=48, causal=True, relative=True, like=posenc.ALiBi(12)),
        21,
        16,
    ),
    Mutant(
        "sines beside cosines and said to be between",
        Layer(build=Waves, call=of_vectors, options={"concatenated": True}, like=posenc.Sinusoidal(32)),
        21,
        8,
    ),
    Mutant(
        "clipped a step early",
        Attention(build=ClippedLate, call=of_clipped, relative=True, like=posenc.Shaw(16, 4), match=shaws),
        21,
        7,
    ),
    Mutant(
        "a table on its head",
        Attention(build=OnItsHead, call=of_clipped, relative=True, like=posenc.Shaw(16, 4), match=shaws),
        21,
        11,
    ),
)
