"""Broken copies of schemes, each with one bug that a law or the oracle must notice (see `tests.mutants`): of those that
rotate, score or add nothing. The copies of the others stand with their mutants.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from posenc import (
    T5,
    AbsoluteInAttention,
    ALiBi,
    DistanceAware,
    NoPE,
    Positions,
    Relative1D,
    Relative2D,
    RoPE,
    Scheme,
    Shaw,
    TransformerXL,
)
from posenc.encoding import Rotation, Score
from posenc.forms import Block, ScoreFunction
from posenc.phases import PairRotation, frequencies, phases
from tests.cases import HEAD_DIM, HEADS
from tests.mutants import Lawless, Untrue, moved

FLOAT = torch.float32


def rebound(block: Block, queries: Positions, keys: Positions) -> Block:
    return Block(block.query, block.key, queries, keys, block.scale)


# --- none ------------------------------------------------------------------------------------------------------------


class FaintNoPE(NoPE):
    def score(self) -> Score:
        return Score(lambda block: lambda score, b, h, i, j: score - 0.001 * (i - j).abs())


# --- rotate ---------------------------------------------------------------------------------------------------------


class UnpairedRoPE(RoPE):
    """Keys are turned against queries."""

    def rotation(self, positions: Positions, dtype: torch.dtype = FLOAT) -> Rotation:
        against = super().rotation(moved(positions, lambda p: -p), dtype)
        return Rotation(super().rotation(positions, dtype).query, against.key)


class OneSpeedRoPE(RoPE):
    """Every pair turns at the same speed."""

    def rotation(self, positions: Positions, dtype: torch.dtype = FLOAT) -> Rotation:
        angle = phases(positions.scalar("RoPE"), frequencies(self.rotary_dim, self.base)[:1])[:, None]
        angle = angle.expand(-1, -1, -1, self.rotary_dim // 2)
        turn = PairRotation(angle.cos().to(dtype), angle.sin().to(dtype), self.layout, self.head_dim)
        return Rotation(turn, turn)


class HalfPrecisionRoPE(RoPE):
    """Angles in bfloat16."""

    def rotation(self, positions: Positions, dtype: torch.dtype = FLOAT) -> Rotation:
        angle = phases(positions.scalar("RoPE"), frequencies(self.rotary_dim, self.base))[:, None].bfloat16()
        turn = PairRotation(angle.cos().to(dtype), angle.sin().to(dtype), self.layout, self.head_dim)
        return Rotation(turn, turn)


class OneBaseRoPE(RoPE):
    """Deaf to its base: every law holds."""

    def rotation(self, positions: Positions, dtype: torch.dtype = FLOAT) -> Rotation:
        self.base = 10_000.0
        return super().rotation(positions, dtype)


# --- score and value ------------------------------------------------------------------------------------------------


class BiasedALiBi(ALiBi):
    """The causal form with another distance."""

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def _bind(self, block: Block) -> ScoreFunction:
        slopes = torch.tensor(self.slopes, dtype=torch.float64)
        x, y = block.query_positions.coords, block.key_positions.coords

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score - slopes.to(score.dtype)[h] * self._distance(x[b, i], y[b, j]).to(score.dtype)

        return biased


class RewardingALiBi(BiasedALiBi):
    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        return y - x


class BlindALiBi(BiasedALiBi):
    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        return (x - y).abs()


class KeyedALiBi(BiasedALiBi):
    """m_h j, which a causal softmax cannot tell from m_h (j - i), but a score can."""

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        return -y


class CappedALiBi(BiasedALiBi):
    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        return (x - y).clamp(max=512)


class PowersALiBi(ALiBi):
    """The rule for powers of two at any number of heads: every law holds."""

    @property
    def slopes(self) -> tuple[float, ...]:
        return tuple(2.0 ** (-8 * (h + 1) / self.num_heads) for h in range(self.num_heads))


class AbsoluteShaw(Shaw):
    """Clips the key's position instead of the distance, in both doors."""

    def _bucket(self, block: Block) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        y, k = block.key_positions.coords, self.max_distance
        return lambda b, h, i, j: (y[b, j].clamp(-k, k) + k).expand(torch.broadcast_shapes(b.shape, i.shape, j.shape))


class UnsignedShaw(Shaw):
    def _bucket(self, block: Block) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        x, y, k = block.query_positions.coords, block.key_positions.coords, self.max_distance
        return lambda b, h, i, j: (y[b, j] - x[b, i]).abs().clamp(max=k) + k


class MirroredShaw(Shaw):
    """Query minus key: every law holds."""

    def _bucket(self, block: Block) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        right = super()._bucket(block)
        return lambda b, h, i, j: 2 * self.max_distance - right(b, h, i, j)


class KeyedT5(T5):
    """The bucket of the key's position, not of the distance."""

    def _bind(self, block: Block) -> ScoreFunction:
        return super()._bind(
            rebound(block, moved(block.query_positions, torch.zeros_like), moved(block.key_positions, torch.neg))
        )


