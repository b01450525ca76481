"""The contract, tried on schemes that could bend it: two doors, products, whole rows, two axes, logit scales."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import DistanceAware, Positions, Relative2D, RoPE, Scheme, Shaw, TransformerXL, YaRN
from tests import awkward
from tests.oracles import attention, cope, distance_aware, relative_2d, shaw, transformer_xl, yarn
from tests.rounding import of_sums

HEADS, KV_HEADS, HEAD_DIM, TOKENS = 6, 3, 4, 7
SCORE = 32.0  # above |q| |k| / sqrt(4) and what a scheme adds
Arguments = dict[str, Any]  # what the scheme adds to the oracle's attend


def of_shaw(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions, causal: bool) -> Arguments:
    where = (x.coords.tolist(), y.coords.tolist())
    return {"score": shaw.score(q, s.key_table, *where), "value_term": shaw.value_term(s.value_table, *where)}


def of_transformer_xl(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions, causal: bool) -> Arguments:
    terms = transformer_xl.terms(
        q, k, s.projection, s.content_bias, s.position_bias, x.coords.tolist(), y.coords.tolist()
    )
    return {"score": transformer_xl.score(terms)}


def of_distance_aware(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions, causal: bool) -> Arguments:
    return {"score": distance_aware.score(s.w, s.v, x.coords.tolist(), y.coords.tolist())}


def of_cope(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions, causal: bool) -> Arguments:
    row = cope.row(q, s.embedding, x.order.tolist(), y.order.tolist(), position_scale=1.0, causal=causal)
    return {"row": row}


def of_relative_2d(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions, causal: bool) -> Arguments:
    return {"score": relative_2d.score(q, s.row_table, s.column_table, x.coords.tolist(), y.coords.tolist())}


def of_yarn(s: Any, q: Tensor, k: Tensor, x: Positions, y: Positions, causal: bool) -> Arguments:
    return {}


def wide(scheme: Scheme) -> Scheme:
    """Parameters of order 1, in double precision."""
    for parameter in scheme.double().parameters():
        torch.nn.init.normal_(parameter)
    return scheme


LINES = {
    "offset": Positions.arange(TOKENS, start=5),
    "packed": Positions.packed([[3, 4], [2, 3]]),
    "padded": Positions.padded(torch.tensor([[True] * TOKENS, [False, False, True, True, False, True, True]])),
    "permuted": Positions.arange(TOKENS)[torch.tensor([4, 1, 0, 6, 2, 3, 5])],
}
GRID = {"grid": Positions.grid(3, 5), "part of a grid": Positions.grid(3, 5)[4:]}
SCHEMES: dict[str, tuple[Callable[[], Scheme], Callable[..., Arguments], dict[str, Positions]]] = {
    "Shaw": (lambda: wide(Shaw(HEAD_DIM, 2)), of_shaw, LINES),
    "Transformer-XL": (lambda: wide(TransformerXL(HEADS, HEAD_DIM, 10)), of_transformer_xl, LINES),
    "DA": (lambda: wide(DistanceAware(HEADS)), of_distance_aware, LINES),
    "CoPE": (lambda: awkward.TrialCoPE(4, HEAD_DIM), of_cope, LINES),
    "relative 2D": (lambda: wide(Relative2D((3, 5), HEAD_DIM, HEADS)), of_relative_2d, GRID),
    "YaRN": (lambda: RoPE(HEAD_DIM, scaling=YaRN(8.0, 64)), of_yarn, LINES),
}
RUNS = [
    pytest.param(*made[:2], positions, causal, id=f"{name}-{where}-{'causal' if causal else 'both'}")
    for name, made in SCHEMES.items()
    for where, positions in made[2].items()
    for causal in (True, False)
]


@pytest.mark.parametrize(("make", "arguments", "positions", "causal"), RUNS)
def test_awkward_schemes_fit(
    make: Callable[[], Scheme], arguments: Callable[..., Arguments], positions: Positions, causal: bool
) -> None:
    """Output and gradients through the reference backend, the last 3 queries of all keys, are the oracle's."""
    scheme, n = make(), len(positions)
    query, key, value = (
        torch.randn(2, heads, tokens, HEAD_DIM, dtype=torch.float64)
        for heads, tokens in ((HEADS, 3), (KV_HEADS, n), (KV_HEADS, n))
    )
    wide = positions.expand(2)
    asking = wide[n - 3 :]
    leaves = [query.requires_grad_(), key.requires_grad_(), value.requires_grad_(), *scheme.parameters()]

    def truth() -> Tensor:
        q, k = query, key
        if isinstance(scheme, RoPE):
            turn = partial(yarn.rotate_all, factor=8.0, original_length=64)
            q, k = turn(q, asking.coords.tolist()), turn(k, wide.coords.tolist())
        visible = attention.visible_from(
            asking.order.tolist(), wide.order.tolist(), asking.document.tolist(), wide.document.tolist(), causal
        )
        extra = arguments(scheme, q, k, asking, wide, causal)
        return attention.attend(q, k, value, visible=visible, **extra)[0]

    out = posenc.attention(
        query, key, value, scheme, query_positions=asking, key_positions=wide, is_causal=causal, backend="reference"
    )
    assert isinstance(out, Tensor)
    torch.testing.assert_close(out, truth(), rtol=0, atol=of_sums(torch.float64, TOKENS + HEAD_DIM, value, score=SCORE))

    weight = torch.randn_like(out)
    directions = [torch.randn_like(leaf) for leaf in leaves]
    gradients = torch.autograd.grad((out * weight).sum(), leaves)
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    step, ends = 1e-6, []
    with torch.no_grad():
        for move in (step, -2 * step):
            for leaf, direction in zip(leaves, directions, strict=True):
                leaf += move * direction
            ends.append((truth() * weight).sum())
    # Rounding of the loss over the step; truncation is step^2 = 1e-12 times third derivatives.
    bound = of_sums(torch.float64, out.numel(), value, score=SCORE) / step
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["Shaw", "Transformer-XL", "DA", "CoPE", "YaRN"])
def test_a_block_of_queries_is_those_rows_of_the_whole(name: str) -> None:
    """What lets a backend work in blocks: binding a slice of the queries gives the slice of the result."""
    scheme = SCHEMES[name][0]()
    query, key, value = (torch.randn(2, HEADS, TOKENS, HEAD_DIM, dtype=torch.float64) for _ in range(3))
    whole = posenc.attention(query, key, value, scheme, is_causal=True)
    positions = Positions.arange(TOKENS)
    part = posenc.attention(
        query[:, :, 2:5], key, value, scheme, query_positions=positions[2:5], key_positions=positions, is_causal=True
    )
    torch.testing.assert_close(part, whole[:, :, 2:5])


def test_terms_open_from_left_to_right() -> None:
    """DA multiplies what came before it: with ALiBi first its bias is rescaled too, with ALiBi last it is not."""
    da, alibi = wide(DistanceAware(HEADS)), posenc.ALiBi(HEADS)
    query, key = (torch.randn(1, HEADS, TOKENS, HEAD_DIM, dtype=torch.float64) for _ in range(2))
    positions = Positions.arange(TOKENS)
    plain = posenc.logits(query, key, None)
    bias = posenc.logits(query, key, alibi) - plain
    rescale = posenc.logits(query.new_ones(query.shape), key.new_ones(key.shape), da) / HEAD_DIM**0.5
    torch.testing.assert_close(posenc.logits(query, key, da + alibi), plain.relu() * rescale + bias)
    torch.testing.assert_close(posenc.logits(query, key, (alibi + da)(positions)), (plain + bias).relu() * rescale)
