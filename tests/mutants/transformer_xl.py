"""TransformerXL with other distances, another sinusoid, or its terms mixed up."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc import TransformerXL
from posenc.encoding.pieces import Meeting, Row
from posenc.lowering.block import Block
from posenc.lowering.forms import ScoreFunction
from posenc.rotation.phases import frequencies
from posenc.schemes import transformer_xl
from tests.cases import HEAD_DIM, HEADS
from tests.mutants import Lawless, Mutant, Untrue, by_pair, drawn, elsewhere, oracles
from tests.schemes import test_life_cycle


def as_shifted(distance: Tensor) -> Tensor:
    """What the padded and reshaped matrix holds where the key is after its query: the end of the next row."""
    return torch.where(distance < 0, distance + distance.size(-1) + 1, distance)


def sines_then_cosines(angle: Tensor) -> Tensor:
    return torch.cat((angle.sin(), angle.cos()), -1)


def score(
    distance: Callable[[Tensor], Tensor] = lambda distance: distance,
    of_index: bool = False,
    waves: Callable[[Tensor], Tensor] = sines_then_cosines,
    theta: Callable[[TransformerXL], Tensor] = lambda self: frequencies(self.dim, self.base),
    projection: Callable[[Tensor], Tensor] = lambda projection: projection,
    biases: tuple[str, str] = ("content_bias", "position_bias"),
    scaled: tuple[bool, bool, bool] = (True, True, True),
    tiled: bool = False,
) -> Callable[..., tuple[Row, ...]]:
    """The last three terms, written out for every pair, as they are but for one thing."""

    def wrong(self: TransformerXL, block: Block) -> ScoreFunction:
        u, v = (getattr(self, name) for name in biases)
        query, group = block.query, block.query.size(1) // block.key.size(1)
        key = block.key.repeat(1, group, 1, 1) if tiled else block.key.repeat_interleave(group, 1)
        x, y = block.query_positions.coords.double(), block.key_positions.coords.double()
        if of_index:
            x, y = (torch.arange(t.size(1)).double().expand_as(t) for t in (x, y))
        met = waves(distance(x[:, :, None] - y[:, None, :])[..., None] * theta(self)).to(query.dtype)
        relative = torch.einsum("hdc,bijc->bhijd", projection(self.projection), met)
        terms = (
            torch.einsum("bhid,bhijd->bhij", query, relative),
            torch.einsum("hd,bhjd->bhj", u, key)[:, :, None].expand(-1, -1, query.size(2), -1),
            torch.einsum("hd,bhijd->bhij", v, relative),
        )
        three = sum((block.scale if s else 1.0) * term for s, term in zip(scaled, terms, strict=True))
        assert isinstance(three, Tensor)
        return lambda score, b, h, i, j: score + three[b, h, i, j]

    return by_pair(wrong)


def single_precision(coords: Tensor, theta: Tensor) -> Tensor:
    return coords.float()[..., None] * theta.float()


def projection_alone(self: TransformerXL) -> None:
    nn.init.normal_(self.projection, std=0.02)


SCORE = TransformerXL.score


def segments(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """All terms as they are, but for the vectors by segment."""

    def wrong(*given: Any) -> Any:
        *others, last = SCORE(*given)
        return (*others, replace(last, vectors=change(last.vectors)) if others[1:] else last)

    return wrong


def with_v(self: TransformerXL, *given: Any) -> Any:
    """In every term that is a product with the query."""
    return tuple(replace(p, shift=self.position_bias) if isinstance(p, Meeting) else p for p in SCORE(self, *given))


def mutant(bug: str, wrong: object) -> Mutant:
    return Mutant(bug, TransformerXL, "score", wrong, oracles("transformer_xl"))


MUTANTS = (
    mutant("takes key minus query", score(distance=torch.neg)),
    mutant("takes the end of the next row for what lies ahead", score(distance=as_shifted)),
    mutant("is blind to direction", score(distance=torch.abs)),
    mutant("knows no distance to what lies ahead", score(distance=lambda distance: distance.clamp(min=0))),
    mutant("takes distances between indices", score(of_index=True)),
    mutant("puts the cosine first", score(waves=lambda angle: torch.cat((angle.cos(), angle.sin()), -1))),
    mutant("interleaves", score(waves=lambda angle: torch.stack((angle.sin(), angle.cos()), -1).flatten(-2))),
    mutant("ignores the base", score(theta=lambda self: frequencies(self.dim, 10_000.0))),
    mutant("has one projection for all heads", score(projection=lambda w: w[:1].expand_as(w))),
    mutant("swaps u and v", score(biases=("position_bias", "content_bias"))),
    mutant("has one bias for both", score(biases=("content_bias", "content_bias"))),
    mutant("does not scale the global terms", score(scaled=(True, False, False))),
    mutant("does not scale the position terms", score(scaled=(False, True, False))),
    mutant("lets u meet the keys of another group", score(tiled=True)),
    mutant("has no term of segments", lambda *given: SCORE(*given)[:2]),
    mutant("takes other segments for the same", segments(lambda vectors: lambda r: vectors(1 - r))),
    mutant("knows the next segment alone", segments(lambda vectors: lambda r: vectors(r.clamp(min=0)))),
    mutant("adds v where w belongs", with_v),
    Mutant(
        "computes phases in single precision", transformer_xl, "phases", single_precision, oracles("transformer_xl")
    ),
    Mutant(
        "does not draw u and v",
        TransformerXL,
        "reset_parameters",
        projection_alone,
        partial(test_life_cycle.check_meta, "transformer_xl"),
    ),
)


class EvenTransformerXL(TransformerXL):
    """The sines lost, and with them the direction."""

    score = score(waves=lambda angle: torch.cat((0 * angle, angle.cos()), -1))


class KeyedTransformerXL(TransformerXL):
    """R of the key's position, not of the distance."""

    score = elsewhere(TransformerXL, torch.zeros_like, lambda y: y)


class MirroredTransformerXL(TransformerXL):
    """Key minus query: every law holds."""

    score = score(distance=torch.neg)


LAWLESS = (
    Lawless("transformer_xl", lambda shape: EvenTransformerXL(shape.num_heads, shape.head_dim), "directed"),
    Lawless("transformer_xl", lambda shape: KeyedTransformerXL(shape.num_heads, shape.head_dim), "relative"),
)
UNTRUE = (Untrue("transformer_xl", lambda: drawn(MirroredTransformerXL(HEADS, HEAD_DIM))),)
