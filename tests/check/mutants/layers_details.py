"""Details of whole layers: backends, shared heads, rows of a batch, dropout, scales, dtypes, what is built on meta."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.tools.check import Layer, Rotary
from tests.check.mutants import Mutant

HEADS, HEAD_DIM = 4, 8


class Llama(nn.Module):
    """Causal attention as models have it: shared heads, rotary halves from frequencies in a buffer, two backends."""

    def __init__(self, backend: str = "eager") -> None:
        super().__init__()
        self.backend = backend
        self.query, self.rest, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        nn.init.normal_(self.query.weight, std=0.3)
        self.register_buffer("frequencies", self.drawn(), persistent=False)

    def drawn(self) -> Tensor:
        return 100.0 ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)

    def reset_parameters(self) -> None:
        for linear in (self.query, self.rest, self.out):
            linear.reset_parameters()
        nn.init.normal_(self.query.weight, std=0.3)
        self.frequencies.copy_(self.drawn())

    def rates(self) -> Tensor:
        """Of a cast module too, they are exact."""
        return self.drawn()

    def phase(self, positions: Tensor, x: Tensor) -> Tensor:
        return (positions[:, :, None].double() * self.rates()).repeat(1, 1, 2)[:, None]

    def turned(self, x: Tensor, phase: Tensor) -> Tensor:
        across = torch.cat((-x[..., HEAD_DIM // 2 :], x[..., : HEAD_DIM // 2]), -1)
        return x * phase.cos().to(x.dtype) + across * phase.sin().to(x.dtype)

    def shared(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 1)

    def eager(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen = torch.ones(query.size(2), key.size(2)).tril().bool()
        scores = (query @ key.mT / HEAD_DIM**0.5).masked_fill(~seen, -torch.inf)
        return scores.softmax(-1).to(value.dtype) @ value

    def fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def joined(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        key, value = self.rest(x).unflatten(-1, (2, HEADS // 2, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        phase = self.phase(positions, x)
        query, key = self.turned(query, phase), self.turned(key, phase)
        attend = self.eager if self.backend == "eager" else self.fused
        return self.out(self.joined(attend(query, self.shared(key), self.shared(value))))


def attend(made: Any, x: Tensor, positions: Tensor | None = None) -> Tensor:
    return made(x, torch.arange(x.size(1)).expand(x.shape[:2]) if positions is None else positions)


class FusedInOtherGroups(Llama):
    """PyTorch's attention is given heads by repeat, the other by repeat_interleave."""

    def shared(self, x: Tensor) -> Tensor:
        return super().shared(x) if self.backend == "eager" else x.repeat(1, 2, 1, 1)


class ScaledTwice(Llama):
    """Queries are scaled, and PyTorch's attention scales them again."""

    def fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return super().fused(query * HEAD_DIM**-0.5, key, value)


class FusedSeesAll(Llama):
    """The causal mask is the other backend's."""

    def fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)


class DropoutAlways(Llama):
    """The probability is given to PyTorch's attention in evaluation too."""

    def __init__(self, backend: str = "fused") -> None:
        super().__init__(backend)

    def fused(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=True)


