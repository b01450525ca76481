"""The checks in one's own suite: three lines, and a test for each."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from posenc_check import conformance_tests, run
from tests.check.small_subjects import CLOCK, ONE_OF_EACH, RIGHT

pytest_plugins = ("pytester",)

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def result(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a test file of three lines, with one check for each way to end."""

    def ran(settings: str = "", *options: str) -> pytest.RunResult:
        with monkeypatch.context() as patched:
            patched.setattr(run, "CHECKS", ONE_OF_EACH)
            patched.setattr(run, "time", SimpleNamespace(monotonic=lambda: CLOCK[0]))
            pytester.makepyfile(
                my_checks="from tests.check.small_subjects import RIGHT as subject",
                test_mine=f"""
                    from posenc_check import conformance_tests
                    from my_checks import subject
                    test_conformance = conformance_tests(subject{settings})
                """,
            )
            return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-rs", *options)

    return ran


def test_every_check_is_a_test_with_its_number_and_name(result: Run) -> None:
    found = result("", "-v")
    found.assert_outcomes(passed=1, failed=2, skipped=1)
    found.stdout.fnmatch_lines_random(
        [
            "test_mine.py::test_conformance[[]1-passes[]] PASSED*",
            "test_mine.py::test_conformance[[]2-finds-a-lot[]] FAILED*",
            "test_mine.py::test_conformance[[]3-does-not-apply[]] SKIPPED*",
            "test_mine.py::test_conformance[[]4-waits[]] FAILED*",
        ]
    )


def test_a_finding_fails_with_what_it_is_and_its_script(result: Run) -> None:
    found = result(", checks=[2]")
    found.stdout.fnmatch_lines(
        [
            "nothing: 2. finds a lot, a hostile one",
            "expected: <b>bold</b> & [[]red[]]markup[[]/red[]]",
            "came: a bell *",
            "what to do: Be <kind>.",
            "smallest input: ids=*, positions=*, least=3.0",
            "why it matters: It <matters>.",
            "met before in: transformers#38224, *",
            "# A finding of posenc check, which this script repeats.",
            "raise SystemExit(repeat(*",
            "nothing: 2. finds a lot, another hostile one",
        ]
    )
    found.stdout.no_fnmatch_line("*suite.py*Failed*")  # no traceback through our files
    found.stdout.no_fnmatch_line("*def test(*")


def test_what_does_not_apply_is_skipped_with_the_reason(result: Run) -> None:
    result(", checks=[3]").stdout.fnmatch_lines(["SKIPPED*: it is of <another> kind"])


def test_what_does_not_finish_fails(result: Run) -> None:
    found = result(", checks=[4], seed=3")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["unfinished: for long: the time was up after 1 cases"])


def test_a_subject_that_does_not_run_fails_and_says_so(result: Run) -> None:
    found = result(", checks=[1], lengths=[0]")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["lengths must be from 1 to longest = 1025, got [[]0[]]"])


@pytest.mark.parametrize(("checks", "got"), [([1, 99], "99"), ([], "none")])
def test_a_number_that_no_check_has_is_named(checks: list[int], got: str) -> None:
    with pytest.raises(ValueError, match=f"^checks must be of 1, .*, got {got}$"):
        conformance_tests(RIGHT, checks=checks)