class UnsignedT5(T5):
    def _bucket(self, distances: Tensor) -> Tensor:
        return super()._bucket(-distances.abs())


class EndlessT5(T5):
    """Goes on counting past its last bucket, in a straight line."""

    def _bind(self, block: Block) -> ScoreFunction:
        right, x, y = super()._bind(block), block.query_positions.coords, block.key_positions.coords
        return lambda score, b, h, i, j: right(score, b, h, i, j) - (x[b, i] - y[b, j] - 128).clamp(min=0)


class MirroredT5(T5):
    """Key minus query: every law holds."""

    def _bucket(self, distances: Tensor) -> Tensor:
        return super()._bucket(-distances)


class EvenTransformerXL(TransformerXL):
    """The sines lost, and with them the direction."""

    def _meet(self, vectors: Tensor, block: Block) -> Tensor:
        theta = frequencies(self.dim, self.base)
        x = phases(block.query_positions.scalar("TransformerXL"), theta)
        y = phases(block.key_positions.scalar("TransformerXL"), theta)
        _, of_cos = (vectors @ self.projection.to(vectors.dtype)).chunk(2, -1)
        return torch.einsum("bhic,bijc->bhij", of_cos, (x[:, :, None] - y[:, None]).cos().to(vectors.dtype))


class KeyedTransformerXL(TransformerXL):
    """R of the key's position, not of the distance."""

    def _meet(self, vectors: Tensor, block: Block) -> Tensor:
        return super()._meet(
            vectors, rebound(block, moved(block.query_positions, torch.zeros_like), block.key_positions)
        )


class MirroredTransformerXL(TransformerXL):
    """Key minus query: every law holds."""

    def _meet(self, vectors: Tensor, block: Block) -> Tensor:
        queries, keys = (moved(p, torch.neg) for p in (block.query_positions, block.key_positions))
        return super()._meet(vectors, rebound(block, queries, keys))


