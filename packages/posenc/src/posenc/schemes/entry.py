"""`Entry`, the catalog's description of a scheme: its source, the laws that it claims, and how to build it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import torch

from posenc.arguments import check_flag, shown, whole
from posenc.scheme import Scheme


class Law(StrEnum):
    """A property that a scheme may claim. Scores are those of fixed queries and keys, with all doors open. A law
    is also a str: ``Law.RELATIVE == "relative"``."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Law:
        law = str.__new__(cls, name)
        law._value_, law.meaning = name, meaning
        return law

    __str__ = str.__str__

    # Positions and codes.
    RELATIVE = "relative", "scores do not change when all positions are shifted by the same amount"
    ABSOLUTE = "absolute", "scores change when all positions are shifted by the same amount"
    UNIQUE = (
        "unique",
        "in float32 no two of 1024 positions have the same vector or, in pair doors, no two distances the same scores",
    )
    LINEAR = "linear", "one matrix M_k maps the vector of every position t to that of t + k"
    ORTHOGONAL = "orthogonal", "that matrix is a rotation, which preserves lengths and angles"
    BOUNDED = "bounded", "what it adds to a vector or to a score is bounded at all distances"
    # Distance and direction.
    DIRECTED = "directed", "for two equal tokens i and j, the score of i for j differs from that of j for i"
    MONOTONE = (
        "monotone",
        "on each side of a token the score only increases or only decreases with distance; for schemes that only add "
        "vectors, the inner product of two vectors does",
    )
    DECAYING = "decaying", "the score of earlier keys decreases with distance, for any content"
    DECAYING_BOUND = "decaying_bound", "an upper bound of the score decreases with distance, though the score may not"
    # Which positions can be encoded.
    LENGTH_FREE = "length_free", "any integer position from 0 on has an encoding, so there is no maximum length"
    FRACTIONAL = "fractional", "any real position has an encoding"
    EXTENSIBLE = "extensible", "it can be built for two and for three coordinates per token"
    SEPARABLE = "separable", "with two coordinates, a score is the sum of a number for the row and one for the column"
    # The scheme itself.
    DETERMINISTIC = "deterministic", "it follows from its configuration, without random numbers"
    PARAMETER_FREE = "parameter_free", "nothing is learned"
    ORDER_FREE = "order_free", "it does not distinguish positions"


FORMULA = frozenset({Law.LENGTH_FREE, Law.FRACTIONAL, Law.DETERMINISTIC, Law.PARAMETER_FREE})
"""The laws of a scheme that is a fixed formula of any real position."""

ROTARY = frozenset({Law.RELATIVE, Law.UNIQUE, Law.LINEAR, Law.ORTHOGONAL, Law.BOUNDED, Law.DIRECTED})
"""The laws of a rotation of channel pairs by angles that are linear in the position."""

ROTATED_PAIRS = (
    r"R_p: \; (a, b)_k \mapsto \allowbreak (a \, \cos \phi_k - b \, \sin \phi_k, \allowbreak "
    r"a \, \sin \phi_k + b \, \cos \phi_k)"
)
"""In LaTeX: R_p rotates pair k by the angle phi_k, which an entry's formula defines."""

ROTATED_SCORE = r"s_{ij} = (R_{p_i} q_i) \cdot (R_{p_j} k_j) / \sqrt{d}, \qquad " + ROTATED_PAIRS
"""In LaTeX: the score of a rotated query and a rotated key."""


def lines(*formulas: str) -> str:
    """Several LaTeX formulas, one a line."""
    return r"\begin{array}{l} " + r" \\ ".join(formulas) + r" \end{array}"


