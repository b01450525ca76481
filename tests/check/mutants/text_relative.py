"""Vectors of distances as people write them: Shaw's tables, Transformer-XL's shift, Music Transformer's skewing."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.tools.check import Layer
from tests.check.mutants import Mutant

HEADS, WIDTH = 4, 8


def hidden(scores: Tensor, visible: Tensor) -> Tensor:
    return scores.masked_fill(~visible, torch.finfo(scores.dtype).min)


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Shaw(nn.Module):
    """An encoder's attention with tables of keys and of values, up to four tokens each way."""

    def __init__(self, clip: int = 4) -> None:
        super().__init__()
        self.clip = clip
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.relative_k, self.relative_v = (nn.Embedding(2 * clip + 1, WIDTH) for _ in range(2))

    def distance(self, positions: Tensor) -> Tensor:
        return positions[:, None, :] - positions[:, :, None]

    def index(self, distance: Tensor) -> Tensor:
        return distance.clamp(-self.clip, self.clip) + self.clip

    def tables(self) -> tuple[Tensor, Tensor]:
        return self.relative_k.weight, self.relative_v.weight

    def scores(self, content: Tensor, position: Tensor) -> Tensor:
        return (content + position) / WIDTH**0.5

    def forward(self, x: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
        query, key, value = (split(y) for y in self.qkv(x).chunk(3, -1))
        if positions is None:
            positions = (torch.ones(x.shape[:2]) if mask is None else mask).long().cumsum(-1) - 1
        index = self.index(self.distance(positions))
        of_keys, of_values = (table[index] for table in self.tables())
        scores = self.scores(query @ key.mT, torch.einsum("bhqd,bqkd->bhqk", query, of_keys))
        weights = (scores if mask is None else hidden(scores, mask[:, None, None])).softmax(-1)
        return self.out(joined(weights @ value + torch.einsum("bhqk,bqkd->bhqd", weights, of_values)))


class KeptForEvaluation(Shaw):
    """Its tables are laid aside in evaluation, and made anew after training."""

    kept: tuple[Tensor, Tensor] | None = None

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)
        self.kept = None

    def tables(self) -> tuple[Tensor, Tensor]:
        if self.training:
            return super().tables()
        if self.kept is None:
            of_keys, of_values = super().tables()
            self.kept = of_keys.detach().clone(), of_values.detach().clone()
        return self.kept


