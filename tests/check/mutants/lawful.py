"""Rotations and biases that are right, in the styles of code that people run, and that a hasty check would accuse."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from posenc.tools.check import Bias, Rotary
from tests.check.mutants import Mutant

HEAD_DIM, ROTARY_DIM, LENGTH = 16, 8, 512


def rates(dim: int, base: float) -> Tensor:
    """Radians per position, in float32 wherever the module is built."""
    with torch.device("cpu"):
        return 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))


def require_known(positions: Tensor) -> None:
    if not 0 <= int(positions.min()) <= int(positions.max()) < LENGTH:
        raise ValueError(f"positions must be within 0..{LENGTH - 1}, got {positions.tolist()}")


# -- a table for all, in a bounded cache -------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def sines_and_cosines(length: int, dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Made outside of the caller's mode, as others use it too."""
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        angles = torch.outer(torch.arange(length).float(), rates(dim, base))
        return angles.sin(), angles.cos()


class EveryTwo(nn.Module):
    """Neighbouring channels are pairs, the first channels alone are turned, and positions end."""

    def __init__(self, rotary_dim: int = ROTARY_DIM, base: float = 10_000.0) -> None:
        super().__init__()
        if rotary_dim % 2:
            raise ValueError(f"rotary_dim must be even, got {rotary_dim}")
        self.rotary_dim, self.base = rotary_dim, base

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        require_known(positions)
        tables = sines_and_cosines(LENGTH, self.rotary_dim, self.base)
        sin, cos = (t[positions].repeat_interleave(2, -1)[:, None].to(x.dtype) for t in tables)
        turned, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        every_two = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
        return torch.cat((turned * cos + every_two * sin, rest), -1)


# -- a table that grows ------------------------------------------------------------------------------------------------


