"""What the tests run on: schemes at unlucky sizes with their oracles, and awkward positions."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posenc import ALiBi, Learned, NoPE, Positions, RoPE, Scheme, Segment, Sinusoidal
from tests.oracles import alibi, attention, learned, rope, segment, sinusoidal

HEADS, KV_HEADS, HEAD_DIM = 12, 4, 6
DIM = HEADS * HEAD_DIM
TOKENS = 9


def positions_cases() -> dict[str, Positions]:
    """Two rows (or one) of nine tokens each."""
    mask = torch.ones(2, TOKENS, dtype=torch.bool)
    left, right, inside = mask.clone(), mask.clone(), mask.clone()
    left[1, :4] = False
    right[0, 5:] = False
    inside[0, [0, 3, 4]] = False
    inside[1, [2, 8]] = False
    shuffle = torch.tensor([4, 1, 8, 0, 6, 2, 7, 3, 5])
    cases = {
        "plain": Positions.arange(TOKENS),
        "offset": Positions.arange(TOKENS, start=11),
        "packed": Positions.packed([[4, 5], [2, 3, 3]]),
        "left padded": Positions.padded(left),
        "right padded": Positions.padded(right),
        "padded inside": Positions.padded(inside),
        "one row is padding": Positions.padded(mask & torch.tensor([[True], [False]])),
        "permuted": Positions.arange(TOKENS)[shuffle],
        "repeated": Positions(torch.tensor([[3, 3, 3, 0, 1, 1, 17, 2, 5]])),
        "fractional": Positions(torch.linspace(-2.5, 9.25, TOKENS, dtype=torch.float64)[None]),
    }
    kind = torch.arange(TOKENS)[None] % 2
    return {name: positions.with_segment(kind.expand(positions.rows, -1)) for name, positions in cases.items()}


@dataclass(frozen=True)
class Case:
    """A scheme and what its oracle does to the input, to queries and keys, and to the scores."""

    scheme: Callable[[], Scheme]
    add: Callable[[Tensor, Positions, Scheme], Tensor] = lambda x, p, scheme: x
    rotate: Callable[[Tensor, Positions], Tensor] = lambda x, p: x
    score: Callable[[Positions, Positions], attention.Score] | None = None
    integers_only: bool = False
    inexact: frozenset[str] = field(default_factory=frozenset)


def _rows(positions: Positions, batch: int = 2) -> list[list[float]]:
    rows: list[list[float]] = positions.expand(batch).coords.tolist()
    return rows


def _sinusoidal(layout: str, base: float) -> Callable[[Tensor, Positions, Scheme], Tensor]:
    def add(x: Tensor, p: Positions, scheme: Scheme) -> Tensor:
        return x + torch.tensor([sinusoidal.table(row, DIM, base, layout) for row in _rows(p)], dtype=torch.float64)

    return add


def _learned(x: Tensor, p: Positions, scheme: Scheme) -> Tensor:
    return learned.add(x, p.expand(2).coords.tolist(), scheme.weight)


def _segment(x: Tensor, p: Positions, scheme: Scheme) -> Tensor:
    assert p.segment is not None
    return segment.add(x, p.segment.expand(2, -1).tolist(), scheme.weight)


def _alibi(causal: bool) -> Callable[[Positions, Positions], attention.Score]:
    return lambda q, k: alibi.score(alibi.slopes(HEADS), _rows(q), _rows(k), causal=causal)


def _rope(base: float, layout: str, rotary_dim: int) -> Callable[[Tensor, Positions], Tensor]:
    return lambda x, p: rope.rotate_all(x, _rows(p), base, layout, rotary_dim)


CASES: dict[str, Case] = {
    "nope": Case(NoPE),
    "sinusoidal": Case(lambda: Sinusoidal(DIM, base=313.0), add=_sinusoidal("interleaved", 313.0)),
    "sinusoidal concatenated": Case(
        lambda: Sinusoidal(DIM, base=77.0, layout="concatenated"), add=_sinusoidal("concatenated", 77.0)
    ),
    "learned": Case(lambda: Learned(20, DIM).double(), add=_learned, integers_only=True),
    "segment": Case(lambda: Segment(2, DIM).double(), add=_segment),
    "rope": Case(lambda: RoPE(HEAD_DIM, base=313.0), rotate=_rope(313.0, "half", HEAD_DIM)),
    "rope interleaved": Case(
        lambda: RoPE(HEAD_DIM, base=500_000.0, layout="interleaved"),
        rotate=_rope(500_000.0, "interleaved", HEAD_DIM),
    ),
    "rope partial": Case(lambda: RoPE(HEAD_DIM, base=77.0, rotary_dim=4), rotate=_rope(77.0, "half", 4)),
    "alibi": Case(lambda: ALiBi(HEADS), score=_alibi(causal=True)),
    "alibi bidirectional": Case(lambda: ALiBi(HEADS, bidirectional=True), score=_alibi(causal=False)),
    "rope + alibi": Case(
        lambda: RoPE(HEAD_DIM, base=313.0) + ALiBi(HEADS),
        rotate=_rope(313.0, "half", HEAD_DIM),
        score=_alibi(causal=True),
    ),
    "sinusoidal + rope": Case(
        lambda: Sinusoidal(DIM) + RoPE(HEAD_DIM),
        add=_sinusoidal("interleaved", 10_000.0),
        rotate=_rope(10_000.0, "half", HEAD_DIM),
    ),
}


def split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query of 12 heads, key and value of 4, cut from x (batch, tokens, DIM): projections without weights to carry."""
    heads = x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    return heads, heads[:, 2 : 2 + KV_HEADS], heads[:, -KV_HEADS:]


def oracle(
    case: Case, scheme: Scheme, x: Tensor, positions: Positions, last: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """The output for the last queries, and their log-sum-exp, by scalar loops."""
    query, key, value = split(case.add(x, positions, scheme))
    wide = positions.expand(2)
    asking = wide[TOKENS - last :]
    visible = attention.visible_from(
        asking.order.tolist(), wide.order.tolist(), asking.document.tolist(), wide.document.tolist(), causal
    )
    out, lse, _ = attention.attend(
        case.rotate(query[:, :, TOKENS - last :], asking),
        case.rotate(key, wide),
        value,
        score=None if case.score is None else case.score(asking, wide),
        visible=visible,
    )
    return out, lse
