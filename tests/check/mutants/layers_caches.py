"""Decoders with windows, sinks, static caches and shared heads, in the style of those that people run."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Layer
from tests.check.mutants import Mutant

HEADS, SHARED, HEAD_DIM = 4, 2, 8


def turned(x: Tensor, places: Tensor) -> Tensor:
    """Halves of (rows, heads, tokens, 8) turned at places (rows, tokens)."""
    phase = places[:, None, :, None].double() * 100.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    phase = torch.cat((phase, phase), -1)
    across = torch.cat((-x[..., 4:], x[..., :4]), -1)
    return x * phase.cos().to(x.dtype) + across * phase.sin().to(x.dtype)


def decode(layer: Any, x: Tensor, positions: Tensor | None = None, cache: Any = None) -> Any:
    return layer(x, positions, cache)


class Latent(nn.Module):
    """MLA: keys of each head from a latent vector, beside one turned slice that all heads share; the cache keeps both.
    A token by itself asks the latent vectors themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.down = nn.Linear(32, HEADS * 16, bias=False), nn.Linear(32, 12 + 8, bias=False)
        self.up = nn.Parameter(torch.randn(2, HEADS, 12, 8) / 3)
        nn.init.normal_(self.query.weight, std=0.3)

    def kept(self, slice_: Tensor, places: Tensor) -> Tensor:
        return turned(slice_[:, None], places)

    def met(self, slice_: Tensor, places: Tensor) -> Tensor:
        return slice_

    def absorbed_scale(self) -> float:
        return 16**-0.5

    def forward(self, x: Tensor, told: Tensor | None, cache: Any) -> tuple[Tensor, Any]:
        before = 0 if cache is None else cache[0].size(1)
        places = torch.arange(before, before + x.size(1)).expand(x.shape[:2]) if told is None else told
        plain, turning = self.query(x).unflatten(-1, (HEADS, 16)).transpose(1, 2).chunk(2, -1)
        latent, slice_ = self.down(x).split((12, 8), -1)
        new = (latent, self.kept(slice_, places)[:, 0], places)
        latent, slice_, places_so_far = cache = (
            new if cache is None else tuple(torch.cat(both, 1) for both in zip(cache, new, strict=True))
        )
        turning = turned(turning, places) @ self.met(slice_[:, None], places_so_far).mT
        to_key, to_value = self.up
        if x.size(1) == 1:
            scores = (plain @ to_key.mT @ latent[:, None].mT + turning) * self.absorbed_scale()
            out = scores.softmax(-1) @ latent[:, None] @ to_value
        else:
            scores = (plain @ (latent[:, None] @ to_key).mT + turning) * 16**-0.5
            seen = torch.ones(x.size(1), latent.size(1)).tril(before).bool()
            out = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ (latent[:, None] @ to_value)
        return out.transpose(1, 2).flatten(2), cache


class SliceTurnedAgain(Latent):
    """The slice is turned when it is kept, and all that is kept at each step."""

    def met(self, slice_: Tensor, places: Tensor) -> Tensor:
        return turned(slice_, places) if places.size(1) > 1 else slice_


def decoder(build: Any, **claims: Any) -> Layer:
    claims = {"relative": True, "window": 5, "normalized": True, **claims}
    return Layer(build=build, call=decode, causal=True, **claims)


def latent(build: Any) -> Layer:
    return decoder(build, window=None, normalized=False)


CORRECT = (latent(Latent),)
MUTANTS = (Mutant("MLA's slice turned again", latent(SliceTurnedAgain), caught_by=6, pain=5),)