class Growing(nn.Module):
    """The cosines and sines so far, in float32 and of nobody's mode; a longer row makes longer ones."""

    def __init__(self, base: float = 500.0) -> None:
        super().__init__()
        self.base, self.length, self.tables = base, 0, (torch.zeros(0), torch.zeros(0))

    @torch.inference_mode(False)
    def grow(self, length: int) -> None:
        if length > self.length:
            self.length = 2 ** (length - 1).bit_length()
            with torch.autocast("cpu", enabled=False):
                angles = torch.outer(torch.arange(self.length).float(), rates(HEAD_DIM, self.base))
                self.tables = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()

    def forward(self, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        require_known(positions)
        self.grow(int(positions.max()) + 1)
        cos, sin = (table[positions][:, None].to(query.dtype) for table in self.tables)
        return query * cos + half_turned(query) * sin, key * cos + half_turned(key) * sin


def half_turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat((-right, left), -1)


# -- complex numbers ---------------------------------------------------------------------------------------------------


def turned_as_complex(base: float, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """In float32 and complex64, whatever comes in."""
    angles = positions[:, None, :, None].float() * rates(HEAD_DIM, base)
    turns = torch.polar(torch.ones_like(angles), angles)
    numbers = (torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous()) for x in (query, key))
    query, key = (torch.view_as_real(x * turns).flatten(-2).type_as(query) for x in numbers)
    return query, key


def a_base(base: float = 10_000.0) -> float:
    return base


def turned_from(base: float, x: Tensor, offset: int = 0) -> Tensor:
    """The tokens of a chunk, of which the first stands at an offset."""
    angles = torch.outer(torch.arange(offset, offset + x.size(-2)).double(), rates(HEAD_DIM, base).double())
    cos, sin = (torch.cat((t, t), -1).to(x.dtype) for t in (angles.cos(), angles.sin()))
    return x * cos + half_turned(x) * sin


# -- either layout, the angles of which are rounded otherwise ----------------------------------------------------------


@dataclass(frozen=True)
class EitherLayout:
    interleaved: bool = False

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        pairs = torch.arange(HEAD_DIM // 2).float() * (2 / HEAD_DIM)
        if self.interleaved:
            angles = positions[:, None, :, None].float() * torch.exp(-math.log(500.0) * pairs)
            even, odd = x[..., ::2], x[..., 1::2]
            turned = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
            return torch.stack(turned, -1).flatten(-2).to(x.dtype)
        angles = positions[:, None, :, None].float() / 500.0**pairs
        both = torch.cat((angles, angles), -1)
        return (x * both.cos() + half_turned(x) * both.sin()).to(x.dtype)


def turned(made: nn.Module | EitherLayout, x: Tensor, positions: Tensor) -> Tensor:
    return made(x, positions)


def turned_both(made: nn.Module, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return made(query, key, positions)


# -- sections of channels, one for each axis ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Sections:
    """Time, rows and columns turn one section of the pairs each. Where they are equal, it is all the same how many."""

    sections: tuple[int, int, int] = (2, 3, 3)

    def __call__(self, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float()[:, None, :, :, None] * rates(HEAD_DIM, 10_000.0)
        parts = angles.split(self.sections, -1)
        both = torch.cat([part[..., axis, :] for axis, part in enumerate(parts)] * 2, -1)
        cos, sin = both.cos().to(query.dtype), both.sin().to(query.dtype)
        return query * cos + half_turned(query) * sin, key * cos + half_turned(key) * sin


# -- a kernel of bfloat16 ----------------------------------------------------------------------------------------------


def turned_in_bfloat16(base: float, x: Tensor, positions: Tensor) -> Tensor:
    """Angles in float32, all that follows in bfloat16."""
    angles = positions[:, None, :, None].float() * rates(HEAD_DIM, base)
    cos, sin = (torch.cat((t, t), -1).bfloat16() for t in (angles.cos(), angles.sin()))
    low = x.bfloat16()
    return (low * cos + half_turned(low) * sin).to(x.dtype)


# -- frequencies that are drawn together for long texts, with an attention factor --------------------------------------

FACTOR, TRAINED = 4.0, 64


def stretched(base: float = 10_000.0) -> Tensor:
    """Those that turn often within the trained length stay, those that turn seldom are divided, others lie between."""
    theta = rates(HEAD_DIM, base).double()
    turns = TRAINED * theta / (2 * math.pi)
    kept = ((turns - 1) / (32 - 1)).clamp(0, 1)
    return theta * kept + theta / FACTOR * (1 - kept)


def turned_and_lengthened(theta: Tensor, x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[:, None, :, None].float() * theta.float()
    both = torch.cat((angles, angles), -1)
    scale = 0.1 * math.log(FACTOR) + 1.0
    return x * (both.cos() * scale).to(x.dtype) + half_turned(x) * (both.sin() * scale).to(x.dtype)


# -- biases ------------------------------------------------------------------------------------------------------------


def slopes_of(heads: int = 3) -> Tensor:
    """The published ones for any number of heads, as the model that is best known for them computes them."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = torch.pow(2 ** (-(2 ** -(math.log2(power) - 3))), torch.arange(1, 1 + power).float())
    if power != heads:
        fine = 2 ** (-(2 ** -(math.log2(2 * power) - 3)))
        extra = torch.pow(fine, torch.arange(1, 1 + 2 * min(power, heads - power), 2).float())
        slopes = torch.cat((slopes, extra))
    return slopes


def by_the_key_alone(slopes: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """In float32 always: slope times the place of the key. A softmax cannot tell it from minus slope times distance."""
    bias = slopes[:, None, None] * key_positions[:, None, None, :].float()
    return bias.expand(-1, -1, query_positions.size(1), -1)


class Buckets(nn.Module):
    """Distances in buckets, of which the far ones are logarithmic, in float32."""

    def __init__(self, heads: int = 3, buckets: int = 32, farthest: int = 128) -> None:
        super().__init__()
        self.buckets, self.farthest = buckets, farthest
        self.bias = nn.Embedding(buckets, heads)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        relative = key_positions[:, None, :] - query_positions[:, :, None]
        half = self.buckets // 2
        away, exact = relative.abs(), half // 2
        far = torch.log(away.float().clamp(min=1) / exact) / math.log(self.farthest / exact) * (half - exact)
        bucket = torch.where(away < exact, away, (exact + far.to(torch.int64)).clamp(max=half - 1))
        return self.bias(bucket + (relative > 0).long() * half).permute(0, 3, 1, 2)


def of_both(made: nn.Module, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return made(query_positions, key_positions)


SECTIONS = Rotary(
    build=Sections,
    call=turned_both,
    axes=3,
    layout="half",
    relative=True,
    base=10_000.0,
    varied={"sections": (4, 2, 2)},
)
CORRECT = (
    Rotary(
        build=EveryTwo,
        call=turned,
        relative=True,
        max_positions=LENGTH,
        rotary_dim=ROTARY_DIM,
        base=10_000.0,
        layout="interleaved",
        direction="forward",
        varied={"rotary_dim": 4, "base": 500.0},
        refused=({"rotary_dim": 7},),
    ),
    Rotary(
        build=Growing,
        call=turned_both,
        relative=True,
        max_positions=LENGTH,
        base=500.0,
        layout="half",
        varied={"base": 100.0},
    ),
    Rotary(build=a_base, call=turned_as_complex, relative=True, base=10_000.0, layout="interleaved"),
    Rotary(build=a_base, call=turned_from, relative=True, base=10_000.0, layout="half", causal=True),
    Rotary(
        build=EitherLayout, call=turned, relative=True, base=500.0, layout="half", other_layout={"interleaved": True}
    ),
    SECTIONS,
    Rotary(
        build=a_base,
        call=turned_in_bfloat16,
        relative=True,
        base=10_000.0,
        layout="half",
        computes_in=torch.bfloat16,
        varied={"base": 500.0},
    ),
    Rotary(
        build=stretched,
        call=turned_and_lengthened,
        relative=True,
        layout="half",
        scale=0.1 * math.log(FACTOR) + 1.0,
        varied={"base": 500.0},
    ),
    Bias(
        build=slopes_of, call=by_the_key_alone, options={"heads": 3}, causal=True, relative=True, heads_option="heads"
    ),
    Bias(
        build=Buckets,
        call=of_both,
        relative=True,
        varied={"buckets": 16, "farthest": 64},
    ),
)


@dataclass(frozen=True)
class DeafSections(Sections):
    """Takes its sections and goes by the first axis alone."""

    def __call__(self, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return super().__call__(query, key, positions[..., :1].expand_as(positions))


MUTANTS = (
    Mutant(
        "sections that nobody reads",
        Rotary(build=DeafSections, call=turned_both, axes=3, varied={"sections": (4, 2, 2)}),
        caught_by=14,
        pain=7,
    ),
)