def shaw(layer: Shaw, x: Tensor, positions: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    return layer(x, positions, padding)


class XL(nn.Module):
    """Transformer-XL's layer; its cache is the memory of vectors that came before."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_net, self.r_net = nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)
        self.o_net = nn.Linear(32, 32, bias=False)
        self.r_w_bias, self.r_r_bias = (nn.Parameter(torch.randn(HEADS, WIDTH)) for _ in range(2))

    def distances(self, new: int, total: int) -> Tensor:
        """From far to near."""
        return torch.arange(total - 1, -1, -1.0)

    def sinusoids(self, distance: Tensor) -> Tensor:
        phase = torch.outer(distance, 1 / 10_000 ** (torch.arange(0.0, 32, 2) / 32))
        return torch.cat((phase.sin(), phase.cos()), -1)

    def rel_shift(self, x: Tensor) -> Tensor:
        rows, heads, queries, keys = x.shape
        padded = torch.cat((x.new_zeros(rows, heads, queries, 1), x), -1).view(rows, heads, keys + 1, queries)
        return padded[:, :, 1:].view_as(x)

    def biases(self) -> tuple[Tensor, Tensor]:
        return self.r_w_bias[:, None], self.r_r_bias[:, None]

    def scores(self, content: Tensor, position: Tensor) -> Tensor:
        return (content + position) / WIDTH**0.5

    def forward(self, x: Tensor, mems: Tensor | None) -> tuple[Tensor, Tensor]:
        whole = x if mems is None else torch.cat((mems, x), 1)
        query, key, value = (split(y) for y in self.qkv_net(whole).chunk(3, -1))
        query, new, total = query[:, :, -x.size(1) :], x.size(1), whole.size(1)
        far_to_near = split(self.r_net(self.sinusoids(self.distances(new, total)).to(x.dtype))[None])
        u, v = self.biases()
        scores = self.scores((query + u) @ key.mT, self.rel_shift((query + v) @ far_to_near.mT))
        visible = torch.ones(new, total).bool().tril(total - new)
        return self.o_net(joined(hidden(scores, visible).softmax(-1) @ value)), whole


def remember(layer: XL, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return layer(x, cache)


class Skewing(nn.Module):
    """Music Transformer: a table from the furthest distance to none, whose products are skewed; with a cache."""

    def __init__(self, places: int = 64) -> None:
        super().__init__()
        self.places = places
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.Er = nn.Parameter(torch.randn(places, WIDTH))

    def rows(self, tokens: int) -> Tensor:
        return self.Er[self.places - tokens :]

    def skew(self, x: Tensor) -> Tensor:
        """(…, queries, keys), the last column of which is of no distance."""
        queries, keys = x.shape[-2:]
        padded = F.pad(x, (1, 0)).flatten(-2)[..., queries:]
        return F.pad(padded, (0, queries * keys - padded.size(-1))).unflatten(-1, (queries, keys))

    def scores(self, content: Tensor, position: Tensor) -> Tensor:
        return (content + position) / WIDTH**0.5

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        query, key, value = (split(y) for y in self.qkv(x).chunk(3, -1))
        if cache is not None:
            key, value = torch.cat((cache[0], key), 2), torch.cat((cache[1], value), 2)
        new, total = query.size(2), key.size(2)
        if total > self.places:
            raise ValueError(f"rows must have at most {self.places} tokens, got {total}")
        scores = self.scores(query @ key.mT, self.skew(query @ self.rows(total).mT))
        visible = torch.ones(new, total).bool().tril(total - new)
        return self.out(joined(hidden(scores, visible).softmax(-1) @ value)), (key, value)


def skewed(
    layer: Skewing, x: Tensor, cache: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    return layer(x, cache)


# -- the schemes that they are ----------------------------------------------------------------------------------------


def like_shaw() -> Any:
    import posenc

    return posenc.Shaw(WIDTH, 4)


def match_shaw(made: Shaw, scheme: Any) -> None:
    with torch.no_grad():
        scheme.key_table.copy_(made.relative_k.weight)
        scheme.value_table.copy_(made.relative_v.weight)


def like_xl() -> Any:
    import posenc

    return posenc.TransformerXL(HEADS, WIDTH, 32)


def match_xl(made: XL, scheme: Any) -> None:
    with torch.no_grad():
        scheme.projection.copy_(made.r_net.weight.unflatten(0, (HEADS, WIDTH)))
        scheme.content_bias.copy_(made.r_w_bias)
        scheme.position_bias.copy_(made.r_r_bias)


def like_skewing() -> Any:
    import posenc

    return posenc.Relative1D(64, WIDTH)


def match_skewing(made: Skewing, scheme: Any) -> None:
    with torch.no_grad():
        scheme.weight[: made.places].copy_(made.Er)


# -- bugs -------------------------------------------------------------------------------------------------------------


class ClippedOneShort(Shaw):
    """Four to the left, three to the right: the last row is never read."""

    def index(self, distance: Tensor) -> Tensor:
        return distance.clamp(-self.clip, self.clip - 1) + self.clip


class ClippedToTheLeftAlone(Shaw):
    """clamp(min) forgotten: a distance below the window counts from the table's end."""

    def index(self, distance: Tensor) -> Tensor:
        return distance.clamp(max=self.clip).add(self.clip) % (2 * self.clip + 1)


class TablesExchanged(Shaw):
    def tables(self) -> tuple[Tensor, Tensor]:
        return self.relative_v.weight, self.relative_k.weight


class OneTableForBoth(Shaw):
    def tables(self) -> tuple[Tensor, Tensor]:
        return (self.relative_k.weight,) * 2


class Transposed(Shaw):
    """Query minus key."""

    def distance(self, positions: Tensor) -> Tensor:
        return positions[:, :, None] - positions[:, None, :]


class PositionNotDivided(Shaw):
    def scores(self, content: Tensor, position: Tensor) -> Tensor:
        return content / WIDTH**0.5 + position


class DistanceByIndex(Shaw):
    def distance(self, positions: Tensor) -> Tensor:
        return super().distance(torch.arange(positions.size(1)).expand_as(positions))


class DistanceOfTheFirstRow(Shaw):
    def distance(self, positions: Tensor) -> Tensor:
        return super().distance(positions[:1].expand_as(positions))


class ShiftedByOne(XL):
    """Distances from the number of keys to 1."""

    def distances(self, new: int, total: int) -> Tensor:
        return super().distances(new, total) + 1


class NearToFar(XL):
    """arange in its order: the sinusoid of a key goes by its index."""

    def distances(self, new: int, total: int) -> Tensor:
        return super().distances(new, total).flip(0)


class DistancesOfTheFirstChunk(XL):
    """Those of new tokens alone, and none at all for the memory."""

    def distances(self, new: int, total: int) -> Tensor:
        return F.pad(super().distances(new, new), (total - new, 0), value=float(new))


class BiasesExchanged(XL):
    def biases(self) -> tuple[Tensor, Tensor]:
        u, v = super().biases()
        return v, u


class OneBiasForBoth(XL):
    def biases(self) -> tuple[Tensor, Tensor]:
        return (super().biases()[0],) * 2


class CosinesFirst(XL):
    def sinusoids(self, distance: Tensor) -> Tensor:
        return super().sinusoids(distance).roll(16, -1)


class SinesInterleaved(XL):
    def sinusoids(self, distance: Tensor) -> Tensor:
        return torch.stack(super().sinusoids(distance).chunk(2, -1), -1).flatten(-2)


class ShiftOfASquare(XL):
    """view(queries + 1, keys): right as long as there is no memory."""

    def rel_shift(self, x: Tensor) -> Tensor:
        rows, heads, queries, keys = x.shape
        padded = torch.cat((x.new_zeros(rows, heads, queries, 1), x), -1).flatten(-2)
        return padded[..., keys:][..., : queries * keys].view_as(x)


class NotShifted(XL):
    def rel_shift(self, x: Tensor) -> Tensor:
        return x


class ContentDividedAlone(XL):
    def scores(self, content: Tensor, position: Tensor) -> Tensor:
        return content / WIDTH**0.5 + position


class ClampedDistance(XL):
    """clamp_len of a configuration for long texts, left on."""

    def distances(self, new: int, total: int) -> Tensor:
        return super().distances(new, total).clamp(max=8)


class FirstRowsOfTheTable(Skewing):
    """Er[:tokens]: the row of no distance goes by the length."""

    def rows(self, tokens: int) -> Tensor:
        return self.Er[:tokens]


class TableTurnedAround(Skewing):
    """The first row is of no distance, and rows are read from there."""

    def rows(self, tokens: int) -> Tensor:
        return self.Er[:tokens].flip(0)


class SkewOfASquare(Skewing):
    def skew(self, x: Tensor) -> Tensor:
        queries, keys = x.shape[-2:]
        padded = F.pad(x, (1, 0)).flatten(-2)[..., keys:]
        return F.pad(padded, (0, max(0, queries * keys - padded.size(-1))))[..., : queries * keys].unflatten(
            -1, (queries, keys)
        )


class PaddedAtTheEnd(Skewing):
    """(0, 1): rows go the other way."""

    def skew(self, x: Tensor) -> Tensor:
        queries, keys = x.shape[-2:]
        return F.pad(x, (0, 1)).flatten(-2)[..., : queries * keys].unflatten(-1, (queries, keys))


def of_shaw(build: Any = Shaw) -> Layer:
    return Layer(build=build, call=shaw, relative=True, directed=True, like=like_shaw, match=match_shaw)


def of_xl(build: Any = XL) -> Layer:
    return Layer(build=build, call=remember, causal=True, relative=True, like=like_xl, match=match_xl)


def of_skewing(build: Any = Skewing) -> Layer:
    said = {"causal": True, "relative": True, "max_positions": 64, "like": like_skewing, "match": match_skewing}
    return Layer(build=build, call=skewed, **said)


CORRECT = (of_shaw(), of_shaw(KeptForEvaluation), of_xl(), of_skewing())
MUTANTS = (
    Mutant("Shaw, clipped one short", of_shaw(ClippedOneShort), 21, 18),
    Mutant("Shaw, the lower clip forgotten", of_shaw(ClippedToTheLeftAlone), 21, 14),
    Mutant("Shaw, tables exchanged", of_shaw(TablesExchanged), 21, 18),
    Mutant("Shaw, one table for both", of_shaw(OneTableForBoth), 21, 9),
    Mutant("Shaw, query minus key", of_shaw(Transposed), 21, 18),
    Mutant("Shaw, positions not divided by sqrt(d)", of_shaw(PositionNotDivided), 21, 18),
    Mutant("Shaw, distances by index", of_shaw(DistanceByIndex), 10, 3),
    Mutant("Shaw, distances of the first row", of_shaw(DistanceOfTheFirstRow), 7, 3),
    Mutant("Transformer-XL, distances one too far", of_xl(ShiftedByOne), 21, 11),
    Mutant("Transformer-XL, sinusoids from near to far", of_xl(NearToFar), 8, 11),
    Mutant("Transformer-XL, distances of the chunk", of_xl(DistancesOfTheFirstChunk), 8, 5),
    Mutant("Transformer-XL, u and v exchanged", of_xl(BiasesExchanged), 21, 11),
    Mutant("Transformer-XL, u for both", of_xl(OneBiasForBoth), 21, 9),
    Mutant("Transformer-XL, cosines first", of_xl(CosinesFirst), 21, 8),
    Mutant("Transformer-XL, sines interleaved", of_xl(SinesInterleaved), 21, 8),
    Mutant("Transformer-XL, the shift of a square", of_xl(ShiftOfASquare), 8, 11),
    Mutant("Transformer-XL, not shifted", of_xl(NotShifted), 8, 11),
    Mutant("Transformer-XL, positions not divided by sqrt(d)", of_xl(ContentDividedAlone), 21, 11),
    Mutant("Transformer-XL, distances clamped", of_xl(ClampedDistance), 21, 11),
    Mutant("skewing, the first rows of the table", of_skewing(FirstRowsOfTheTable), 8, 11),
    Mutant("skewing, the table turned around", of_skewing(TableTurnedAround), 21, 11),
    Mutant("skewing, rectangles as squares", of_skewing(SkewOfASquare), 8, 11),
    Mutant("skewing, padded at the end", of_skewing(PaddedAtTheEnd), 8, 11),
)
