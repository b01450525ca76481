"""What other libraries define by masks, written anew in a few lines of PyTorch, and the positions that say the same:
the reference of FlashAttention's tests (`attention_ref`), and the classes of `xformers.ops.fmha.attn_bias`."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import posenc
from posenc import ALiBi, Positions, Softcap
from posenc.positions.positions import PADDING
from tests.backends.parity_cases import FAST
from tests.property.strategies import law
from tests.rounding import of_sums

HEADS, WIDTH = 2, 8
SIZES = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 70)
"""Around the sizes of vectors and blocks."""


def drawn(query: Tensor, key: Tensor) -> list[Tensor]:
    """Query, key and value for these documents, with NaN wherever there is padding."""
    rows = max(query.size(0), key.size(0))
    tensors = [torch.randn(rows, HEADS, x.size(1), WIDTH, dtype=torch.float64) for x in (query, key, key)]
    of_tokens = (query == PADDING, key == PADDING, key == PADDING)
    return [x.masked_fill(unseen[:, None, :, None], torch.nan) for x, unseen in zip(tensors, of_tokens, strict=True)]


def by_mask(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, bias: Tensor, cap: float) -> Tensor:
    """Scores, capped and biased, a softmax over what is seen, (batch, queries, keys), and zeros where nothing is."""
    scores = query @ key.mT / math.sqrt(WIDTH)
    scores = (cap * torch.tanh(scores / cap) if cap else scores) + bias
    seen = seen[:, None]
    blind = ~seen.any(-1, keepdim=True)
    scores = scores.masked_fill(~seen, -torch.inf).masked_fill(blind, 0.0)
    return scores.softmax(-1).masked_fill(blind, 0.0) @ value


def check(
    query: Positions, key: Positions, seen: Tensor, bias: Tensor, cap: float, scheme: posenc.Scheme | None, how: Any
) -> None:
    """Every backend that takes the call, with gradients, against the mask."""
    given = drawn(query.document, key.document)
    mine = [x.clone().requires_grad_() for x in given]
    theirs = [x.nan_to_num().requires_grad_() for x in given]
    expected = by_mask(*theirs, seen, bias, cap)
    d_out = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad(expected, theirs, d_out)
    call: Any = (*mine, scheme)
    at = {"query_positions": query, "key_positions": key, **how}
    refused = posenc.explain(*call, **at).refusals
    for backend in ("auto", "reference", *(name for name in FAST if name not in refused)):
        out = posenc.attention(*call, **at, backend=backend)
        found = (out, *torch.autograd.grad(out, mine, d_out))
        # no score exceeds 32; a gradient is a sum over both widths, and over all queries or keys
        terms = seen.size(1) + seen.size(2) + 2 * WIDTH
        for name, x, y in zip(("out", "query", "key", "value"), found, (expected, *expected_gradients), strict=True):
            bound = of_sums(torch.float64, terms, y, score=32)
            torch.testing.assert_close(x, y, rtol=0, atol=bound, msg=lambda m, on=f"{backend}, {name}": f"{on}: {m}")


# --- FlashAttention --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flash:
    """Arguments of `attention_ref`. Lengths of two rows, None without a mask of padding."""

    queries: int
    keys: int
    query_lengths: tuple[int, int] | None = None
    key_lengths: tuple[int, int] | None = None
    keys_left: bool = False  # padding before the keys, `key_leftpad`
    causal: bool = False
    window: tuple[int, int] = (-1, -1)  # -1 is no limit
    softcap: float = 0.0
    alibi: bool = False


def check_flash(it: Flash) -> None:
    i, j = torch.arange(it.queries)[None, :, None], torch.arange(it.keys)[None, None]
    sq, sk = (
        torch.tensor([[[n]]] * 2 if lengths is None else lengths).view(2, 1, 1)
        for n, lengths in ((it.queries, it.query_lengths), (it.keys, it.key_lengths))
    )
    before = it.keys - sk if it.keys_left else torch.zeros_like(sk)
    # Theirs: the last query is at the last key, counted from the first that is not padding.
    behind = i + sk - sq - (j - before)
    left, right = it.window if not it.causal else (it.window[0], 0)
    seen = (i < sq) & (j >= before) & (j < before + sk)
    seen = seen & ((behind <= left) | (left < 0)) & ((-behind <= right) | (right < 0))
    slopes = torch.tensor(ALiBi(HEADS).slopes, dtype=torch.float64).view(-1, 1, 1)
    bias = -slopes * behind[:, None].abs() if it.alibi else torch.zeros(1, dtype=torch.float64)
    # Ours.
    count, document = (j - before)[:, 0], torch.where((j >= before) & (j < before + sk), 0, PADDING)[:, 0]
    key = Positions(count, document=document, order=count)
    ends = (i + sk - sq)[..., 0]
    query = Positions(ends, document=torch.where(i < sq, 0, PADDING)[..., 0], order=ends)
    parts: list[posenc.Scheme] = [Softcap(it.softcap)] if it.softcap else []
    parts += [ALiBi(HEADS, "bidirectional")] if it.alibi else []
    window = tuple(None if n < 0 else n for n in it.window)
    how = {"is_causal": it.causal, "window": window}
    check(query, key, seen, bias, it.softcap, sum(parts) or None, how)


@pytest.mark.parametrize(
    "it",
    [
        Flash(70, 3, causal=True),  # 67 queries see nothing
        Flash(33, 65, None, (33, 9), True, True, (7, 2), 3.0, alibi=True),
    ],
    ids=str,
)
def test_flash_attention(it: Flash) -> None:
    check_flash(it)


@st.composite
def flashes(draw: st.DrawFn) -> Flash:
    queries, keys = draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES))
    ends = [draw(st.none() | st.tuples(*[st.integers(0, n)] * 2)) for n in (queries, keys)]
    side = st.sampled_from((-1, 0, 1, 3, 16, 100))
    how = draw(st.booleans()), draw(st.booleans()), draw(st.tuples(side, side)), draw(st.sampled_from((0.0, 3.0)))
    return Flash(queries, keys, *ends, *how, draw(st.booleans()))


@pytest.mark.more
@law(200)
@given(flashes())
def test_flash_attention_of_any_lengths(it: Flash) -> None:
    check_flash(it)
