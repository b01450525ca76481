"""The puzzles: that their answers are right, that no row is for two parts, and that they are scored as they say."""

import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from posenc.command.cli import main
from posenc.models import Decoder
from posenc_lab.compare.compare import build_model, compare
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.puzzle import ASKED, PARTS, Puzzle, part_of, row_of
from posenc_lab.compare.tasks import TASKS, configured, task_of
from posenc_lab.compare.train import batch
from posenc_lab.kit.records import key
from tests.rows import first_of

PUZZLES = {name: task for name in TASKS if isinstance(task := task_of(name), Puzzle)}
TINY: dict[str, Any] = {"layers": 1, "dim": 16, "heads": 2, "batch_size": 8, "windows": 16, "steps": 2}


def longer(puzzle: Puzzle) -> list[int]:
    """Lengths to look at: the shortest that is tested, an odd one, and a long one."""
    return [puzzle.least, puzzle.least + 7, min(puzzle.least + 33, puzzle.most or 1000)]


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
    told = "".join(chr(c % ASKED) for c in row)
    return told, "".join("_" if c >= ASKED else chr(c) for c in row)


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


def indexed(row: str) -> str:
    letters, asked = row.split("=")
    return letters + "=" + re.sub(r"(.)_", lambda place: place[1] + letters[int(place[1], 36)], asked)


def added(given: str) -> str:
    """As at school, a binary digit at a time from the right."""
    one, other = given.split("+")
    carry, digits = 0, ""
    for a, b in zip(reversed(one), reversed(other), strict=True):
        carry, digit = divmod((a == "1") + (b == "1") + carry, 2)
        digits = str(digit) + digits
    return str(carry) + digits


def parity(given: str) -> str:
    odd = False
    for bit in given:
        odd = odd != (bit == "1")
    return "1" if odd else "0"


SOLVERS: dict[str, Callable[[str], str]] = {
    "copy": by_hand(lambda given: given),
    "reverse": by_hand(lambda given: "".join(given[len(given) - 1 - n] for n in range(len(given)))),
    "addition": by_hand(added),
    "parity": by_hand(parity),
    "recall": recalled,
    "index": indexed,
    "passkey": by_hand(lambda given: re.findall(r"#(\d{5})(?=\D)", given)[0]),
    "sort": by_hand(lambda given: "".join(c for c in string.ascii_uppercase + string.ascii_lowercase if c in given)),
}


def test_every_puzzle_is_solved_by_hand() -> None:
    assert SOLVERS.keys() == PUZZLES.keys()


@pytest.mark.parametrize("name", PUZZLES)
def test_the_answer_is_right(name: str) -> None:
    puzzle = PUZZLES[name]
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


@pytest.mark.parametrize("name", first_of(PUZZLES))
def test_no_row_is_for_two_parts(name: str) -> None:
    puzzle, size = PUZZLES[name], PUZZLES[name].least + 1
    drawn = {part: {said(row) for row in puzzle.draw(part, np.random.default_rng(0), 300, size)} for part in set(PARTS)}
    tested = {said(row) for row in puzzle.tests(puzzle.least, 100)}
    assert tested.isdisjoint(drawn["training"] | drawn["tuning"])
    assert drawn["training"].isdisjoint(drawn["tuning"])
    assert len(tested) > 50


def test_the_part_of_a_row_is_that_of_its_characters_and_all_parts_have_their_share() -> None:
    rows = [row_of([f"{n}=", "1"]) for n in range(800)]
    parts = [part_of(row) for row in rows]
    assert [part_of(row.copy()) for row in rows] == parts
    assert {part: abs(parts.count(part) / 800 - PARTS.count(part) / 8) < 0.05 for part in PARTS} == dict.fromkeys(
        PARTS, True
    )


@pytest.mark.parametrize("name", PUZZLES)
def test_the_same_seed_gives_the_same_rows_and_others_do_not(name: str) -> None:
    config = tiny(name)
    first, again = (PUZZLES[name].load(config) for _ in range(2))
    rows = batch(first.train, config, 0, 0)
    assert first.digest == again.digest
    assert torch.equal(rows, batch(again.train, config, 0, 0))
    assert not torch.equal(rows, batch(first.train, config, 0, 1))
    assert not torch.equal(rows, batch(first.train, config, 1, 0))
    assert PUZZLES[name].load(tiny(name, windows=17)).digest != first.digest