class UnboundedDistanceAware(DistanceAware):
    @staticmethod
    def _factor(distance: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return 1 + (w * distance).abs()


class SignedDistanceAware(DistanceAware):
    def _bind(self, block: Block) -> ScoreFunction:
        x, y = block.query_positions.coords, block.key_positions.coords
        w, v = self.w.to(block.query.dtype), self.v.to(block.query.dtype)
        return lambda score, b, h, i, j: score.relu() * self._factor((x[b, i] - y[b, j]).to(score.dtype), w[h], v[h])


class WavingDistanceAware(DistanceAware):
    @staticmethod
    def _factor(distance: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return 1 + 0.5 * torch.sin(w * distance)


class HalvedDistanceAware(DistanceAware):
    """sigmoid(R - v) without its (1 + e^v), so f(0) is not 1: every law holds."""

    @staticmethod
    def _factor(distance: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return torch.sigmoid(w * distance - v)


class RelativeAbsoluteInAttention(AbsoluteInAttention):
    """The table of one scheme with the index of another."""

    def _bind(self, block: Block) -> ScoreFunction:
        x, y = block.query_positions.coords, block.key_positions.coords
        met = block.scale * block.query @ self.weight.to(block.query.dtype).mT
        return lambda score, b, h, i, j: score + met[b, h, i, (x[b, i] - y[b, j]).clamp(0, self.max_positions - 1)]


class WrappedAbsoluteInAttention(AbsoluteInAttention):
    def _bind(self, block: Block) -> ScoreFunction:
        keys = moved(block.key_positions, lambda p: p % self.max_positions)
        return super()._bind(rebound(block, block.query_positions, keys))


class UnscaledAbsoluteInAttention(AbsoluteInAttention):
    def _bind(self, block: Block) -> ScoreFunction:
        return super()._bind(Block(block.query, block.key, block.query_positions, block.key_positions, 1.0))


class KeyedRelative1D(Relative1D):
    def _bind(self, block: Block) -> ScoreFunction:
        queries = moved(block.query_positions, torch.zeros_like)
        return super()._bind(rebound(block, queries, block.key_positions))


class UnsignedRelative1D(Relative1D):
    def _bind(self, block: Block) -> ScoreFunction:
        x, y = block.table_coordinates("Relative1D", (self.max_positions,))
        met = block.scale * block.query @ self.weight.to(block.query.dtype).mT
        return lambda score, b, h, i, j: score + met[b, h, i, (y[b, j] - x[b, i]).abs()]


class MirroredRelative1D(Relative1D):
    def _bind(self, block: Block) -> ScoreFunction:
        return super()._bind(
            rebound(block, moved(block.query_positions, torch.neg), moved(block.key_positions, torch.neg))
        )


class OtherRelative2D(Relative2D):
    """Relative 2D with another axis for the rows, or another way to put both together."""

    axes = (0, 1)

    def _together(self, row: Tensor, column: Tensor) -> Tensor:
        return row + column

    def _bind(self, block: Block) -> ScoreFunction:
        x, y = block.table_coordinates("Relative2D", axes=2)
        query = block.scale * block.query
        tables = [query @ table.to(query.dtype).mT for table in (self.row_table, self.column_table)]

        def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            parts = []
            for table, axis, size in zip(tables, self.axes, self.grid, strict=True):
                distance = y[b, j, axis] - x[b, i, axis]
                parts.append(table[b, h, i, (distance + size - 1).clamp(0, 2 * size - 2)])
            return score + self._together(*parts)

        return biased


class MultipliedRelative2D(OtherRelative2D):
    def _together(self, row: Tensor, column: Tensor) -> Tensor:
        return row * column


class TransposedRelative2D(OtherRelative2D):
    """Rows and columns exchanged: every law holds that holds on a square."""

    axes = (1, 0)


class EndlessRelative2D(OtherRelative2D):
    """Distances past the tables share their ends, silently."""


# --- what notices them ----------------------------------------------------------------------------------------------


def drawn(scheme: Scheme) -> Scheme:
    for parameter in scheme.double().parameters():
        torch.nn.init.normal_(parameter)
    return scheme


LAWLESS = (
    Lawless("nope", lambda shape: FaintNoPE(), "order_free"),
    Lawless("rope", lambda shape: UnpairedRoPE(shape.head_dim), "relative"),
    Lawless("rope", lambda shape: OneSpeedRoPE(shape.head_dim), "decaying_bound"),
    Lawless("rope", lambda shape: HalfPrecisionRoPE(shape.head_dim), "linear"),
    Lawless("alibi", lambda shape: RewardingALiBi(shape.num_heads), "decaying"),
    Lawless("alibi", lambda shape: BlindALiBi(shape.num_heads), "directed"),
    Lawless("alibi", lambda shape: KeyedALiBi(shape.num_heads), "relative"),
    Lawless("alibi", lambda shape: CappedALiBi(shape.num_heads), "unique"),
    Lawless("shaw", lambda shape: AbsoluteShaw(shape.head_dim, 16), "relative"),
    Lawless("shaw", lambda shape: AbsoluteShaw(shape.head_dim, 16, keys=False), "relative"),
    Lawless("shaw", lambda shape: UnsignedShaw(shape.head_dim, 16), "directed"),
    Lawless("t5", lambda shape: KeyedT5(shape.num_heads), "relative"),
    Lawless("t5", lambda shape: UnsignedT5(shape.num_heads), "directed"),
    Lawless("t5", lambda shape: EndlessT5(shape.num_heads), "bounded"),
    Lawless("transformer_xl", lambda shape: EvenTransformerXL(shape.num_heads, shape.head_dim), "directed"),
    Lawless("transformer_xl", lambda shape: KeyedTransformerXL(shape.num_heads, shape.head_dim), "relative"),
    Lawless("distance_aware", lambda shape: UnboundedDistanceAware(shape.num_heads), "bounded"),
    Lawless("distance_aware", lambda shape: SignedDistanceAware(shape.num_heads), "directed"),
    Lawless("distance_aware", lambda shape: WavingDistanceAware(shape.num_heads), "monotone"),
    Lawless(
        "absolute_in_attention",
        lambda shape: RelativeAbsoluteInAttention(shape.max_positions, shape.head_dim),
        "relative",
    ),
    Lawless(
        "absolute_in_attention",
        lambda shape: WrappedAbsoluteInAttention(shape.max_positions, shape.head_dim),
        "length_free",
    ),
    Lawless("relative_1d", lambda shape: KeyedRelative1D(shape.max_positions, shape.head_dim), "relative"),
    Lawless("relative_1d", lambda shape: UnsignedRelative1D(shape.max_positions, shape.head_dim), "directed"),
    Lawless("relative_2d", lambda shape: MultipliedRelative2D((64, 64), shape.head_dim), "separable"),
    Lawless("relative_2d", lambda shape: EndlessRelative2D((64, 64), shape.head_dim), "length_free"),
)

UNTRUE = (
    Untrue("nope", FaintNoPE),
    Untrue("rope", lambda: OneBaseRoPE(HEAD_DIM, base=313.0)),
    Untrue("alibi", lambda: PowersALiBi(HEADS)),
    Untrue("shaw", lambda: drawn(MirroredShaw(HEAD_DIM, 2))),
    Untrue("t5", lambda: drawn(MirroredT5(HEADS))),
    Untrue("transformer_xl", lambda: drawn(MirroredTransformerXL(HEADS, HEAD_DIM))),
    Untrue("distance_aware", lambda: drawn(HalvedDistanceAware(HEADS))),
    Untrue("absolute_in_attention", lambda: drawn(UnscaledAbsoluteInAttention(20, HEAD_DIM))),
    Untrue("relative_1d", lambda: drawn(MirroredRelative1D(20, HEAD_DIM))),
    Untrue("relative_2d", lambda: drawn(TransposedRelative2D((3, 5), HEAD_DIM))),
)
