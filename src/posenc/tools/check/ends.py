"""Decides whether an error only means that a position is past an end that was not claimed."""

import builtins
import re
from collections.abc import Iterator, Mapping
from typing import Any

from posenc.tools.check.outcome import Outcome, described
from posenc.tools.check.subjects import Batch, NotApplicableError, Subject
from posenc.tools.check.trial import Case

NEAR = 4  # a position that all have
# What a table says that is read past its end, or is cut to fewer rows than there are tokens; or what is raised on
# purpose. Any class of one's own is, too.
PAST_THE_END = r"""(?xs) (IndexError|ValueError|AssertionError)\b
    | RuntimeError: .* (size\ of\ tensor | expanded\ size | must\ match) | .* line\ \d+:\ raise\b"""


def unclaimed_end(subject: Subject, case: Case, outcome: Outcome) -> str:
    """What to claim where the case reaches past the end of positions: a plain row that reaches as far raises the same
    kind of error, and so do those tried that reach farther, but none that stays near. Else nothing."""
    kind = outcome.came.partition(":")[0]
    error = re.match(PAST_THE_END, outcome.came) or not hasattr(builtins, kind)
    if subject.max_positions is not None or outcome.expected != "an answer" or not error:
        return ""
    # A trial may move the batch by as much as one of its values says.
    reach = max([case.batch.tokens - 1, *_numbers(case.batch.positions), *_numbers(case.values)])
    if reach <= NEAR:
        return ""
    given = case.batch.positions is not None
    farther = (reach, reach + 1, 2 * reach + 1)
    ends = _error(subject, NEAR, given) == "" and all(_error(subject, p, given) == kind for p in farther)
    return f"claim max_positions, for there are positions that it lacks: {outcome.came}" if ends else ""


def _error(subject: Subject, position: int, given: bool) -> str:
    """The kind of error that a plain row raises whose last token is at a position: given, or after as many tokens."""
    try:
        if given:
            subject.run(subject.make(), Batch([[1, 2]], positions=[[subject.at(0), subject.at(position)]]))
        else:
            subject.run(subject.make(), Batch([[1] * (position + 1)]))
    except NotApplicableError:
        return "it cannot be given such a row"
    except (Exception, SystemExit) as error:
        return described(error).partition(":")[0]
    return ""


def _numbers(value: Any) -> Iterator[int]:
    """All whole numbers in a value."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(part)
