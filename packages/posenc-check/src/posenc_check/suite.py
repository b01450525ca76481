"""The checks as pytest tests, for your own test suite."""

from collections.abc import Callable, Sequence
from typing import Any

from posenc_check.report import as_data, finding_text, findings_of
from posenc_check.run import FINDING, NOT_APPLICABLE, UNFINISHED, Report, Result, check, select_checks
from posenc_check.subjects import Subject
from posenc_check.trial import slug


def conformance_tests(subject: Subject, *, checks: Sequence[int] | None = None, **settings: Any) -> Callable[..., None]:
    """A pytest test of the subject, once for each of the checks (None: all), named such as ``7-padding``, and once for
    its claims.

    ::

        test_conformance = conformance_tests(subject)

    A check that is not applicable is skipped with the reason; a finding fails with what was expected, what came, the
    smallest input and the script; so does one that does not finish in its time. The test named ``claims`` fails where
    a claim is not checked, of those all of whose checks are among these: it takes what the tests before it have found,
    and runs what they have not. ``settings`` are those of `check`.
    """
    import pytest

    entries = select_checks(checks)
    cases = [pytest.param(entry.number, id=f"{entry.number}-{slug(entry.name)}") for entry in entries]
    of_claims = [entry.number for entry in entries if any(trial.claims for trial in entry.trials)]
    ended: dict[int, Result] = {}

    if of_claims:
        cases.append(pytest.param(None, id="claims"))

    @pytest.mark.parametrize("number", cases)
    def test(number: int | None) -> None:
        wanted = [number] if number is not None else [other for other in of_claims if other not in ended]
        try:
            report = check(subject, checks=wanted, **settings) if wanted else Report(subject, "")
        except ValueError as error:
            pytest.fail(str(error), pytrace=False)
        ended.update((result.check.number, result) for result in report.results)
        if number is None:
            unchecked = Report(subject, "", list(ended.values())).not_checked
            said = [f"not checked: {claim.said}: {claim.reason}" for claim in unchecked]
            if said:
                pytest.fail("\n".join(said), pytrace=False)
            return
        ((result,),) = (found["results"] for found in as_data([report])["subjects"])
        if result["status"] == NOT_APPLICABLE:
            pytest.skip(result["reason"])
        if result["status"] == FINDING:
            found = [finding_text(report.name, result, trial) for trial, _ in findings_of(result)]
            pytest.fail("\n".join(found), pytrace=False)
        if result["status"] == UNFINISHED:
            pytest.fail(f"unfinished: {result['found']}", pytrace=False)

    return test
