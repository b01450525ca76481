"""What is measured, against the same numbers taken in the plainest way."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from posenc_lab.extend import measure
from tests.rounding import of_sums

VOCABULARY = 50


class Model(torch.nn.Module):
    """Logits that depend on every token before, and only those asked for, as transformers' models give them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY))
        self.seen: list[int] = []

    def everything(self, ids: torch.Tensor) -> torch.Tensor:
        weight = torch.linspace(1, 2, ids.size(1))[:, None]
        return (self.table[ids] * weight).cumsum(1) / 5

    def forward(self, input_ids: torch.Tensor, use_cache: bool, logits_to_keep: torch.Tensor) -> SimpleNamespace:
        self.seen.append(input_ids.size(1))
        return SimpleNamespace(logits=self.everything(input_ids)[:, logits_to_keep])


TOKENS = torch.randint(0, VOCABULARY, (65,), generator=torch.Generator().manual_seed(1))
NONE = torch.tensor([], dtype=torch.int64)


def losses(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    logits = model.everything(tokens[None, :-1])[0]
    return torch.stack([-F.log_softmax(row, -1)[target] for row, target in zip(logits, tokens[1:], strict=True)])


def off(losses: torch.Tensor) -> float:
    """A logit is about as large as the largest loss; one sum is over the vocabulary."""
    return of_sums(torch.float32, VOCABULARY, score=losses.max().item())


def test_final_tokens_are_the_same_ones_at_every_length() -> None:
    model = Model()
    for length in (16, 33, 64):
        found = measure.final(model, TOKENS, length, 8, NONE)
        expected = losses(model, TOKENS[-(length + 1) :])[-8:]
        torch.testing.assert_close(found, expected.double(), rtol=0, atol=off(expected))
    assert model.seen == [16, 33, 64]


def test_by_position_has_the_final_tokens_and_the_mean_of_every_bucket() -> None:
    model = Model()
    final, found = measure.by_position(model, TOKENS, 64, 8, NONE)
    each = losses(model, TOKENS).double().detach()
    torch.testing.assert_close(final, each[-8:], rtol=0, atol=off(each))
    assert found["edges"] == [0, 16, 32, 48, 64]
    # Buckets of 16 places are scored whole.
    expected = [float(each[a : a + 16].mean()) / math.log(2) for a in (0, 16, 32, 48)]
    assert found["bits"] == pytest.approx(expected, abs=off(each) / math.log(2))
    assert len(model.seen) == 1
