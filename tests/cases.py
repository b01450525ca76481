"""What the tests run on: schemes at unlucky sizes with their oracles, and awkward positions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc import (
    T5,
    AbsoluteInAttention,
    ALiBi,
    DistanceAware,
    ExponentialDecay,
    FourierFeatures,
    Learned,
    NoPE,
    Positions,
    Relative1D,
    Relative2D,
    RoPE,
    Scheme,
    Segment,
    Shaw,
    Sinusoidal,
    TransformerXL,
)
from tests.oracles import (
    absolute_in_attention,
    alibi,
    attention,
    distance_aware,
    exponential_decay,
    fourier_features,
    learned,
    relative_1d,
    relative_2d,
    rope,
    segment,
    shaw,
    sinusoidal,
    t5,
    transformer_xl,
)

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


def grid_cases() -> dict[str, Positions]:
    """Nine tokens each, at a row and a column of a 3 x 5 grid or less."""
    grid = Positions.grid(3, 5)
    document = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1, 1], [0, 0, 0, 0, 0, 0, 0, 0, 0]])
    cases = {
        "square": Positions.grid(3, 3),
        "part of a grid": grid[3:12],
        "permuted patches": grid[torch.tensor([14, 2, 7, 0, 9, 11, 4, 5, 13])],
        "two images, padded": Positions(grid[:9].coords, document=document),
    }
    return cases


def space_cases() -> dict[str, Positions]:
    """Nine tokens each, with three coordinates."""
    return {"space": Positions(torch.randint(-3, 9, (2, TOKENS, 3), generator=torch.Generator().manual_seed(0)))}


Pairs = Callable[[Any, Tensor, Tensor, Positions, Positions], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A scheme and what its oracle does to the input, to queries and keys, and to the scores."""

    scheme: Callable[[], Scheme]
    add: Callable[[Tensor, Positions, Scheme], Tensor] = lambda x, p, scheme: x
    rotate: Callable[[Tensor, Positions], Tensor] = lambda x, p: x
    score: Callable[[Positions, Positions], attention.Score] | None = None
    pairs: Pairs = lambda scheme, q, k, x, y: {}
    integers_only: bool = False
    from_zero: bool = False
    axes: int = 1
    refused_by: tuple[str, ...] = ()

    def positions(self) -> dict[str, Positions]:
        """The positions it can be tried on."""
        by_axes = {1: positions_cases, 2: grid_cases, 3: space_cases}
        return {
            name: positions
            for name, positions in by_axes[self.axes]().items()
            if not (self.integers_only and positions.coords.is_floating_point())
            and not (self.from_zero and positions.coords.min() < 0)
        }


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
    return lambda x, p: rope.rotate_all(x, p.expand(2).coords.tolist(), base, layout, rotary_dim)


def _grid_table(base: float, layout: str) -> Callable[[Tensor, Positions, Scheme], Tensor]:
    def add(x: Tensor, p: Positions, scheme: Scheme) -> Tensor:
        rows = p.expand(2).coords.tolist()
        return x + torch.tensor([sinusoidal.grid_table(row, DIM, base, layout) for row in rows], dtype=torch.float64)

    return add


def _fourier(x: Tensor, p: Positions, scheme: Any) -> Tensor:
    coords = p.expand(2).coords if p.coords.dim() == 3 else p.expand(2).coords[..., None]
    directions = scheme._directions(torch.device("cpu")).detach()
    if scheme.mix is None:
        rows = [fourier_features.table(row, directions) for row in coords.tolist()]
    else:
        weights = (scheme.mix[0].weight, scheme.mix[0].bias, scheme.mix[2].weight, scheme.mix[2].bias)
        weights = tuple(weight.detach().tolist() for weight in weights)
        rows = [fourier_features.learned_table(row, directions, *weights) for row in coords.tolist()]
    return x + torch.tensor(rows, dtype=torch.float64)


def _decay(x: Tensor, p: Positions, scheme: Scheme) -> Tensor:
    return x + torch.tensor([exponential_decay.table(row, DIM, 313.0) for row in _rows(p)], dtype=torch.float64)


def _shaw(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions) -> dict[str, Any]:
    where = (x.coords.tolist(), y.coords.tolist())
    keys = {} if s.key_table is None else {"score": shaw.score(q, s.key_table, *where)}
    return keys if s.value_table is None else {**keys, "value_term": shaw.value_term(s.value_table, *where)}


def _t5(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions) -> dict[str, Any]:
    where = (x.coords.tolist(), y.coords.tolist())
    return {"score": t5.score(s.weight, *where, s.max_distance, bidirectional=s.bidirectional)}


def _transformer_xl(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions) -> dict[str, Any]:
    weights = (s.projection, s.content_bias, s.position_bias)
    terms = transformer_xl.terms(q, k, *weights, x.coords.tolist(), y.coords.tolist(), base=s.base)
    return {"score": transformer_xl.score(terms)}


def _distance_aware(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions) -> dict[str, Any]:
    return {"score": distance_aware.score(s.w, s.v, x.coords.tolist(), y.coords.tolist())}


def _absolute_in_attention(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions) -> dict[str, Any]:
    return {"score": absolute_in_attention.score(q, s.weight, y.coords.tolist())}


