"""The puzzles: that their answers are right, that no row is for two parts, and that they are scored as they say."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from posenc_lab.compare.compare import build_model
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.puzzle import ANSWER_OFFSET, PARTS, Puzzle, row_of
from posenc_lab.compare.tasks import TASKS, configured, task_of
from posenc_lab.compare.train import batch

PUZZLES = {name: task for name in TASKS if isinstance(task := task_of(name), Puzzle)}
TINY: dict[str, Any] = {"layers": 1, "dim": 16, "heads": 2, "batch_size": 8, "windows": 16, "steps": 2}


def longer(puzzle: Puzzle) -> list[int]:
    """Lengths to look at: the shortest that is tested, an odd one, and a long one."""
    return [puzzle.least, puzzle.least + 7, puzzle.least + 33]


def tiny(name: str, *schemes: str, **changes: Any) -> CompareConfig:
    length = PUZZLES[name].least
    given = {
        "task": name,
        "train_length": length,
        "test_lengths": (length, length + 3),
        "schemes": schemes or ("nope",),
    }
    return configured({**given, **TINY, **changes})


def said(row: np.ndarray[Any, Any]) -> tuple[str, str]:
    """The text of a row, and the same with a "_" for each character that is to be told; without what fills it up."""
    row = np.trim_zeros(row, "b")
    told = "".join(chr(c % ANSWER_OFFSET) for c in row)
    return told, "".join("_" if c >= ANSWER_OFFSET else chr(c) for c in row)


# -- the answers ------------------------------------------------------------------------------------------------------


def by_hand(asked: Callable[[str], str]) -> Callable[[str], str]:
    """A solver of rows whose answer is their end, from one of what stands before it."""

    def solve(row: str) -> str:
        given = row.rstrip("_")
        answer = asked(given.removesuffix("="))
        assert given + "_" * len(answer) == row
        return given + answer

    return solve


def recalled(row: str) -> str:
    context, asked = row.split("=")
    pairs = re.findall(r"[a-h][A-H]", context)
    assert len(pairs) == 4
    return context + "=" + re.sub(r"(.)_", lambda key: next(pair for pair in pairs if pair[0] == key[1]), asked)


def added(given: str) -> str:
    """As at school, a binary digit at a time from the right."""
    one, other = given.split("+")
    carry, digits = 0, ""
    for a, b in zip(reversed(one), reversed(other), strict=True):
        carry, digit = divmod((a == "1") + (b == "1") + carry, 2)
        digits = str(digit) + digits
    return str(carry) + digits


SOLVERS: dict[str, Callable[[str], str]] = {
    "copy": by_hand(lambda given: given),
    "addition": by_hand(added),
    "recall": recalled,
    "passkey": by_hand(lambda given: re.findall(r"#(\d{5})(?=\D)", given)[0]),
}


@pytest.mark.parametrize("name", PUZZLES)
def test_the_answer_is_right(name: str) -> None:
    puzzle = PUZZLES[name]
    assert SOLVERS.keys() == PUZZLES.keys()
    for length in longer(puzzle):
        rows = puzzle.tests(length, 30)
        assert rows.shape[0] == 30
        for row in rows:
            told, given = said(row)
            assert "_" in given
            assert SOLVERS[name](given) == told
    texts = {said(row) for row in puzzle.draw("training", np.random.default_rng(0), 50, puzzle.least + 9)}
    assert all(SOLVERS[name](given) == told for told, given in texts)


@pytest.mark.parametrize("name", PUZZLES)
def test_training_has_rows_of_every_length_up_to_its_own(name: str) -> None:
    puzzle, longest = PUZZLES[name], PUZZLES[name].least + 3
    widths = [len(row_of(puzzle.pieces(np.random.default_rng(1), n))) for n in range(puzzle.shortest, longest + 1)]
    rows = puzzle.draw("training", np.random.default_rng(0), 40 * len(widths), longest + 1)
    assert rows.shape[1] == puzzle.tokens(configured({"task": name, "train_length": longest, **TINY})) + 1 == widths[-1]
    found = [len(np.trim_zeros(row, "b")) for row in rows]
    assert {width: found.count(width) > 10 for width in widths} == dict.fromkeys(found, True)


# -- who gets which rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUZZLES)
def test_no_row_is_for_two_parts(name: str) -> None:
    puzzle, size = PUZZLES[name], PUZZLES[name].least + 1
    drawn = {part: {said(row) for row in puzzle.draw(part, np.random.default_rng(0), 100, size)} for part in set(PARTS)}
    tested = {said(row) for row in puzzle.tests(puzzle.least, 60)}
    assert tested.isdisjoint(drawn["training"] | drawn["tuning"])
    assert drawn["training"].isdisjoint(drawn["tuning"])
    assert len(tested) > 30


# -- loss and test ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUZZLES)
def test_the_loss_is_that_of_what_is_to_be_told_alone(name: str) -> None:
    config = tiny(name)
    rows = batch(PUZZLES[name].load(config).train, config, 0, 0)
    model = build_model(config, "nope", 0)
    loss = PUZZLES[name].loss(model, rows)
    each = []
    for row in rows:
        logits = model(row[None, :-1] % ANSWER_OFFSET)[0]
        each += [F.cross_entropy(logits[n - 1], c - ANSWER_OFFSET) for n, c in enumerate(row) if c >= ANSWER_OFFSET]
    torch.testing.assert_close(loss, torch.stack(each).mean())


class Given(nn.Module):
    """A model that says, after each character, the one that a row has there."""

    def __init__(self, row: torch.Tensor) -> None:
        super().__init__()
        self.row = row

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.one_hot(self.row[1:] % ANSWER_OFFSET, 128).float().expand(len(tokens), -1, -1)


@pytest.mark.parametrize("name", PUZZLES)
def test_one_wrong_character_makes_a_row_wrong_and_those_that_are_given_do_not_count(name: str) -> None:
    config = tiny(name)
    loaded, length = PUZZLES[name].load(config), config.test_lengths[0]
    row = torch.from_numpy(PUZZLES[name].tests(length, 1)[0].astype(np.int64))
    for place in range(1, len(row)):
        other = row.clone()
        other[place] += 1 if row[place] % ANSWER_OFFSET < ANSWER_OFFSET - 1 else -1
        tester = loaded.evaluator(Given(other), torch.device("cpu"), lambda tokens: None)
        assert tester.measure("accuracy", length)["accuracy"][0] == float(row[place] < ANSWER_OFFSET)


# -- sizes, learning, and the whole of it -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUZZLES)
def test_lengths_with_too_few_rows_are_refused(name: str) -> None:
    puzzle = PUZZLES[name]
    short = f"at least {puzzle.least} {puzzle.lengths}, got"
    if puzzle.least > 4:  # as many as any training length
        with pytest.raises(ValueError, match=f"train_length must be {short} {puzzle.least - 1}"):
            configured({"task": name, "train_length": puzzle.least - 1})
    with pytest.raises(ValueError, match=re.escape(f"test_lengths must be {short} [{puzzle.least - 1}, 30]")):
        configured({"task": name, "train_length": 20 + puzzle.least, "test_lengths": (30, puzzle.least - 1)})
