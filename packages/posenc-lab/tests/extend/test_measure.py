"""What is measured, against the same numbers taken in the plainest way."""

import math
import re
from types import SimpleNamespace

import numpy as np
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


class Letters:
    """A tokenizer of single letters."""

    bos_token_id = None

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % VOCABULARY for letter in text]}


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


def test_a_passkey_is_told_at_its_depth_and_is_the_answer() -> None:
    filler = torch.full((400,), 3)
    for depth, before in ((0, 0), (50, 98), (100, 197)):
        made = measure.passkey(Letters(), filler, 300, depth, NONE, np.random.default_rng(5))
        assert len(made.tokens) == 301
        key = made.tokens[-made.answer :].tolist()
        assert len(key) == 6
        assert (made.tokens[:before] == 3).all()
        assert made.tokens[before] != 3
        text = made.tokens.tolist()
        assert sum(text[n : n + 6] == key for n in range(len(text))) >= 2  # told, and asked


def test_an_answer_is_found_if_every_token_is_the_likeliest() -> None:
    class Knows(torch.nn.Module):
        def __init__(self, wrong: int | None) -> None:
            super().__init__()
            self.weight, self.wrong = torch.nn.Parameter(torch.zeros(1)), wrong

        def forward(self, input_ids: torch.Tensor, use_cache: bool, logits_to_keep: torch.Tensor) -> SimpleNamespace:
            logits = F.one_hot((input_ids + 1) % VOCABULARY, VOCABULARY).float() * 20
            if self.wrong is not None:
                logits[:, self.wrong] = 0.0
            return SimpleNamespace(logits=logits[:, logits_to_keep])

    puzzle = measure.Puzzle(torch.arange(20), 3)
    right = measure.solved(Knows(None), puzzle)
    assert right["found"] == 1
    assert right["bits"] < 0.01
    wrong = measure.solved(Knows(17), puzzle)
    assert wrong["found"] == 0
    assert wrong["bits"] == pytest.approx(math.log2(VOCABULARY), abs=1e-3)
    assert measure.solved(Knows(15), puzzle)["found"] == 1  # not of the answer


def test_too_short_for_a_question_says_so() -> None:
    made = {
        "passkey": lambda n: measure.passkey(Letters(), torch.zeros(99).long(), n, 50, NONE, np.random.default_rng(0)),
        "item": lambda n: measure.item(Letters(), n, 50, NONE, np.random.default_rng(0)),
    }
    for kind, make in made.items():
        with pytest.raises(
            measure.RoomError, match=rf"room for {kind}, \d+ tokens of this tokenizer, got 20: "
        ) as said:
            make(20)
        (least,) = re.findall(r"(\d+) tokens of", str(said.value))
        make(int(least))  # no more than is needed
        with pytest.raises(measure.RoomError, match=f"room for {kind}, {least} tokens"):
            make(int(least) - 1)