def _relative_1d(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions) -> dict[str, Any]:
    return {"score": relative_1d.score(q, s.weight.expand(HEADS, -1, -1), x.coords.tolist(), y.coords.tolist())}


def _relative_2d(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions) -> dict[str, Any]:
    rows, columns = (table.expand(HEADS, -1, -1) for table in (s.row_table, s.column_table))
    return {"score": relative_2d.score(q, rows, columns, x.coords.tolist(), y.coords.tolist())}


def _drawn_wide(scheme: Scheme) -> Scheme:
    """Parameters of order 1, so that none hides behind its small beginning."""
    for parameter in scheme.double().parameters():
        torch.nn.init.normal_(parameter)
    return scheme


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
    "rope 2d": Case(lambda: RoPE(HEAD_DIM, 77.0, rotary_dim=4, axes=2), rotate=_rope(77.0, "half", 4), axes=2),
    "rope 3d interleaved": Case(
        lambda: RoPE(HEAD_DIM, 5.0, "interleaved", axes=3), rotate=_rope(5.0, "interleaved", HEAD_DIM), axes=3
    ),
    "alibi": Case(lambda: ALiBi(HEADS), score=_alibi(causal=True)),
    "alibi bidirectional": Case(lambda: ALiBi(HEADS, "bidirectional"), score=_alibi(causal=False)),
    "alibi directed": Case(
        lambda: ALiBi(HEADS, "directed"), score=lambda q, k: alibi.directed_score(HEADS, _rows(q), _rows(k))
    ),
    "sinusoidal 2d": Case(lambda: Sinusoidal(DIM, base=313.0, axes=2), add=_grid_table(313.0, "interleaved"), axes=2),
    "sinusoidal 3d concatenated": Case(
        lambda: Sinusoidal(DIM, 77.0, "concatenated", axes=3), add=_grid_table(77.0, "concatenated"), axes=3
    ),
    "fourier": Case(lambda: FourierFeatures(DIM, sigma=0.3, seed=5), add=_fourier),
    "fourier 2d learned": Case(lambda: FourierFeatures(DIM, axes=2, learned=True).double(), add=_fourier, axes=2),
    "exponential decay": Case(lambda: ExponentialDecay(DIM, longest=313.0), add=_decay, from_zero=True),
    "shaw": Case(lambda: _drawn_wide(Shaw(HEAD_DIM, 2)), pairs=_shaw, integers_only=True, refused_by=("sdpa",)),
    "shaw keys": Case(lambda: _drawn_wide(Shaw(HEAD_DIM, 3, values=False)), pairs=_shaw, integers_only=True),
    "shaw values": Case(
        lambda: _drawn_wide(Shaw(HEAD_DIM, 3, keys=False)), pairs=_shaw, integers_only=True, refused_by=("sdpa",)
    ),
    "shaw per head": Case(
        lambda: _drawn_wide(Shaw(HEAD_DIM, 2, num_heads=HEADS)), pairs=_shaw, integers_only=True, refused_by=("sdpa",)
    ),
    "t5": Case(lambda: _drawn_wide(T5(HEADS)), pairs=_t5, integers_only=True),
    "t5 odd": Case(lambda: _drawn_wide(T5(HEADS, 7, 13)), pairs=_t5, integers_only=True),
    "t5 bidirectional": Case(  # a bucket begins at 4 exactly
        lambda: _drawn_wide(T5(HEADS, 8, 8, bidirectional=True)), pairs=_t5, integers_only=True
    ),
    "t5 bidirectional odd": Case(
        lambda: _drawn_wide(T5(HEADS, 10, 20, bidirectional=True)), pairs=_t5, integers_only=True
    ),
    "transformer_xl": Case(
        lambda: _drawn_wide(TransformerXL(HEADS, HEAD_DIM, dim=10, base=313.0)), pairs=_transformer_xl
    ),
    "distance_aware": Case(lambda: _drawn_wide(DistanceAware(HEADS)), pairs=_distance_aware, refused_by=("sdpa",)),
    "absolute_in_attention": Case(
        lambda: _drawn_wide(AbsoluteInAttention(20, HEAD_DIM)), pairs=_absolute_in_attention, integers_only=True
    ),
    "relative_1d": Case(lambda: _drawn_wide(Relative1D(20, HEAD_DIM)), pairs=_relative_1d, integers_only=True),
    "relative_1d per head": Case(
        lambda: _drawn_wide(Relative1D(20, HEAD_DIM, HEADS)), pairs=_relative_1d, integers_only=True
    ),
    "relative_2d": Case(lambda: _drawn_wide(Relative2D((3, 5), HEAD_DIM)), pairs=_relative_2d, axes=2),
    "relative_2d per head": Case(lambda: _drawn_wide(Relative2D((3, 5), HEAD_DIM, HEADS)), pairs=_relative_2d, axes=2),
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
    q, k = case.rotate(query[:, :, TOKENS - last :], asking), case.rotate(key, wide)
    extra = case.pairs(scheme, q, k, asking, wide)
    if case.score is not None:
        extra["score"] = case.score(asking, wide)
    out, lse, _ = attention.attend(q, k, value, visible=visible, **extra)
    return out, lse