# -- loss and test ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUZZLES)
def test_the_loss_is_that_of_what_is_to_be_told_alone(name: str) -> None:
    config = tiny(name)
    rows = batch(PUZZLES[name].load(config).train, config, 0, 0)
    model = build_model(config, "nope", 0)
    loss = PUZZLES[name].loss(model, rows)
    each = []
    for row in rows:
        logits = model(row[None, :-1] % ASKED)[0]
        each += [F.cross_entropy(logits[n - 1], c - ASKED) for n, c in enumerate(row) if c >= ASKED]
    torch.testing.assert_close(loss, torch.stack(each).mean())


class Given(nn.Module):
    """A model that says, after each character, the one that a row has there."""

    def __init__(self, row: torch.Tensor) -> None:
        super().__init__()
        self.row = row

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.one_hot(self.row[1:] % ASKED, 128).float().expand(len(tokens), -1, -1)


@pytest.mark.parametrize("name", PUZZLES)
def test_one_wrong_character_makes_a_row_wrong_and_those_that_are_given_do_not_count(name: str) -> None:
    config = tiny(name)
    loaded, length = PUZZLES[name].load(config), config.test_lengths[0]
    row = torch.from_numpy(PUZZLES[name].tests(length, 1)[0].astype(np.int64))
    for place in range(1, len(row)):
        other = row.clone()
        other[place] += 1 if row[place] % ASKED < ASKED - 1 else -1
        tester = loaded.evaluator(Given(other), torch.device("cpu"), lambda tokens: None)
        assert tester.measure("accuracy", length)["accuracy"][0] == float(row[place] < ASKED)


@pytest.mark.parametrize("name", first_of(PUZZLES))
def test_exact_match_is_what_greedy_decoding_gives(name: str) -> None:
    """With a model that was trained a little, so that some rows are right and some are wrong."""
    puzzle, config = PUZZLES[name], tiny(name, "rope", windows=64)
    model = build_model(config, "rope", 0)
    assert isinstance(model, Decoder)
    length = config.test_lengths[0]
    rows = torch.from_numpy(puzzle.tests(length, 64).astype(np.int64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    found: list[float] = []
    while not 0.1 < np.mean(found or [0.0]) < 0.9:
        for _ in range(5):
            optimizer.zero_grad()
            puzzle.loss(model, rows[:32]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        tester = puzzle.load(config).evaluator(model, torch.device("cpu"), lambda tokens: None)
        found = tester.measure("accuracy", length)["accuracy"]
    for row, right in zip(rows, found, strict=True):
        written = row[:1] % ASKED
        for character in row[1:]:
            following = model.generate(written[None], 1)[0] if character >= ASKED else character[None]
            written = torch.cat((written, following))
        assert torch.equal(written, row % ASKED) == bool(right)


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


def test_no_more_letters_are_sorted_than_there_are_and_no_more_places_asked_for_than_have_a_name() -> None:
    with pytest.raises(ValueError, match=r"test_lengths must be at most 36 letters, got \[37\]"):
        configured({"task": "index", "test_lengths": (37,)})
    with pytest.raises(ValueError, match=r"test_lengths must be at most 52 letters, got \[53\]"):
        configured({"task": "sort", "test_lengths": (53,)})
    with pytest.raises(ValueError, match="train_length must be at most 52 letters, got 53"):
        configured({"task": "sort", "train_length": 53, "test_lengths": (20,)})


@pytest.mark.more
def test_a_model_learns_to_copy(tmp_path: Path) -> None:
    """Guessing would copy one row of seven million."""
    settings = {"steps": 200, "layers": 2, "dim": 32, "batch_size": 32, "windows": 64, "test_lengths": (4,)}
    records = {key(r)[:4]: r for r in compare(tiny("copy", "rope", learning_rate=5e-3, **settings), tmp_path)}
    assert np.mean(records["accuracy", "rope", 0, 4]["accuracy"]) > 0.1


@pytest.mark.more
def test_a_comparison_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--task copy --schemes nope,learned --train-length 4 --steps 2 --layers 1 --dim 16 --heads 2 --windows 8"
    assert main(["compare", *words.split(), "--batch-size", "4", "--out", str(tmp_path)]) == 0
    assert "Share of right answers, trained at 4 letters" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>A copy of letters</h1>" in page
    assert "8 test rows of each length, and no training draws them" in page
