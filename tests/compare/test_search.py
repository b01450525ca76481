"""The search for LongRoPE's factors finds a known optimum, keeps its rules, and goes on where it was stopped."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posenc import LongRoPE, NTKAware, PositionInterpolation, RoPE, YaRN
from posenc.models import Decoder
from posenc.rotation.phases import frequencies
from posenc.tools.compare.search import ROOM, STEP, Found, search, starts

SPACE: dict[str, Any] = {"pairs": 6, "base": 500.0, "factor": 4.0, "original_length": 64}
BEST = (1.0, 1.1, 2.0, 2.6, 3.9, 4.3)  # rises, and is none of the formulas'


def far(scaling: LongRoPE) -> float:
    """How far a list is from the best one."""
    return sum((a - b) ** 2 for a, b in zip(scaling.long_factor, BEST, strict=True))


def run(loss: Callable[[LongRoPE], float] = far, **more: Any) -> Found:
    return search(loss, **{**SPACE, "evaluations": 60, **more})


def test_it_comes_near_the_best_list() -> None:
    """In a thousand trials to within what neighbouring steps differ by, from the formulas' distance of over 1."""
    found = run(evaluations=1000)
    formulas = [trial.loss for trial in found.trials[:3]]
    assert min(formulas) > 1
    assert found.best.loss < 0.02
    assert found.scaling == LongRoPE([1.0] * 6, found.best.factors, 64, 4.0)
    assert far(found.scaling) == found.best.loss


def test_it_starts_from_what_the_formulas_divide_by() -> None:
    theta = frequencies(12, 500.0)
    for (name, factors), formula in zip(
        starts(**SPACE).items(), (PositionInterpolation(4), NTKAware(4), YaRN(4, 64)), strict=True
    ):
        torch.testing.assert_close(
            torch.tensor(factors, dtype=torch.float64), theta / formula(theta)[0], rtol=0, atol=0.51 * STEP
        )
        assert name in [trial.origin for trial in run().trials[:3]]


def test_lists_rise_within_their_bounds_in_steps_and_none_comes_twice() -> None:
    trials = run(evaluations=200).trials
    assert len(trials) == len({trial.factors for trial in trials}) == 200
    for trial in trials:
        assert all(a <= b for a, b in pairwise(trial.factors))
        assert trial.factors[0] >= 1
        assert trial.factors[-1] <= ROOM * 4
        assert all(abs(each / STEP - round(each / STEP)) < 1e-6 for each in trial.factors)
    assert {"mutation", "crossover"} < {trial.origin for trial in trials}


def test_it_follows_from_its_seed() -> None:
    assert run() == run()
    assert run().trials != run(seed=1).trials


def test_a_loss_that_is_no_number_is_the_worst() -> None:
    def broken(scaling: LongRoPE) -> float:
        return math.nan if scaling.long_factor[0] == 1 else far(scaling)

    found = run(broken)
    assert found.best.factors[0] > 1
    assert any(math.isinf(trial.loss) for trial in found.trials)


def test_it_tells_how_far_it_is() -> None:
    told: list[tuple[int, float, float]] = []
    found = run(progress=lambda done, trial, best: told.append((done, trial.loss, best.loss)))
    assert [done for done, _, _ in told] == list(range(1, 61))
    assert told[-1][2] == found.best.loss
    assert all(best <= loss for _, loss, best in told)


def test_a_search_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """And tries what it would have tried; what is in the record is not measured again, a torn line is."""
    record, measured = tmp_path / "search.jsonl", []

    def counted(scaling: LongRoPE) -> float:
        measured.append(scaling)
        if len(measured) == 25:
            raise KeyboardInterrupt
        return math.inf if len(measured) == 5 else far(scaling)

    def whole(scaling: LongRoPE) -> float:
        everything.append(scaling)
        return math.inf if len(everything) == 5 else far(scaling)

    everything: list[LongRoPE] = []
    expected = run(whole)
    with pytest.raises(KeyboardInterrupt):
        run(counted, record=record)
    with record.open("a") as file:
        file.write('{"factors": [1.0, 1.')
    assert run(counted, record=record) == expected
    assert len(measured) == 25 + 36
    assert len(record.read_text().splitlines()) == 61
    assert run(counted, record=record, evaluations=40).trials == expected.trials[:40]
    assert len(measured) == 25 + 36


def test_another_search_does_not_go_on_with_it(tmp_path: Path) -> None:
    record = tmp_path / "search.jsonl"
    run(record=record)
    with pytest.raises(ValueError, match=r"record must be of this search, but .* has factor 4.0, not 8.0"):
        run(record=record, factor=8.0)
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join([*lines[:3], lines[4], lines[3]]))
    with pytest.raises(ValueError, match="line 4, must hold the list that this search tries next"):
        run(record=record)
    record.write_text("".join([*lines[:3], json.dumps({"loss": 1}) + "\n"]))
    with pytest.raises(ValueError, match=r"line 4, is not a line of a search \(factors is missing"):
        run(record=record)


