"""`posenc check --explain`: what checks do, from what they say of themselves."""

import pytest

from posenc.command.cli import main
from posenc_check.checks import CHECKS
from posenc_check.explain import claims, explained
from posenc_check.trial import THREADS, Check


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("entry", CHECKS, ids=lambda entry: entry.name)
def test_it_says_all_of_a_check(entry: Check) -> None:
    text = flat(explained([entry.number]))
    assert text.startswith(f"{entry.number}. {entry.name} What must hold: {entry.rule} Why: {entry.why}")
    for said in (entry.remedy, *(thread for pain in entry.pains for thread in THREADS[pain])):
        assert said in text
    for trial in entry.trials:
        assert f"- {trial.name}: {flat((trial.function.__doc__ or '').partition(chr(10) * 2)[0])}" in text
        assert trial.remedy in text
        for claim in trial.claims:
            assert f"- {claims()[claim]}" in text


def test_it_says_what_a_call_must_take_and_a_subject_claim() -> None:
    assert "needs: let call take `padding` (rows, tokens)" in flat(explained([7]))
    assert "needs: claim `compiles=True` to run this" in flat(explained([18]))
    assert "needs: a rotation alone has pairs of channels" in flat(explained([15]))
    assert "needs: nothing but a call" in flat(explained([4]))
    assert "- `heads_option`, the option that says how many heads there are" in flat(explained([19]))


def test_claims_are_told_as_the_docstrings_have_them() -> None:
    assert claims()["compiles"] == "`compiles`, `exports`: it compiles as one graph, and exports with a dynamic length"
    assert claims()["scale"].startswith("`scale`, what the length of a rotated vector is multiplied by")
    assert claims()["softmax_scale"].startswith("`softmax_scale`, what products of queries and keys are multiplied by")
    assert {claim for entry in CHECKS for trial in entry.trials for claim in trial.claims} <= set(claims())


def test_without_numbers_it_is_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{entry.number:2}. {entry.name}: {entry.rule}" for entry in CHECKS]


def test_it_needs_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "7,8"]) == 0
    assert capsys.readouterr().out == explained([7, 8]) + "\n"
