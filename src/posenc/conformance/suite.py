"""The checks as tests of one's own suite: `conformance_tests` gives pytest a test for each."""

from collections.abc import Callable, Sequence
from typing import Any

from posenc.conformance.report import as_data, finding_text, findings_of, slug
from posenc.conformance.run import FINDING, NOT_APPLICABLE, UNFINISHED, check, chosen
from posenc.conformance.subjects import Subject


def conformance_tests(subject: Subject, *, checks: Sequence[int] | None = None, **settings: Any) -> Callable[..., None]:
    """A pytest test of the subject, once for each of the checks (None: all twenty), named such as ``7-padding``.

    ::

        test_conformance = conformance_tests(subject)

    A check that is not applicable is skipped with the reason; a finding fails with what was expected, what came, the
    smallest input and the script; so does one that does not finish in its time. ``settings`` are those of `check`.
    """
    import pytest

    cases = [pytest.param(entry.number, id=f"{entry.number}-{slug(entry.name)}") for entry in chosen(checks)]

    @pytest.mark.parametrize("number", cases)
    def test(number: int) -> None:
        try:
            report = check(subject, checks=[number], **settings)
        except ValueError as error:
            pytest.fail(str(error), pytrace=False)
        ((result,),) = (found["results"] for found in as_data([report])["subjects"])
        if result["status"] == NOT_APPLICABLE:
            pytest.skip(result["reason"])
        if result["status"] == FINDING:
            found = [finding_text(result, trial) for trial, _ in findings_of(result)]
            pytest.fail("\n".join(found), pytrace=False)
        if result["status"] == UNFINISHED:
            pytest.fail(f"unfinished: {result['found']}", pytrace=False)

    return test
