"""Vectors of distances as people write them: Shaw's tables, Transformer-XL's shift, Music Transformer's skewing."""

from typing import Any

import torch
from torch import Tensor, nn

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


# -- bugs -------------------------------------------------------------------------------------------------------------


class ClippedToTheLeftAlone(Shaw):
    """clamp(min) forgotten: a distance below the window counts from the table's end."""

    def index(self, distance: Tensor) -> Tensor:
        return distance.clamp(max=self.clip).add(self.clip) % (2 * self.clip + 1)


class TablesExchanged(Shaw):
    def tables(self) -> tuple[Tensor, Tensor]:
        return self.relative_v.weight, self.relative_k.weight


class OneBiasForBoth(XL):
    def biases(self) -> tuple[Tensor, Tensor]:
        return (super().biases()[0],) * 2


class ContentDividedAlone(XL):
    def scores(self, content: Tensor, position: Tensor) -> Tensor:
        return content / WIDTH**0.5 + position


def of_shaw(build: Any = Shaw) -> Layer:
    return Layer(build=build, call=shaw, relative=True, directed=True, like=like_shaw, match=match_shaw)


def of_xl(build: Any = XL) -> Layer:
    return Layer(build=build, call=remember, causal=True, relative=True, like=like_xl, match=match_xl)


CORRECT = (of_shaw(), of_xl())
MUTANTS = (
    Mutant("Shaw, the lower clip forgotten", of_shaw(ClippedToTheLeftAlone), 21, 14),
    Mutant("Shaw, tables exchanged", of_shaw(TablesExchanged), 21, 18),
    Mutant("Transformer-XL, u for both", of_xl(OneBiasForBoth), 21, 9),
    Mutant("Transformer-XL, positions not divided by sqrt(d)", of_xl(ContentDividedAlone), 21, 11),
)
