"""The models the tests run: every scheme, in every way a model can hold it, small and in double precision."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from posenc import Positions, RoPE, Scheme, catalog
from posenc.models import Decoder, Encoder
from posenc.positions.positions import PADDING
from posenc.schemes.catalog import Shape, scheme_from_names
from tests import user_schemes
from tests.cases import DIM, HEAD_DIM, HEADS, KV_HEADS

LAYERS, VOCAB, TOKENS, LONGEST = 2, 30, 11, 24

# Derived, not fitted: every number of a model here is of order 1 and comes out of some 20 sums in a row, none of more
# than 4 * DIM = 288 terms, at 2^-53 a term: 6.4e-13.
OFF = 20 * 4 * DIM * 2.0**-53
CLOSE = {"rtol": OFF, "atol": OFF}
# A gradient sums that over every token, head and layer; a small one is what is left of numbers of order 10.
GRADIENT_CLOSE = {"rtol": OFF * TOKENS * HEADS * LAYERS, "atol": 10 * OFF}

Arguments = dict[str, Any]
T = TypeVar("T")
U = TypeVar("U")
Model = Decoder | Encoder

NAMES = (
    *(entry.name for entry in catalog() if entry.least_axes == 1),
    "rope+alibi",
    "sinusoidal+rope",
    "learned+segment",
)
AWKWARD: dict[str, Callable[[], Scheme]] = {
    "CoPE": lambda: user_schemes.TrialCoPE(5, HEAD_DIM),
    "partial rope": lambda: RoPE(HEAD_DIM, base=77.0, layout="interleaved", rotary_dim=4),
}
SCHEMES = (*NAMES, *AWKWARD)
# Where positions enter, and whose parameters they are. A scheme without the add door is the same at the input and in
# every layer, so it takes the first and the last.
WAYS: dict[str, Arguments] = {
    "input": {},
    "every layer": {"inject": "every_layer"},
    "per layer": {"inject": "every_layer", "per_layer": True},
}


def scheme(name: str, causal: bool = True) -> Scheme:
    """A scheme for these models, with room for LONGEST positions where it has a table."""
    shape = Shape(
        dim=DIM, num_heads=HEADS, head_dim=HEAD_DIM, max_positions=LONGEST, causal=causal, num_kv_heads=KV_HEADS
    )
    return AWKWARD[name]() if name in AWKWARD else scheme_from_names(name, shape)


TABLED = tuple(name for name in SCHEMES if "add" in scheme(name).doors)
LEARNED = tuple(name for name in SCHEMES if any(True for _ in scheme(name).parameters()))
SCHEMES_AND_WAYS = [(name, way) for name in SCHEMES for way in WAYS if name in TABLED or way != "every layer"]


def model(kind: type[Model], position: Scheme | str, **how: Any) -> Any:
    """A model in double precision, without a part that hides: positions are learned layer by layer and large enough to
    matter (at the published 0.02 a wrong row of a table would hardly show), and no norm is like another."""
    position = scheme(position, causal=kind is Decoder) if isinstance(position, str) else position
    made = kind(VOCAB, DIM, LAYERS, HEADS, KV_HEADS, position=position, **how).double()
    for parameter in nn.ModuleList(made.trunk.schemes).parameters():
        nn.init.normal_(parameter)
    for norm in (part for part in made.modules() if isinstance(part, nn.LayerNorm)):
        nn.init.normal_(norm.weight, mean=1.0, std=0.2)
        nn.init.normal_(norm.bias, std=0.2)
    return made


def tokens(rows: int = 2, count: int = TOKENS) -> Tensor:
    """Random ids."""
    return torch.randint(VOCAB, (rows, count))


def segmented(positions: Positions) -> Positions:
    """With a segment per token: changes within every document, and not in step with any chunk."""
    return positions.with_segment((torch.arange(len(positions)) // 2 % 2)[None].expand(positions.rows, -1))


def _places() -> dict[str, Positions]:
    left, right, inside = (torch.ones(2, TOKENS, dtype=torch.bool) for _ in range(3))
    left[1, :4] = False
    right[0, 6:] = False
    inside[0, [0, 3, 4]] = False
    inside[1, [2, 5, 10]] = False
    return {
        "plain": Positions.arange(TOKENS),
        "left padded": Positions.padded(left),
        "right padded": Positions.padded(right),
        "padded inside": Positions.padded(inside),
        "packed": Positions.packed([[4, 7], [5, 3, 3]]),
        "packed and padded": Positions.packed([[2, 4], [3, 1, 7]]),
    }


PLACES: dict[str, Positions] = {name: segmented(positions) for name, positions in _places().items()}

ONE_WAY = frozenset(name for name in SCHEMES if scheme(name, causal=False)(PLACES["plain"]).looks_back)
"""The schemes that no encoder takes."""


def kind_for(name: str, kind: type[Model]) -> type[Model]:
    """The kind, or a decoder where an encoder does not take the scheme."""
    return Decoder if name in ONE_WAY else kind


# A row of one token, whose order is that of padding.
_SINGLE = torch.zeros(2, TOKENS, dtype=torch.bool).index_fill(1, torch.tensor(TOKENS - 1), True)
PROMPTS = {**PLACES, "a single token": segmented(Positions.padded(_SINGLE | torch.tensor([[True], [False]])))}


def real(positions: Positions, rows: int = 2) -> Tensor:
    """Where there is a token, (rows, tokens)."""
    return positions.expand(rows).document != PADDING


def in_turn(names: Iterable[T], places: Sequence[U], first: int = 0, every: int | None = None) -> list[tuple[T, U]]:
    """Every name at one place of all, or at one of ``every`` so many, and the next name at the next: so the places
    share the names evenly. Another ``first`` gives other pairs."""
    n = every or len(places)
    return [(name, place) for a, name in enumerate(names, first) for b, place in enumerate(places) if (a + b) % n == 0]


def one_way_each(runs: Sequence[tuple[str, str]] = SCHEMES_AND_WAYS) -> list[tuple[str, str]]:
    """Every scheme in one of its ways, and the next in the next."""
    ways = {name: [way for other, way in runs if other == name] for name, _ in runs}
    return [(name, of[number % len(of)]) for number, (name, of) in enumerate(ways.items())]


def documents(positions: Positions, rows: int = 2) -> Iterator[tuple[int, Tensor, Positions]]:
    """Every document of every row: its row, its columns, and its positions were it alone, counted afresh."""
    wide = positions.expand(rows)
    for row in range(rows):
        for document in wide.document[row].unique():
            if document != PADDING:
                columns = (wide.document[row] == document).nonzero()[:, 0]
                alone = Positions.arange(len(columns))
                if wide.segment is not None:
                    alone = alone.with_segment(wide.segment[row, columns][None])
                yield row, columns, alone