@pytest.mark.parametrize(
    "held",
    [
        b"line one\nline two, without an end",
        b"a line without an end",
        b'{"step": 1}\n{"st',
        b'{"search": [1]}\n{"fac',
        b"[1]\nx",
        b"\xff\xfe\n1",
        b"\n",
    ],
)
def test_a_file_that_is_no_record_is_left_as_it_is(tmp_path: Path, held: bytes) -> None:
    record = tmp_path / "notes.txt"
    record.write_bytes(held)
    with pytest.raises(ValueError, match="line 1, is not a line of a search"):
        run(record=record)
    assert record.read_bytes() == held


def test_a_record_of_another_search_keeps_its_torn_line(tmp_path: Path) -> None:
    record = tmp_path / "search.jsonl"
    run(record=record)
    held = record.read_text() + '{"factors": [1.0'
    record.write_text(held)
    with pytest.raises(ValueError, match="record must be of this search"):
        run(record=record, seed=1)
    assert record.read_text() == held


def test_a_record_that_was_cut_off_in_its_first_line_begins_anew(tmp_path: Path) -> None:
    record, other = tmp_path / "search.jsonl", tmp_path / "other.jsonl"
    run(record=other)
    record.write_text(other.read_text()[:20])
    run(record=record)
    assert record.read_text() == other.read_text()


def test_a_record_says_what_was_measured(tmp_path: Path) -> None:
    record = tmp_path / "search.jsonl"
    measured = {"model": "tiny", "lengths": (8, 16)}
    first = run(record=record, of=measured)
    assert json.loads(record.read_text().splitlines()[0])["search"]["of"] == {"model": "tiny", "lengths": [8, 16]}
    assert run(lambda scaling: math.nan, record=record, of=measured) == first
    for other in (None, {"model": "small", "lengths": (8, 16)}):
        with pytest.raises(ValueError, match=r"record must be of this search, but .* has of "):
            run(record=record, of=other)


def test_numpys_own_numbers_are_recorded(tmp_path: Path) -> None:
    record = str(tmp_path / "search.jsonl")
    given: dict[str, Any] = {
        "pairs": np.int64(6), "base": np.float32(500), "factor": np.float64(4), "original_length": np.int64(64),
        "evaluations": np.int64(5), "population": np.int64(16), "seed": np.int64(0),
    }  # fmt: skip
    found = search(far, record=record, **given)
    assert found == run(evaluations=5, record=record)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pairs": 1}, "pairs must be a whole number of at least 2, got 1"),
        ({"evaluations": 0}, "evaluations must be a whole number of at least 1, got 0"),
        ({"population": 3}, "population must be a whole number of at least 4, got 3"),
        ({"seed": "one"}, "seed must be a whole number of at least 0, got 'one'"),
        ({"record": 3}, "record must be a str, a Path or None, got 3"),
        ({"of": 3}, "of must be a Mapping or None, got 3"),
        ({"of": {"model": torch.neg}}, "of must hold JSON values, got "),
        ({"base": 1}, "base must be a finite number above 1, got 1"),
        ({"factor": 0.5}, "factor must be a finite number of at least 1, got 0.5"),
        ({"original_length": 1}, "original_length must be a whole number of at least 2, got 1"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**wrong)


@torch.no_grad()
def test_of_a_decoder() -> None:
    """Of one that turns by a list of its own, it finds a list whose output is nearer than any formula's."""
    torch.manual_seed(0)
    text = torch.randint(11, (2, 33))
    teacher = Decoder(11, 16, 1, 2, position=RoPE(8, 500.0, scaling=LongRoPE([1.0] * 4, [1.2, 1.5, 3.0, 3.2], 8, 4)))
    for parameter in teacher.parameters():
        torch.nn.init.normal_(parameter)
    taught = teacher.eval()(text).log_softmax(-1)

    def of_model(scaling: LongRoPE) -> float:
        model = Decoder(11, 16, 1, 2, position=RoPE(8, 500.0, scaling=scaling)).eval()
        model.load_state_dict(teacher.state_dict())
        return float(
            torch.nn.functional.kl_div(model(text).log_softmax(-1), taught, log_target=True, reduction="batchmean")
        )

    space = {"pairs": 4, "base": 500.0, "factor": 4.0, "original_length": 8}
    found = search(of_model, **space, evaluations=80)
    assert found.best.loss < min(trial.loss for trial in found.trials[:3]) / 2
    assert of_model(found.scaling) == found.best.loss
