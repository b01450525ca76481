"""Attention by chunks: each token sees its own chunk of its document alone, in every backend and from a cache."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import ALiBi, Chunk, Positions, ReRoPE, RoPE, Scheme
from posenc.positions.layout import PADDING, document_of_chunk
from tests.rounding import of_sums

TOKENS, SIZE = 23, 5
SCORE = 16.0  # above |q| |k| / sqrt(8) and what a scheme adds within a chunk
SCHEMES: dict[str, Callable[[], Scheme]] = {
    "rope": lambda: RoPE(8),
    "alibi": lambda: ALiBi(4),
    "bands": lambda: ReRoPE(8, 3),
    "rows": lambda: posenc.CoPE(8, 4),
}


def drawn(seed: int, heads: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, heads, TOKENS, 8, generator=generator, dtype=torch.float64)


def of_mask() -> Positions:
    mask = torch.ones(2, TOKENS, dtype=torch.bool)
    mask[1, :4] = mask[0, 9:11] = False
    return Positions.padded(mask)


WHERE = {
    "a text": Positions.arange(TOKENS),
    "before zero": Positions.arange(TOKENS, start=-8),
    "packed": Positions.packed([[11, 12], [3, 20]]),
    "padded": of_mask(),
    "permuted": Positions.arange(TOKENS)[torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))],
    "fractional": Positions(torch.linspace(-3.2, 40.7, TOKENS, dtype=torch.float64)[None]),
}


def own(positions: Positions) -> Tensor:
    """Of each pair, whether both are of one chunk."""
    number = torch.div(positions.coords, SIZE, rounding_mode="floor")
    return (number[:, :, None] == number[:, None, :])[:, None]


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("where", WHERE)
def test_a_token_sees_its_own_chunk_in_every_backend(where: str, name: str) -> None:
    positions, scheme = WHERE[where], SCHEMES[name]().double()
    q, k, v = drawn(1), drawn(2, 2), drawn(3, 2)
    encoding = scheme(positions, dtype=torch.float64)
    ran = set()
    for causal in (True, False) if name != "alibi" else (True,):
        mask = own(positions)
        expected = posenc.attention(q, k, v, encoding, attn_mask=mask, is_causal=causal, backend="reference")
        for backend in ("auto", "reference", "chunked", "sdpa", "native"):
            found: Any = {"encoding": encoding, "window": Chunk(SIZE), "is_causal": causal}
            if backend in posenc.explain(q, k, v, **found).refusals:
                continue
            out = posenc.attention(q, k, v, **found, backend=backend)
            ran.add(backend)
            torch.testing.assert_close(out, expected, rtol=0, atol=of_sums(torch.float64, TOKENS + 8, v, score=SCORE))
    assert ran >= {"auto", "reference", "chunked"}


@pytest.mark.parametrize("where", WHERE)
def test_the_layout_of_chunks_is_that_of_their_values(where: str) -> None:
    """So tiles have those pairs and no others."""
    cut = WHERE[where].in_chunks(SIZE)
    assert cut.layout.rows is not None
    assert cut.layout == Positions(cut.coords, order=cut.order, document=cut.document).layout


def test_no_two_chunks_are_one_document() -> None:
    document, number = torch.arange(40), torch.arange(-40, 40)
    once = document_of_chunk(document[:, None], number[None])
    twice = document_of_chunk(once[..., None], number[None, None])
    for made in (once, twice):
        assert made.unique().numel() == made.numel()
        assert not bool((made == PADDING).any())
    assert document_of_chunk(document_of_chunk(7, -3), 5) == int(twice[7, 37, 45])
    assert document_of_chunk(torch.tensor([PADDING]), torch.tensor([4])).tolist() == [PADDING]
