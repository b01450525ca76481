"""Every scheme once: where it comes from, the doors it opens, the laws it claims, and how to build it for a model."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

from posenc.arguments import check_flag, check_type, shown, whole
from posenc.scheme import Scheme
from posenc.schemes.absolute_in_attention import AbsoluteInAttention
from posenc.schemes.alibi import ALiBi
from posenc.schemes.distance_aware import DistanceAware
from posenc.schemes.exponential_decay import ExponentialDecay
from posenc.schemes.fourier_features import FourierFeatures
from posenc.schemes.learned import Learned
from posenc.schemes.nope import NoPE
from posenc.schemes.relative_1d import Relative1D
from posenc.schemes.relative_2d import Relative2D
from posenc.schemes.rope import RoPE
from posenc.schemes.segment import Segment
from posenc.schemes.shaw import Shaw
from posenc.schemes.sinusoidal import Sinusoidal
from posenc.schemes.t5 import T5
from posenc.schemes.transformer_xl import TransformerXL


@dataclass(frozen=True)
class Shape:
    """The sizes of the model that a scheme is built for. ValueError for one that is no whole number above 0."""

    dim: int
    num_heads: int
    head_dim: int
    max_positions: int
    causal: bool = True
    grid: tuple[int, int] | None = None  # rows and columns, where tokens have both; None: they stand in one line

    def __post_init__(self) -> None:
        for name in ("dim", "num_heads", "head_dim", "max_positions"):
            whole(name, getattr(self, name))
        check_flag("causal", self.causal)
        if self.grid is None:
            return
        if not isinstance(self.grid, Sequence) or len(self.grid) != 2:
            raise ValueError(f"grid must be (rows, columns) or None, got {shown(self.grid)}")
        for axis, size in enumerate(self.grid):
            whole(f"grid[{axis}]", size)


@dataclass(frozen=True)
class Entry:
    """One scheme of the catalog.

    ``laws`` are claims that the tests hold it to, for the scheme that ``build`` makes; `posenc.laws` measures each. The
    scores meant are those of fixed contents, with every door open.

    Of positions and codes:

    - ``relative``: scores do not change when all positions move by the same amount;
    - ``absolute``: they do change;
    - ``unique``: in float32 no two of 1024 positions share a vector or, in pair doors, no two distances a pattern of
      scores;
    - ``linear``: one matrix M_k carries the vector of every position t to that of t + k;
    - ``orthogonal``: that matrix is a rotation, which keeps lengths and angles;
    - ``bounded``: what it adds to a vector or changes in a score stays within a bound, however far apart tokens are.

    Of distance and direction:

    - ``directed``: of two equal tokens, i's score for j differs from j's for i;
    - ``monotone``: to each side of a token the score never turns, but rises or falls with distance; of schemes that do
      nothing but add vectors, the inner product of two vectors does;
    - ``decaying``: looking back, the score falls with distance, whatever the content;
    - ``decaying_bound``: an upper bound of the score falls with distance, which the score need not do.

    Of what it can encode:

    - ``length_free``: any integer position from 0 on has an encoding, so no length is fixed ahead of time;
    - ``fractional``: so has any real one;
    - ``extensible``: it can be built for two and for three coordinates per token;
    - ``separable``: with two, a score is a number for the row and one for the column, added.

    Of the scheme itself:

    - ``deterministic``: it follows from its configuration, and nothing is drawn;
    - ``parameter_free``: nothing is learned;
    - ``order_free``: it takes no part in telling positions apart.
    """

    name: str
    scheme: type[Scheme]
    paper: str
    laws: frozenset[str]
    cost: str
    build: Callable[[Shape], Scheme]
    needs_segments: bool = False
    axes: Literal["one", "two", "any"] = "one"  # coordinates per token that it can take

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
        frozenset(
            {"relative", "bounded", "length_free", "fractional", "deterministic", "parameter_free", "order_free"}
        ),
        "nothing",
        lambda shape: NoPE(),
    ),
    Entry(
        "sinusoidal",
        Sinusoidal,
        "Vaswani et al. 2017",
        frozenset(
            {
                "absolute",
                "unique",
                "linear",
                "orthogonal",
                "bounded",
                "directed",
                "length_free",
                "fractional",
                "extensible",
                "separable",
                "deterministic",
                "parameter_free",
            }
        ),
        "one addition to the input",
        lambda shape: Sinusoidal(shape.dim, axes=1 if shape.grid is None else 2),
        axes="any",
    ),
    Entry(
        "learned",
        Learned,
        "Gehring et al. 2017; Devlin et al. 2019",
        frozenset({"absolute", "unique", "bounded", "directed"}),
        "one addition to the input; max_positions x dim parameters",
        lambda shape: Learned(shape.max_positions, shape.dim),
    ),
    Entry(
        "segment",
        Segment,
        "Devlin et al. 2019",
        frozenset({"relative", "bounded", "length_free", "fractional", "order_free"}),
        "one addition to the input; num_segments x dim parameters",
        lambda shape: Segment(2, shape.dim),
        needs_segments=True,
    ),
    Entry(
        "rope",
        RoPE,
        "Su et al. 2021",
        frozenset(
            {
                "relative",
                "unique",
                "linear",
                "orthogonal",
                "bounded",
                "directed",
                "decaying_bound",
                "length_free",
                "fractional",
                "separable",
                "deterministic",
                "parameter_free",
            }
        ),
        "one pass over queries and keys in every layer",
        lambda shape: RoPE(shape.head_dim, axes=1 if shape.grid is None else 2),
        axes="any",
    ),
    Entry(
        "alibi",
        ALiBi,
        "Press et al. 2022",
        frozenset(
            {
                "relative",
                "unique",
                "directed",
                "monotone",
                "decaying",
                "length_free",
                "fractional",
                "deterministic",
                "parameter_free",
            }
        ),
        "one bias on every score in every layer",
        lambda shape: ALiBi(shape.num_heads, "causal" if shape.causal else "bidirectional"),
    ),
    Entry(
        "shaw",
        Shaw,
        "Shaw et al. 2018",
        frozenset({"relative", "bounded", "directed", "length_free"}),
        "a (2k + 1)-wide product per query and a sum per bucket in every layer; 2 (2k + 1) x d parameters",
        lambda shape: Shaw(shape.head_dim, max_distance=16),
    ),
    Entry(
        "t5",
        T5,
        "Raffel et al. 2020",
        frozenset({"relative", "bounded", "directed", "length_free"}),
        "one bias on every score in every layer; a parameter per bucket and head",
        lambda shape: T5(shape.num_heads, bidirectional=not shape.causal),
    ),
    Entry(
        "transformer_xl",
        TransformerXL,
        "Dai et al. 2019",
        frozenset({"relative", "unique", "bounded", "directed", "length_free", "fractional"}),
        "a product as wide as the model per score, one of head_dim per key, per layer; dim^2 + 2 dim parameters",
        lambda shape: TransformerXL(shape.num_heads, shape.head_dim, max(2, shape.dim - shape.dim % 2)),
    ),
    Entry(
        "distance_aware",
        DistanceAware,
        "Wu et al. 2021",
        frozenset({"relative", "unique", "bounded", "monotone", "length_free", "fractional"}),
        "one factor on every score in every layer; 2 parameters per head",
        lambda shape: DistanceAware(shape.num_heads),
    ),
    Entry(
        "absolute_in_attention",
        AbsoluteInAttention,
        "Srinivas et al. 2021",
        frozenset({"absolute", "unique", "bounded", "directed"}),
        "one vector added to every key in every layer; max_positions x d parameters",
        lambda shape: AbsoluteInAttention(shape.max_positions, shape.head_dim),
    ),
    Entry(
        "relative_1d",
        Relative1D,
        "Bello et al. 2019",
        frozenset({"relative", "unique", "bounded", "directed"}),
        "a (2N - 1)-wide product per query in every layer; (2N - 1) x d parameters",
        lambda shape: Relative1D(shape.max_positions, shape.head_dim),
    ),
    Entry(
        "relative_2d",
        Relative2D,
        "Ramachandran et al. 2019; Bello et al. 2019",
        frozenset({"relative", "unique", "bounded", "directed", "separable"}),
        "a (2h + 2w - 2)-wide product per query in every layer; as many x d parameters",
        lambda shape: Relative2D(shape.grid or (shape.max_positions, shape.max_positions), shape.head_dim),
        axes="two",
    ),
    Entry(
        "fourier_features",
        FourierFeatures,
        "Tancik et al. 2020; Li et al. 2021",
        frozenset(
            {
                "absolute",
                "unique",
                "linear",
                "orthogonal",
                "bounded",
                "directed",
                "length_free",
                "fractional",
                "extensible",
                "deterministic",
                "parameter_free",
            }
        ),
        "one addition to the input",
        lambda shape: FourierFeatures(shape.dim, axes=1 if shape.grid is None else 2),
        axes="any",
    ),
    Entry(
        "exponential_decay",
        ExponentialDecay,
        "no paper",
        frozenset(
            {
                "absolute",
                "unique",
                "linear",
                "bounded",
                "directed",
                "monotone",
                "length_free",
                "fractional",
                "deterministic",
                "parameter_free",
            }
        ),
        "one addition to the input",
        lambda shape: ExponentialDecay(shape.dim),
    ),
)


def catalog() -> tuple[Entry, ...]:
    """Every scheme's entry."""
    return CATALOG


def entries_of(names: str) -> tuple[Entry, ...]:
    """The entries of ``"rope"`` or of a composition, ``"rope+alibi"``. ValueError for an unknown name, or one that is
    there twice: a scheme is composed with others."""
    check_type("scheme", names, str)
    known = {entry.name: entry for entry in CATALOG}
    parts = names.split("+")
    for name in parts:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"scheme must be one of {', '.join(known)}, or several joined by '+', got {name!r}{hint}")
    if len(set(parts)) < len(parts):
        raise ValueError(f"scheme must name each part once, got {names!r}")
    return tuple(known[name] for name in parts)


def scheme_from_names(names: str, shape: Shape) -> Scheme:
    """Builds ``"rope"`` or ``"rope+alibi"`` for a model of this shape. ValueError as for `entries_of`."""
    check_type("shape", shape, Shape)
    return reduce(add, (entry.build(shape) for entry in entries_of(names)))
