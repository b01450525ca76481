"""The puzzle: that its answers are right, that no row is for two parts, and that it is scored as it says."""

import re
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from posenc_lab.compare.compare import build_model
from posenc_lab.compare.puzzle import ANSWER_OFFSET, PARTS, Recall, row_of
from posenc_lab.compare.tasks import configured
from posenc_lab.compare.train import batch

PUZZLE = Recall()
LEAST = PUZZLE.least
TINY: dict[str, Any] = {"layers": 1, "dim": 16, "heads": 2, "batch_size": 8, "windows": 16, "steps": 2}
CONFIG = configured({"task": "recall", "train_length": LEAST, "test_lengths": (LEAST, LEAST + 3), **TINY})


def said(row: np.ndarray[Any, Any]) -> tuple[str, str]:
    """The text of a row, and the same with a "_" for each character that is to be told; without what fills it up."""
    row = np.trim_zeros(row, "b")
    told = "".join(chr(c % ANSWER_OFFSET) for c in row)
    return told, "".join("_" if c >= ANSWER_OFFSET else chr(c) for c in row)


def recalled(row: str) -> str:
    context, asked = row.split("=")
    pairs = re.findall(r"[a-h][A-H]", context)
    assert len(pairs) == 4
    return context + "=" + re.sub(r"(.)_", lambda key: next(pair for pair in pairs if pair[0] == key[1]), asked)


def test_the_answer_is_right() -> None:
    for length in (LEAST, LEAST + 7, LEAST + 33):
        rows = PUZZLE.tests(length, 30)
        assert rows.shape[0] == 30
        for row in rows:
            told, given = said(row)
            assert "_" in given
            assert recalled(given) == told
    texts = {said(row) for row in PUZZLE.draw("training", np.random.default_rng(0), 50, LEAST + 9)}
    assert all(recalled(given) == told for told, given in texts)


def test_training_has_rows_of_every_length_up_to_its_own() -> None:
    longest = LEAST + 3
    widths = [len(row_of(PUZZLE.pieces(np.random.default_rng(1), n))) for n in range(LEAST, longest + 1)]
    rows = PUZZLE.draw("training", np.random.default_rng(0), 40 * len(widths), longest + 1)
    assert rows.shape[1] == PUZZLE.tokens(configured({"task": "recall", "train_length": longest})) + 1 == widths[-1]
    found = [len(np.trim_zeros(row, "b")) for row in rows]
    assert {width: found.count(width) > 10 for width in widths} == dict.fromkeys(found, True)


def test_no_row_is_for_two_parts() -> None:
    drawn = {p: {said(row) for row in PUZZLE.draw(p, np.random.default_rng(0), 100, LEAST + 1)} for p in set(PARTS)}
    tested = {said(row) for row in PUZZLE.tests(LEAST, 60)}
    assert tested.isdisjoint(drawn["training"] | drawn["tuning"])
    assert drawn["training"].isdisjoint(drawn["tuning"])
    assert len(tested) > 30


def test_the_loss_is_that_of_what_is_to_be_told_alone() -> None:
    rows = batch(PUZZLE.load(CONFIG).train, CONFIG, 0, 0)
    model = build_model(CONFIG, "nope", 0)
    loss = PUZZLE.loss(model, rows)
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


def test_one_wrong_character_makes_a_row_wrong_and_those_that_are_given_do_not_count() -> None:
    loaded, length = PUZZLE.load(CONFIG), CONFIG.test_lengths[0]
    row = torch.from_numpy(PUZZLE.tests(length, 1)[0].astype(np.int64))
    for place in range(1, len(row)):
        other = row.clone()
        other[place] += 1 if row[place] % ANSWER_OFFSET < ANSWER_OFFSET - 1 else -1
        tester = loaded.evaluator(Given(other), torch.device("cpu"), lambda tokens: None)
        assert tester.measure("accuracy", length)["accuracy"][0] == float(row[place] < ANSWER_OFFSET)
