"""The evaluation is held against models whose loss on every byte is known, so what is scored can be told apart."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from posenc.positions.positions import PositionError
from posenc_lab.compare.text import Evaluator, plan, tokens_to_score

LENGTHS = (8, 16, 32, 64)
TRAIN_LENGTH = 16
# Byte i of every window is i, so a byte's value is its place, and what comes next is known.
WINDOWS = np.repeat(np.arange(65, dtype=np.uint8)[None], 3, axis=0)


class Known(nn.Module):
    """Spends ``bits(index, place)`` on the byte that follows: the index in what it sees, and its place in the text."""

    def __init__(self, bits: Callable[[Tensor, Tensor], Tensor], limit: int = 10**6) -> None:
        super().__init__()
        self.bits = bits
        self.limit = limit

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.size(1) > self.limit:
            raise PositionError(f"Known encodes positions 0 to {self.limit - 1}, got {tokens.size(1) - 1}")
        index = torch.arange(tokens.size(1)).expand_as(tokens)
        chance = 2.0 ** -self.bits(index.double(), tokens.double())
        others = ((1 - chance) / 255).log()
        logits = others[..., None].repeat(1, 1, 256)
        return logits.scatter(2, tokens[..., None] + 1, chance.log()[..., None])


def measure(model: nn.Module, kind: str, length: int) -> float:
    result = Evaluator(model, WINDOWS, LENGTHS, TRAIN_LENGTH).measure(kind, length)
    assert len(result["bits"]) == 3
    assert len(set(result["bits"])) == 1
    return float(result["bits"][0])


def seen(index: Tensor, place: Tensor) -> Tensor:
    """A loss by the number of bytes seen before the one that is predicted."""
    return (index + 1) / 16


def place(index: Tensor, place: Tensor) -> Tensor:
    """A loss by the place of the byte that is predicted."""
    return (place + 1) / 16


def mean(first: int, last: int) -> float:
    return (first + last) / 2 / 16


@pytest.mark.parametrize("length", LENGTHS)
def test_windows_score_every_byte_from_one_to_length_before_it(length: int) -> None:
    assert measure(Known(seen), "windows", length) == pytest.approx(mean(1, length), abs=1e-5)
    assert measure(Known(place), "windows", length) == pytest.approx(mean(1, 64), abs=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
def test_sliding_scores_the_last_half_from_half_a_length_or_more(length: int) -> None:
    assert measure(Known(seen), "sliding", length) == pytest.approx(mean(length // 2 + 1, length), abs=1e-5)
    assert measure(Known(place), "sliding", length) == pytest.approx(mean(33, 64), abs=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
def test_final_tokens_are_the_same_while_context_grows(length: int) -> None:
    assert measure(Known(seen), "final_tokens", length) == pytest.approx(mean(length - 3, length), abs=1e-5)
    assert measure(Known(place), "final_tokens", length) == pytest.approx(mean(61, 64), abs=1e-5)


def test_truncated_scores_the_final_tokens_from_exactly_the_training_length() -> None:
    assert measure(Known(seen), "truncated", TRAIN_LENGTH) == pytest.approx(1.0, abs=1e-5)  # 16 bytes before each
    assert measure(Known(place), "truncated", TRAIN_LENGTH) == pytest.approx(mean(61, 64), abs=1e-5)
    assert [pair for pair in plan(LENGTHS, TRAIN_LENGTH) if pair[0] == "truncated"] == [("truncated", TRAIN_LENGTH)]
    assert not [pair for pair in plan((8, 16), TRAIN_LENGTH) if pair[0] == "truncated"]


def test_windows_that_differ_are_told_apart() -> None:
    """A row of the batch of truncated bytes goes to the window that it is of."""
    windows = np.stack([WINDOWS[0] + 10 * n for n in range(3)]).astype(np.uint8)
    found = Evaluator(Known(place), windows, LENGTHS, TRAIN_LENGTH).measure("truncated", TRAIN_LENGTH)["bits"]
    assert found == pytest.approx([mean(61 + 10 * n, 64 + 10 * n) for n in range(3)], abs=1e-5)


def test_lengths_that_do_not_divide_one_another() -> None:
    evaluator = Evaluator(Known(place), WINDOWS[:, :51], (7, 20, 50), 20)
    for length, scored in ((7, 49), (20, 40)):  # what is left over at the beginning is not scored
        result = evaluator.measure("windows", length)
        assert (result["tokens"], result["bits"][0]) == (scored, pytest.approx(mean(51 - scored, 50), abs=1e-5))
    for length in (7, 20, 50):
        result = evaluator.measure("sliding", length)
        assert (result["tokens"], result["bits"][0]) == (25, pytest.approx(mean(26, 50), abs=1e-5))


def test_where_the_scheme_has_no_position_there_is_no_number() -> None:
    evaluator = Evaluator(Known(seen, limit=16), WINDOWS, LENGTHS, TRAIN_LENGTH)
    undefined = {"undefined": "Known encodes positions 0 to 15, got 31"}
    assert evaluator.measure("windows", 16)["tokens"] == 64
    for kind in ("windows", "sliding", "final_tokens"):
        assert evaluator.measure(kind, 32) == undefined
    assert evaluator.measure("truncated", 16)["bits"][0] == pytest.approx(1.0, abs=1e-5)


def test_an_infinite_loss_is_null() -> None:
    wrong = Known(lambda index, place: torch.where(index == 3, math.inf, 1.0))
    assert Evaluator(wrong, WINDOWS, LENGTHS, TRAIN_LENGTH).measure("windows", 8)["bits"] == [None] * 3


def test_nothing_is_computed_twice_and_the_work_is_known_ahead() -> None:
    evaluator = Evaluator(Known(seen), WINDOWS, LENGTHS, TRAIN_LENGTH)
    for kind, length in plan(LENGTHS, TRAIN_LENGTH):
        evaluator.measure(kind, length)
    assert evaluator.tokens == tokens_to_score(LENGTHS, 3, TRAIN_LENGTH)