class TurnedInPlace(Llama):
    """The rotation writes into what it is given, which is the layer's input where nothing is projected."""

    def turned(self, x: Tensor, phase: Tensor) -> Tensor:
        across = torch.cat((-x[..., HEAD_DIM // 2 :], x[..., : HEAD_DIM // 2]), -1)
        return x.mul_(phase.cos().to(x.dtype)).add_(across * phase.sin().to(x.dtype))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        heads = x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        phase = self.phase(positions, x)
        query = self.turned(heads, phase)
        return self.out(self.joined(self.eager(query, query, query)))


class GarbageAfterMeta(Llama):
    """Frequencies in a buffer that no checkpoint holds and no reset fills."""

    def rates(self) -> Tensor:
        return self.frequencies

    def reset_parameters(self) -> None:
        for linear in (self.query, self.rest, self.out):
            linear.reset_parameters()
        nn.init.normal_(self.query.weight, std=0.3)


class PhasesOfAutocast(Llama):
    """Phases are a product of matrices, which autocast makes in bfloat16."""

    def phase(self, positions: Tensor, x: Tensor) -> Tensor:
        phase = positions[:, :, None].float() @ self.rates()[None].float()
        return phase.repeat(1, 1, 2)[:, None]


class JoinedByView(Llama):
    """Heads and tokens are not exchanged before heads are put together."""

    def joined(self, x: Tensor) -> Tensor:
        return x.reshape(x.size(0), x.size(2), -1)


class RowsMixed(Llama):
    """Rows and tokens are exchanged before heads are put together."""

    def joined(self, x: Tensor) -> Tensor:
        return x.permute(2, 0, 1, 3).reshape(x.size(0), x.size(2), -1)


class FirstRowsPhase(Llama):
    """Positions of the first row for the whole batch."""

    def phase(self, positions: Tensor, x: Tensor) -> Tensor:
        return super().phase(positions[:1], x)


class FromTheLowest(Llama):
    """Positions are counted from the lowest of the batch: the others keep their distance from it, and lose the gaps."""

    def phase(self, positions: Tensor, x: Tensor) -> Tensor:
        return super().phase(torch.arange(positions.size(1))[None] + positions.min(), x)


class Dynamic(Llama):
    """Grows its base past 16 tokens, by the row's own length."""

    def reach(self, positions: Tensor) -> Tensor:
        """(rows, 1, 1)"""
        return positions.amax(1)[:, None, None].double() + 1

    def phase(self, positions: Tensor, x: Tensor) -> Tensor:
        grown = (2 * self.reach(positions) / 16 - 1).clamp(min=1) ** (HEAD_DIM / (HEAD_DIM - 2))
        rates = (100.0 * grown) ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
        return (positions[:, :, None].double() * rates).repeat(1, 1, 2)[:, None]


class LongestOfTheBatch(Dynamic):
    """By the longest row, so that a short one goes by its neighbours."""

    def reach(self, positions: Tensor) -> Tensor:
        return super().reach(positions).amax(0, keepdim=True)


class NeverShrinks(Dynamic):
    """By the longest text that ever came."""

    def __init__(self, backend: str = "eager") -> None:
        super().__init__(backend)
        self.longest = 0.0

    def reach(self, positions: Tensor) -> Tensor:
        self.longest = max(self.longest, float(positions.max()) + 1)
        return torch.full((positions.size(0), 1, 1), self.longest, dtype=torch.float64)


class Conformer(nn.Module):
    """Transformer-XL's attention as in Conformers: content and position with a bias each, sines of all distances from
    the furthest before to the furthest after, and a shift. Looks both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.positional = nn.Linear(32, 96), nn.Linear(32, 32, bias=False)
        self.content, self.position = (nn.Parameter(torch.randn(HEADS, 1, HEAD_DIM)) for _ in range(2))

    def distances(self, tokens: int) -> Tensor:
        """Query less key: from tokens - 1 down to 1 - tokens."""
        return torch.arange(tokens - 1, -tokens, -1)

    def sines(self, distance: Tensor) -> Tensor:
        phase = distance[:, None].double() / 10_000.0 ** (torch.arange(16, dtype=torch.float64) / 16)
        return torch.cat((phase.sin(), phase.cos()), -1)

    def shifted(self, scores: Tensor) -> Tensor:
        """(…, tokens, 2 tokens - 1) to (…, tokens, tokens)."""
        queries, wide = scores.shape[-2:]
        padded = F.pad(scores, (1, 0)).view(*scores.shape[:-2], wide + 1, queries)
        return padded[..., 1:, :].reshape(scores.shape)[..., :queries]

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        sines = self.sines(self.distances(x.size(1))).to(x.dtype)
        away = self.positional(sines).unflatten(-1, (HEADS, HEAD_DIM)).transpose(0, 1)
        scores = (query + self.content) @ key.mT + self.shifted((query + self.position) @ away.mT)
        return ((scores / math.sqrt(HEAD_DIM)).softmax(-1) @ value).transpose(1, 2).flatten(2)


def hear(made: Any, x: Tensor) -> Tensor:
    return made(x)


class Legacy(Conformer):
    """ESPnet's first: as many sines as tokens, and a shift that gives keys after the query the next row's scores."""

    def distances(self, tokens: int) -> Tensor:
        return torch.arange(tokens - 1, -1, -1)

    def shifted(self, scores: Tensor) -> Tensor:
        queries = scores.size(-1)
        padded = F.pad(scores, (1, 0)).view(*scores.shape[:-2], queries + 1, queries)
        return padded[..., 1:, :]


class NotShifted(Conformer):
    """Distances are taken for those of the first query."""

    def shifted(self, scores: Tensor) -> Tensor:
        return scores[..., : scores.size(-2)]


class ShiftedWithoutARow(Conformer):
    """The first row stays after the view."""

    def shifted(self, scores: Tensor) -> Tensor:
        queries, wide = scores.shape[-2:]
        padded = F.pad(scores, (1, 0)).view(*scores.shape[:-2], wide + 1, queries)
        return padded[..., :-1, :].reshape(scores.shape)[..., :queries]


class Fading(nn.Module):
    """xPos: pairs of neighbours turned, queries shrunk as keys grow with the position, up to 4,096 of them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale_base = 512.0

    def power(self, positions: Tensor) -> Tensor:
        return positions / self.scale_base

    def forward(self, x: Tensor, positions: Tensor, sign: int) -> Tensor:
        for place in (int(positions.min()), int(positions.max())):
            if not 0 <= place < 4096:
                raise ValueError(f"positions must be within 0..4095, got {place}")
        pair = torch.arange(0, x.size(-1), 2, dtype=torch.float64) / x.size(-1)
        zeta = ((pair + 0.4) / 1.4) ** (sign * self.power(positions.double())[:, None, :, None])
        phase = positions[:, None, :, None].double() * 10_000.0**-pair
        cos, sin, first, second = phase.cos() * zeta, phase.sin() * zeta, x[..., 0::2].double(), x[..., 1::2].double()
        return torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2).to(x.dtype)


def fade(made: Fading, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return made(query, positions, 1), made(key, positions, -1)


def fade_alike(made: Fading, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Keys grow as queries do."""
    return made(query, positions, 1), made(key, positions, 1)


class FromTheMiddle(Fading):
    """Powers are counted from the middle of the call's tokens, and cached keys had another."""

    def power(self, positions: Tensor) -> Tensor:
        return (positions - positions.float().mean(-1, keepdim=True)) / self.scale_base


def llama(build: Any, **claims: Any) -> Layer:
    return Layer(build=build, call=attend, causal=True, relative=True, **claims)


def both(build: Any) -> Layer:
    return llama(build, backends=({"backend": "eager"}, {"backend": "fused"}))


def dynamic(build: Any) -> Layer:
    return Layer(build=build, call=attend, causal=True, threshold=16)


def conformer(build: Any) -> Layer:
    return Layer(build=build, call=hear, relative=True, directed=True, normalized=True)


def fading(build: Any, call: Any = fade) -> Rotary:
    claims: dict[str, Any] = {"max_positions": 4096, "scale": None, "base": 10_000.0, "layout": "interleaved"}
    return Rotary(build=build, call=call, causal=True, relative=True, **claims)


CORRECT = (both(Llama), dynamic(Dynamic), conformer(Conformer), fading(Fading))
MUTANTS = (
    Mutant("one backend with other groups of heads", both(FusedInOtherGroups), caught_by=16, pain=10),
    Mutant("scaled twice by one backend", both(ScaledTwice), caught_by=16, pain=10),
    Mutant("one backend is not causal", both(FusedSeesAll), caught_by=16, pain=10),
    Mutant("dropout in evaluation", llama(DropoutAlways), caught_by=5, pain=15),
    Mutant("a layer's input turned in place", llama(TurnedInPlace), caught_by=5, pain=15),
    Mutant("frequencies that no reset fills", llama(GarbageAfterMeta), caught_by=3, pain=2),
    Mutant("a layer's phases by a product", llama(PhasesOfAutocast), caught_by=1, pain=1),
    Mutant("causal heads put together by a view", llama(JoinedByView), caught_by=19, pain=18),
    Mutant("rows and tokens exchanged", llama(RowsMixed), caught_by=19, pain=18),
    Mutant("phases of the first row", llama(FirstRowsPhase), caught_by=19, pain=3),
    Mutant("gaps between positions lost", llama(FromTheLowest), caught_by=6, pain=3),
    Mutant("a base by the longest row", dynamic(LongestOfTheBatch), caught_by=19, pain=6),
    Mutant("a base that never shrinks", dynamic(NeverShrinks), caught_by=13, pain=6),
    Mutant("the shift of squares for both sides", conformer(Legacy), caught_by=6, pain=11),
    Mutant("distances of the first query", conformer(NotShifted), caught_by=6, pain=11),
    Mutant("a shift that keeps the first row", conformer(ShiftedWithoutARow), caught_by=6, pain=11),
    Mutant("keys that grow as queries do", fading(Fading, fade_alike), caught_by=6, pain=8),
    Mutant("growth from the middle of the call", fading(FromTheMiddle), caught_by=8, pain=5),
)
