"""What the mathematics in JavaScript is compared on: a scheme, and the calls that it is tried in."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any

import torch
from torch import Tensor

from posenc import Positions, Scheme
from posenc.rotation.scalings import DynamicNTK, Llama3, LongRoPE, NTKAware, PositionInterpolation, Proportional, YaRN
from posenc.schemes.cameras import around

SCALINGS = {
    PositionInterpolation: "linear",
    NTKAware: "ntk",
    DynamicNTK: "dynamic",
    YaRN: "yarn",
    Llama3: "llama3",
    LongRoPE: "longrope",
    Proportional: "proportional",
}


@dataclass(frozen=True)
class Case:
    """A scheme of the catalog, built in one way.

    ``said`` are the options that it does not keep under their names. ``heads`` and ``kv_heads`` are those of queries
    and keys; ``positions`` those that it is tried on beside, or (``only``) in place of, the usual ones.
    """

    build: Callable[[], Scheme]
    said: dict[str, Any] = field(default_factory=dict)
    heads: int = 4
    kv_heads: int | None = None
    head_dim: int = 8
    axes: int = 1
    fractional: bool = True
    positions: dict[str, Positions] = field(default_factory=dict)
    only: bool = False
    windows: tuple[Any, ...] = (None,)

    def scheme(self) -> Scheme:
        """It, in double precision, its parameters from N(0, 1): so that none hides behind its small beginning."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            scheme = self.build().double()
            for parameter in scheme.parameters():
                torch.nn.init.normal_(parameter)
        return scheme

    def situations(self) -> Iterator[tuple[str, Positions, Positions]]:
        """What they are called, and the positions of queries and keys."""
        usual = {} if self.only else _usual(self.axes, self.fractional)
        for name, positions in (usual | self.positions).items():
            yield name, positions, positions
            yield f"the last queries of {name}", positions[-3:], positions


def _usual(axes: int, fractional: bool) -> dict[str, Positions]:
    """Few tokens, of even and odd numbers, and of coordinates that a table of 32 holds."""
    odd = torch.tensor([[7, 3, 3, 0, 12, 9, 1]])
    if axes == 1:
        usual = {
            "a line": Positions.arange(10),
            "an offset": Positions.arange(7, start=9),
            "documents": Positions.packed([3, 4, 2]),
            "padding": Positions.padded(torch.tensor([[False, True, True, True, False, True]])),
            "a shuffle": Positions(odd),
        }
        real = {"fractions": Positions(odd.double() / 3 + 0.1)}
    elif axes == 2:
        usual = {"a grid": Positions.grid(3, 4), "after a class token": Positions.grid(2, 3, prefix=1)}
        real = {"another resolution": Positions.grid(3, 3, extent=(4, 2))}
    else:
        usual = {"a video": Positions.grid(2, 2, frames=3), "text and image": Positions.multimodal([2, (1, 2, 2), 3])}
        real = {"half a video": Positions(Positions.grid(2, 2, frames=2).coords / 2)}
    return usual | (real if fractional else {})


def options_of(case: Case, scheme: Scheme) -> dict[str, Any]:
    """The arguments that it was made with, by their names, as JavaScript takes them."""
    options = {}
    for name, parameter in inspect.signature(type(scheme)).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(scheme, name) if hasattr(scheme, name) else case.said[name]
        if is_dataclass(value) and not isinstance(value, type):
            value = {"kind": SCALINGS[type(value)], **asdict(value)}
        if isinstance(value, Tensor):  # the page has the cameras of the catalog itself
            value = None if torch.equal(value[0], around(value.size(1))) else value.tolist()
        options[name] = value
    return options


def facts_of(positions: Positions) -> dict[str, Any]:
    """One row of positions, as JavaScript takes them."""
    facts = {name: getattr(positions, name) for name in ("coords", "order", "document", "segment")}
    return {name: None if x is None else x[0].tolist() for name, x in facts.items()}


def contents(case: Case, queries: int, keys: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(heads: int, tokens: int) -> Tensor:
        return torch.randn(1, heads, tokens, case.head_dim, dtype=torch.float64, generator=generator)

    kv_heads = case.heads if case.kv_heads is None else case.kv_heads
    return drawn(case.heads, queries), drawn(kv_heads, keys), drawn(kv_heads, keys)
