"""Decides whether an error only means that a position is past an end that was not claimed."""

import builtins
import re
from collections.abc import Iterator, Mapping
from typing import Any

from posenc.tools.check.outcome import Outcome, described
from posenc.tools.check.subjects import Batch, NotApplicableError, Subject
from posenc.tools.check.trial import Case

NEAR = 4  # a position that every subject has
# The errors of a table that is read past its end, or cut to fewer rows than there are tokens; or errors raised on
# purpose. Any error class that is not built in counts too.
PAST_THE_END = r"""(?xs) (IndexError|ValueError|AssertionError)\b
    | RuntimeError: .* (size\ of\ tensor | expanded\ size | must\ match) | .* line\ \d+:\ raise\b"""


def unclaimed_end(subject: Subject, case: Case, outcome: Outcome) -> str:
    """What to claim if the case reaches past the end of positions, else "". It does if plain rows that reach as far, or
    further, raise the same kind of error, and a row near 0 does not."""
    kind = outcome.came.partition(":")[0]
    error = re.match(PAST_THE_END, outcome.came) or not hasattr(builtins, kind)
    if subject.max_positions is not None or outcome.expected != "an answer" or not error:
        return ""
    # A trial may move the batch by one of its values.
    reach = max([case.batch.tokens - 1, *_numbers(case.batch.positions), *_numbers(case.values)])
    if reach <= NEAR:
        return ""
    given = case.batch.positions is not None
    farther = (reach, reach + 1, 2 * reach + 1)
    ends = _error(subject, NEAR, given) == "" and all(_error(subject, p, given) == kind for p in farther)
    return f"claim max_positions, for there are positions that it lacks: {outcome.came}" if ends else ""


def _error(subject: Subject, position: int, given: bool) -> str:
    """The kind of error raised by a plain row whose last token is at this position, which is ``given`` or an index."""
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
