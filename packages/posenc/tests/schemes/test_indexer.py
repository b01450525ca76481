"""The indexer of sparse attention against loops, what it does not see, and what attention makes of its mask."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import Indexer, NoPE, Positions, RoPE
from tests.oracles import indexer as oracle

HEADS, WIDTH = 5, 14


def drawn(queries: int, keys: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    q, k, w = (torch.randn(2, *n, generator=draw, dtype=torch.float64) for n in (
        (HEADS, queries, WIDTH), (1, keys, WIDTH), (HEADS, queries)
    ))  # fmt: skip
    return q, k, w


def places(positions: Positions) -> list[Any]:
    wide = positions.expand(2)
    parts = (wide.coords.tolist(), wide.order.tolist(), wide.document.tolist())
    return [list(zip(*rows, strict=True)) for rows in zip(*parts, strict=True)]


PADDED = Positions.padded(torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [1] * 11], dtype=torch.bool))
PACKED = Positions.packed([4, 6, 1])
SCATTERED = Positions(torch.tensor([[0.5, 3.0, 7.25, 8.0, 40.0, 41.0, 300.0, 301.5, 302.0, 303.0, 2000.0]]))
LAYOUTS: dict[str, tuple[RoPE, tuple[str, int, int, float]]] = {
    "half, leading": (RoPE(WIDTH, 3e3, rotary_dim=6), ("half", 6, 0, 3e3)),
    "interleaved, leading": (RoPE(WIDTH, layout="interleaved", rotary_dim=10), ("interleaved", 10, 0, 1e4)),
    "half, trailing": (RoPE(WIDTH, rotary_dim=6, first_channel=8), ("half", 6, 8, 1e4)),
    "interleaved, trailing": (RoPE(WIDTH, 500.0, "interleaved", 10, first_channel=4), ("interleaved", 10, 4, 500.0)),
}
ROWS = [
    *((layout, PADDED, True, 4, 1) for layout in LAYOUTS),
    ("half, leading", PACKED, True, 3, 1),
    ("half, leading", PACKED, False, 3, 1),
    ("half, trailing", SCATTERED, True, 1, 1),
    ("half, trailing", Positions.arange(11, start=900), True, 11, 1),
    ("interleaved, leading", Positions.arange(11), True, 50, 1),
    ("half, leading", PADDED, True, 6, 3),
    ("interleaved, trailing", PACKED, True, 2, 2),
    ("half, leading", SCATTERED, True, 4, 4),
    ("half, leading", PADDED, False, 3, 3),
]


@pytest.mark.parametrize(("layout", "positions", "is_causal", "top_k", "block"), ROWS)
@pytest.mark.parametrize("queries", [11, 4])
def test_it_chooses_what_the_loops_choose(
    layout: str, positions: Positions, is_causal: bool, top_k: int, block: int, queries: int
) -> None:
    query, key, weights = drawn(queries, 11)
    rope, turn = LAYOUTS[layout]
    asking = positions[11 - queries :]
    made = Indexer(HEADS, rope, top_k, block=block)(
        query, key, weights, query_positions=asking, key_positions=positions, is_causal=is_causal
    )
    assert made.shape == (2, 1, queries, 11)
    for b, (at, there) in enumerate(zip(places(asking), places(positions), strict=True)):
        lists = query[b].tolist(), key[b, 0].tolist(), weights[b].tolist()
        right = oracle.attended(*lists, at, there, oracle.rotation(*turn), top_k, block, is_causal)
        assert made[b, 0].tolist() == right


def test_scores_are_those_of_the_loops() -> None:
    query, key, weights = drawn(9, 9)
    rope, turn = LAYOUTS["interleaved, trailing"]
    made = Indexer(HEADS, rope, 3).scores(query, key, weights)
    turned = oracle.rotation(*turn)
    for i in range(9):
        for j in range(9):
            mine = [turned(head[i], i) for head in query[1].tolist()]
            right = oracle.score(mine, turned(key[1, 0, j].tolist(), j), weights[1, :, i].tolist())
            assert made[1, i, j].item() == pytest.approx(right, rel=1e-12, abs=1e-12)
    own = Indexer(HEADS, rope, 3, scale=0.5).scores(query, key)
    plain = Indexer(HEADS, rope, 3).scores(query, key, torch.ones_like(weights))
    torch.testing.assert_close(own, plain * 0.5 * math.sqrt(HEADS * WIDTH))


def test_of_equal_scores_the_earlier_keys_are_chosen() -> None:
    query, key = torch.ones(1, 2, 5, 4), torch.ones(1, 1, 5, 4)
    key[:, :, 3] = 2
    made = Indexer(2, NoPE(), 3)(query, key, is_causal=True)[0, 0].int().tolist()
    assert made == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 0]]
    blocks = Indexer(2, NoPE(), 2, block=2)(query, -key, is_causal=True)[0, 0].int().tolist()  # all scores 0
    assert blocks == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 0, 0, 1]]
    low = Indexer(2, NoPE(), 5)(1e19 * query, 1e19 * key, -torch.ones(1, 2, 5), is_causal=True)  # below all floats
    assert torch.equal(low[0, 0], torch.ones(5, 5).tril().bool())


@pytest.mark.parametrize("block", [1, 3])
def test_what_is_not_seen_has_no_effect_though_nan(block: int) -> None:
    query, key, weights = drawn(11, 11)
    indexer = Indexer(HEADS, LAYOUTS["half, leading"][0], 3, block=block)
    norm = None if block == 1 else torch.nn.LayerNorm(WIDTH, dtype=torch.float64)
    options = {"query_positions": PADDED, "is_causal": True, "norm": norm}
    clean = indexer(query, key, weights, **options)
    query[0, :, :3] = weights[0, :, :3] = key[0, :, :3] = math.nan  # padding
    key.requires_grad_()
    assert torch.equal(indexer(query, key, weights, **options), clean)
    assert not clean[0, 0, :3].any()
    scores = indexer.scores(query, key, weights, **options)
    (grad,) = torch.autograd.grad(scores[scores > -math.inf].sum(), key)
    assert grad.isfinite().all()
    assert grad[0, 0, 3:9].abs().min() > 0  # of two blocks of three; what is after them is attended to unasked
    later = key.detach().clone()
    later[:, :, 8:] = math.nan
    early = [x[:, :, :8] for x in (query, weights)]
    made = indexer(early[0], later, early[1], **options | {"query_positions": PADDED[:8], "key_positions": PADDED})
    assert torch.equal(made, clean[:, :, :8])


@pytest.mark.parametrize(("side", "wrong"), [("query", math.nan), ("key", math.inf), ("weights", math.nan)])
@pytest.mark.parametrize("block", [1, 3])
def test_a_token_that_is_not_finite_spoils_only_what_sees_it(side: str, wrong: float, block: int) -> None:
    given = dict(zip(("query", "key", "weights"), drawn(11, 11), strict=True))
    norm = None if block == 1 else torch.nn.LayerNorm(WIDTH, dtype=torch.float64)
    indexer = Indexer(HEADS, LAYOUTS["half, leading"][0], 3, block=block)
    seen = indexer.scores(**given, is_causal=True, norm=norm) > -math.inf
    given[side][:, :, 7] = wrong
    for x in given.values():
        x.requires_grad_()
    scores = indexer.scores(**given, is_causal=True, norm=norm)
    first = 7 // block * block  # of the block of key 7, at which its score is
    with_it = torch.zeros(11, 11).bool()
    with_it[(slice(None), first) if side == "key" else 7] = True
    assert torch.equal(scores.isnan(), seen & with_it)
    grads = torch.autograd.grad(scores[seen & ~with_it].sum(), list(given.values()))
    others = [n for n in range(11) if not first <= n < first + block]
    assert all(grad[:, :, others].isfinite().all() for grad in grads)


def test_half_precision_is_computed_in_float32() -> None:
    query, key, weights = (x.bfloat16() for x in drawn(11, 11))
    indexer = Indexer(HEADS, RoPE(WIDTH, rotary_dim=6), 4)
    scores = indexer.scores(query, key, weights)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, indexer.scores(query.float(), key.float(), weights.float()), rtol=0, atol=0)
    given = drawn(11, 11)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = indexer.scores(*(x.float() for x in given))
    torch.testing.assert_close(scores, indexer.scores(*(x.float() for x in given)), rtol=0, atol=0)


def test_it_is_one_graph() -> None:
    query, key, weights = (x.float() for x in drawn(11, 11))
    indexer = Indexer(HEADS, RoPE(WIDTH, rotary_dim=6), 4)

    def run(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
        return indexer(q, k, w, is_causal=True)

    torch.compiler.reset()
    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert torch.equal(compiled(query, key, weights), run(query, key, weights))


def test_what_it_prints_makes_it() -> None:
    made = Indexer(HEADS, RoPE(WIDTH, rotary_dim=6), 4, block=2, scale=0.25)
    again = eval(repr(made), {"Indexer": Indexer, "RoPE": RoPE})  # its own text
    assert repr(again) == repr(made) == (
        "Indexer(5, RoPE(14, base=10000.0, layout='half', rotary_dim=6, axes=1), top_k=4, block=2, scale=0.25)"
    )  # fmt: skip