@dataclass(frozen=True)
class Shape:
    """The sizes of the model that a scheme is built for. Raises ValueError unless they are ints above 0."""

    dim: int
    num_heads: int
    head_dim: int
    max_positions: int
    causal: bool = True
    grid: tuple[int, ...] | None = None  # the size of each of two or three axes; None: one coordinate per token
    num_kv_heads: int | None = None  # None: num_heads

    def __post_init__(self) -> None:
        for name in ("dim", "num_heads", "head_dim", "max_positions"):
            whole(name, getattr(self, name))
        check_flag("causal", self.causal)
        if self.num_heads % self.key_heads:
            raise ValueError(f"num_kv_heads must divide num_heads = {self.num_heads}, got {self.num_kv_heads}")
        if self.grid is None:
            return
        if not isinstance(self.grid, Sequence) or len(self.grid) not in (2, 3):
            raise ValueError(f"grid must be (rows, columns), (frames, rows, columns) or None, got {shown(self.grid)}")
        for axis, size in enumerate(self.grid):
            whole(f"grid[{axis}]", size)

    @property
    def axes(self) -> int:
        """Coordinates per token."""
        return 1 if self.grid is None else len(self.grid)

    @property
    def key_heads(self) -> int:
        """The number of key heads."""
        return self.num_heads if self.num_kv_heads is None else whole("num_kv_heads", self.num_kv_heads)


GIVEN = "import torch, posenc\n\nq = k = v = torch.randn(2, 12, 64, 64)\nx = torch.randn(2, 64, 768)"
"""The beginning of every entry's example: query, key, value and input of a model with 12 heads of 64 channels."""


@dataclass(frozen=True)
class Entry:
    """One scheme of the catalog.

    ``laws`` are claims about the scheme that ``build`` returns; ``posenc laws`` measures them, tests check them.
    ``learned``, ``does`` and ``limits`` are texts for the documentation's tables. ``formula`` is in LaTeX: i is a query
    and j a key, p a position, d is head_dim, h one of H heads, s a score, o an output, x the input. It holds for
    all options, but for RoPE's ``values``, which are rotated as in `RotatedValues`; an option has its name as symbol
    (``\\mathrm{base}``), or that of ``symbols``, and a line may end at ``\\allowbreak``. ``example`` is Python code
    that runs after `GIVEN`.
    """

    name: str  # that of its file, but for variants
    scheme: type[Scheme]
    paper: str
    laws: frozenset[Law]
    cost: str
    build: Callable[[Shape], Scheme]
    variant: tuple[str, str] = ("", "")  # title and signature, of a scheme whose class has an entry of its own
    needs_segments: bool = False
    axes: Literal["one", "two", "three", "any"] = "one"  # coordinates per token that it accepts
    learned: str = "nothing"
    does: str = ""
    limits: str = ""
    formula: str = ""
    symbols: Mapping[str, str] = field(default_factory=dict, hash=False)
    example: str = ""
    users: str = ""  # models and codebases that use it
    url: str = ""  # of the paper or other source
    avoid: str = ""  # for its page, in Markdown: a case that it is not for, and does not follow from its laws
    rate: float = 1.0  # multiplies the model's learning rate for the scheme's parameters, unless it is tuned
    why_rate: str = ""  # the reason for the rate, and its source

    def __post_init__(self) -> None:
        for law in self.laws:
            if law not in tuple(Law):
                raise ValueError(f"laws must be some of {', '.join(Law)}, got {shown(law)}")

    @property
    def least_axes(self) -> int:
        """The fewest coordinates per token that it accepts."""
        return {"one": 1, "two": 2, "three": 3, "any": 1}[self.axes]

    @property
    def title(self) -> str:
        """The class name, as papers spell it, or that of a variant."""
        return self.variant[0] or self.scheme.__name__

    @property
    def signature(self) -> str:
        """The signature without types and defaults: ``ALiBi(num_heads, form)``."""
        parameters = inspect.signature(self.scheme).parameters.values()
        names = ", ".join(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        return self.variant[1] or f"{self.title}({names})"

    @property
    def doors(self) -> tuple[str, ...]:
        """The doors that a small example of it opens."""
        return self._example(causal=True).doors

    @property
    def for_decoders(self) -> bool:
        """Whether it is for causal attention only, with no variant for encoders."""
        return self._example(causal=False).for_decoders

    def _example(self, causal: bool) -> Scheme:
        """A small example. PyTorch's global random state is restored."""
        with torch.random.fork_rng(devices=()):
            return self.build(Shape(dim=8, num_heads=2, head_dim=4, max_positions=8, causal=causal))
