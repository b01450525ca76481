"""A kind of score term that is not in the library: what it needs, and what backends do with it."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import Positions, Scheme
from posenc.backends import chunked
from posenc.encoding.encoding import Context
from posenc.encoding.terms import Change, ScoreTerm
from posenc.lowering import forms
from posenc.lowering.distances import Block

HEADS, TOKENS = 2, 37


@dataclass(frozen=True)
class Loudness(ScoreTerm):
    """Adds a number of each key: s_ij + g_j, (1, heads, keys, 1)."""

    of_keys: Tensor

    def mapped(self, change: Change) -> ScoreTerm:
        return replace(self, of_keys=change("key", self.of_keys))


class OfLoudness(forms.Form):
    def added(self, score_term: Any, block: Block) -> Tensor:
        return score_term.of_keys.to(block.dtype).mT


class Loud(Scheme):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, HEADS, TOKENS, 1, dtype=torch.float64))

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[ScoreTerm, ...]:
        return (Loudness(self.weight),)


@pytest.fixture
def has_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(forms.FORMS, Loudness, OfLoudness())


def tensors() -> list[Tensor]:
    return [torch.randn(1, HEADS, TOKENS, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("backend", ["reference", "chunked", "auto"])
@pytest.mark.usefixtures("has_form")
def test_a_new_kind_runs_where_every_kind_does(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held to the same numbers as a mask; small blocks must each have the numbers of their own keys."""
    monkeypatch.setattr(chunked, "ROWS", 5)
    monkeypatch.setattr(chunked, "SCORES", 1)
    scheme, (q, k, v) = Loud(), tensors()
    leaves = [q, k, v, scheme.weight]
    window = {"is_causal": True, "window": 9}
    found = posenc.attention(q, k, v, scheme, **window, backend=backend)
    mask = scheme.weight.mT.expand(1, HEADS, TOKENS, TOKENS)
    expected = posenc.attention(q, k, v, **window, attn_mask=mask, backend="reference")
    torch.testing.assert_close(found, expected)
    gradients = zip(*(torch.autograd.grad(out.square().sum(), leaves) for out in (found, expected)), strict=True)
    for mine, other in gradients:
        torch.testing.assert_close(mine, other)


def test_a_kind_without_a_form_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^a term must be of a kind that has a form, got Loudness: add it to FORMS$"):
        posenc.attention(*tensors(), Loud())
