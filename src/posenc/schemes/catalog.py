"""Every scheme once: where it comes from, the doors it opens, the laws it claims, and how to build it for a model."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

from posenc.encoding import Scheme
from posenc.schemes.alibi import ALiBi
from posenc.schemes.learned import Learned
from posenc.schemes.nope import NoPE
from posenc.schemes.rope import RoPE
from posenc.schemes.segment import Segment
from posenc.schemes.sinusoidal import Sinusoidal


@dataclass(frozen=True)
class Shape:
    """The sizes of the model that a scheme is built for."""

    dim: int
    num_heads: int
    head_dim: int
    max_positions: int
    causal: bool = True


@dataclass(frozen=True)
class Entry:
    """One scheme of the catalog.

    ``laws`` are claims that the tests hold it to:

    - ``relative``: scores do not change when all positions move by the same amount;
    - ``absolute``: they do change;
    - ``bounded``: the vectors it adds have the same norm at every position;
    - ``length_free``: any integer position has an encoding, so no length is fixed ahead of time;
    - ``fractional``: so has any real one;
    - ``order_free``: it takes no part in telling positions apart;
    - ``parameter_free``: nothing is learned.
    """

    name: str
    scheme: type[Scheme]
    paper: str
    laws: frozenset[str]
    cost: str
    build: Callable[[Shape], Scheme]
    needs_segments: bool = False

    @property
    def title(self) -> str:
        """The name as the field writes it."""
        return self.scheme.__name__

    @property
    def doors(self) -> tuple[str, ...]:
        """The doors it opens, found on a small example of itself."""
        return self.build(Shape(dim=8, num_heads=2, head_dim=4, max_positions=8)).doors


CATALOG = (
    Entry(
        "nope",
        NoPE,
        "Haviv et al. 2022; Kazemnejad et al. 2023",
        frozenset({"relative", "length_free", "fractional", "order_free", "parameter_free"}),
        "nothing",
        lambda shape: NoPE(),
    ),
    Entry(
        "sinusoidal",
        Sinusoidal,
        "Vaswani et al. 2017",
        frozenset({"absolute", "bounded", "length_free", "fractional", "parameter_free"}),
        "one addition to the input",
        lambda shape: Sinusoidal(shape.dim),
    ),
    Entry(
        "learned",
        Learned,
        "Gehring et al. 2017; Devlin et al. 2019",
        frozenset({"absolute"}),
        "one addition to the input; max_positions x dim parameters",
        lambda shape: Learned(shape.max_positions, shape.dim),
    ),
    Entry(
        "segment",
        Segment,
        "Devlin et al. 2019",
        frozenset({"relative", "length_free", "fractional", "order_free"}),
        "one addition to the input; num_segments x dim parameters",
        lambda shape: Segment(2, shape.dim),
        needs_segments=True,
    ),
    Entry(
        "rope",
        RoPE,
        "Su et al. 2021",
        frozenset({"relative", "length_free", "fractional", "parameter_free"}),
        "one pass over queries and keys in every layer",
        lambda shape: RoPE(shape.head_dim),
    ),
    Entry(
        "alibi",
        ALiBi,
        "Press et al. 2022",
        frozenset({"relative", "length_free", "fractional", "parameter_free"}),
        "one bias on every score in every layer",
        lambda shape: ALiBi(shape.num_heads, bidirectional=not shape.causal),
    ),
)


def catalog() -> tuple[Entry, ...]:
    """Every scheme's entry."""
    return CATALOG


def entries_of(names: str) -> tuple[Entry, ...]:
    """The entries of ``"rope"`` or of a composition, ``"rope+alibi"``. ValueError for an unknown name."""
    known = {entry.name: entry for entry in CATALOG}
    for name in names.split("+"):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"scheme must be one of {', '.join(known)}, or several joined by '+', got {name!r}{hint}")
    return tuple(known[name] for name in names.split("+"))


def scheme_from_names(names: str, shape: Shape) -> Scheme:
    """Builds ``"rope"`` or ``"rope+alibi"`` for a model of this shape."""
    return reduce(add, (entry.build(shape) for entry in entries_of(names)))
