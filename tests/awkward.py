"""The schemes that could bend the contract, written against it as a user would write them.

They are here to try the contract, not to be used: no initialisation, no checks, no documentation of their own.
"""

import math

import torch
from torch import Tensor, nn

from posenc import Positions
from posenc.encoding import Block, Rotation, RowFunction, RowScore, Scheme, Score, ScoreFunction, Value
from posenc.phases import PairRotation, frequencies, phases


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=torch.float64))


class TrialShaw(Scheme):
    """Two doors, and a score that depends on the query."""

    def __init__(self, head_dim: int, max_distance: int) -> None:
        super().__init__()
        self.k = max_distance
        self.keys, self.values = weight(2 * self.k + 1, head_dim), weight(2 * self.k + 1, head_dim)

    def _bucket(self, block: Block):
        x, y = block.query_positions.scalar("Shaw"), block.key_positions.scalar("Shaw")
        return lambda b, h, i, j: (y[b, j] - x[b, i]).clamp(-self.k, self.k) + self.k

    def score(self) -> Score:
        def bind(block: Block) -> ScoreFunction:
            met, bucket = block.scale * block.query @ self.keys.mT, self._bucket(block)
            return lambda score, b, h, i, j: score + met[b, h, i, bucket(b, h, i, j)]

        return Score(bind)

    def value(self) -> Value:
        return Value(self.values, self._bucket)


class TrialTransformerXL(Scheme):
    """All distances, and terms of the query, of the key and of neither."""

    def __init__(self, heads: int, head_dim: int, dim: int) -> None:
        super().__init__()
        self.project = weight(heads, head_dim, dim)
        self.u, self.v = weight(heads, head_dim), weight(heads, head_dim)

    def score(self) -> Score:
        return Score(self._bind)

    def _bind(self, block: Block) -> ScoreFunction:
        theta = frequencies(self.project.size(-1), 10_000.0)
        x = phases(block.query_positions.scalar("TransformerXL"), theta)[:, None]
        y = phases(block.key_positions.scalar("TransformerXL"), theta)
        # sin(x - y) and cos(x - y) by angle addition: no table of distances, so any real positions will do.
        of_sin, of_cos = ((block.query + self.v[:, None]) @ self.project).chunk(2, -1)
        left = torch.cat((of_sin * x.sin() + of_cos * x.cos(), of_cos * x.sin() - of_sin * x.cos()), -1)
        position = torch.einsum("bhid,bjd->bhij", left, torch.cat((y.cos(), y.sin()), -1))
        group = block.query.size(1) // block.key.size(1)
        content = torch.einsum("gud,bgjd->bguj", self.u.unflatten(0, (-1, group)), block.key).flatten(1, 2)
        return lambda score, b, h, i, j: score + block.scale * (content[b, h, j] + position[b, h, i, j])


class TrialDistanceAware(Scheme):
    """Multiplies."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.w, self.v = weight(heads), weight(heads)

    def score(self) -> Score:
        def bind(block: Block) -> ScoreFunction:
            x, y = block.query_positions.scalar("DA"), block.key_positions.scalar("DA")

            def rescaled(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                distance = (x[b, i] - y[b, j]).abs().to(score.dtype)
                return score.relu() * (1 + self.v[h].exp()) * torch.sigmoid(self.w[h] * distance - self.v[h])

            return rescaled

        return Score(bind, additive=False)


class TrialCoPE(Scheme):
    """Counts along the row."""

    def __init__(self, num_positions: int, head_dim: int) -> None:
        super().__init__()
        self.embedding = weight(num_positions, head_dim)

    def score(self) -> RowScore:
        return RowScore(self._bind)

    def _bind(self, block: Block) -> RowFunction:
        met = block.query @ self.embedding.mT
        order = block.key_positions.order

        def counted(scores: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor, visible: Tensor | None) -> Tensor:
            gates = scores.sigmoid()
            gates = gates if visible is None else gates.masked_fill(~visible, 0.0)
            later = (order[:, None, :] >= order[:, :, None]).to(gates.dtype)  # [b, j, t]: t not before j
            count = torch.einsum("bhit,bjt->bhij", gates, later).clamp(max=self.embedding.size(0) - 1)
            low, part = count.floor().long(), count - count.floor()
            high = count.ceil().long()
            return scores + (1 - part) * met[b, h, i, low] + part * met[b, h, i, high]

        return counted


class TrialRelative2D(Scheme):
    """Two coordinates."""

    def __init__(self, height: int, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.size = (height, width)
        self.rows, self.columns = weight(heads, 2 * height - 1, head_dim), weight(heads, 2 * width - 1, head_dim)

    def score(self) -> Score:
        def bind(block: Block) -> ScoreFunction:
            x, y = block.query_positions.coords, block.key_positions.coords
            row, column = (block.scale * block.query @ table.mT for table in (self.rows, self.columns))

            def relative(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                down = y[b, j, 0] - x[b, i, 0] + self.size[0] - 1
                right = y[b, j, 1] - x[b, i, 1] + self.size[1] - 1
                return score + row[b, h, i, down] + column[b, h, i, right]

            return relative

        return Score(bind)


class TrialYaRN(Scheme):
    """A logit scale: a rotation that also lengthens, so the rotate door needs nothing new."""

    def __init__(self, head_dim: int, factor: float, original_length: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim, self.factor, self.length, self.base = head_dim, factor, original_length, base

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Rotation:
        def turning(times: float) -> float:
            return self.head_dim * math.log(self.length / (times * 2 * math.pi)) / (2 * math.log(self.base))

        low, high = max(math.floor(turning(32)), 0), min(math.ceil(turning(1)), self.head_dim - 1)
        theta = frequencies(self.head_dim, self.base)
        ramp = ((torch.arange(len(theta)) - low) / max(high - low, 0.001)).clamp(0, 1).double()
        angle = phases(positions.scalar("YaRN"), (1 - ramp) * theta + ramp * theta / self.factor)[:, None]
        long = 0.1 * math.log(self.factor) + 1
        turn = PairRotation((long * angle.cos()).to(dtype), (long * angle.sin()).to(dtype), "half", self.head_dim)
        return Rotation(turn, turn)
