"""Reads the questions and answers of ``questions.json``, and narrows them by the answers given so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from posenc_lab.choose import evidence
from posenc_lab.kit.files import packaged


@dataclass(frozen=True)
class Option:
    """One option of a question. ``needs`` is the setting of the explorer's filter; None: no filter."""

    value: str
    label: str
    needs: Mapping[str, Any] | None


@dataclass(frozen=True)
class Question:
    """A question, with its reason in ``note``; the first option is the default."""

    name: str
    asks: str
    note: str
    options: tuple[Option, ...]

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(option.value for option in self.options)


@dataclass(frozen=True)
class Answer:
    """A recommendation. ``when`` maps questions to the values that lead to it, ``code`` is Python that runs with
    transformers and the variables of the catalog's examples (with heads of the channels that it names), ``command``
    measures it; ``evidence`` names tables, ``claims`` claims and ``statements`` statements. ``rests_on`` names the
    tables and statements that speak for the recommendation. Where those of a paper and those measured here differ,
    ``instead`` has what the latter are for, and their names."""

    name: str
    case: str
    when: Mapping[str, Sequence[str]]
    begin: str
    compare_with: str
    code: str
    command: str
    why: str
    evidence: Sequence[str]
    claims: Sequence[str]
    statements: Sequence[str]
    rests_on: Sequence[str]
    unknown: str
    instead: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def strength(self) -> str:
        """That of the strongest evidence that it rests on, one of `posenc_lab.choose.evidence.STRENGTHS`."""
        return strongest(self.rests_on)

    @property
    def strength_in_words(self) -> str:
        """The same in words, and after it that of what there is ``instead``."""
        others = (f"; for {what} instead: {evidence.STRENGTHS[strongest(of)]}" for what, of in self.instead.items())
        return evidence.STRENGTHS[self.strength] + "".join(others)

    def fits(self, given: Mapping[str, str]) -> bool:
        """Whether the answers given so far may lead here."""
        return all(name not in given or given[name] in values for name, values in self.when.items())


def strongest(names: Sequence[str]) -> str:
    """The strength of the strongest of some tables and statements."""
    return min((strengths()[name] for name in names), key=list(evidence.STRENGTHS).index)


@cache
def strengths() -> Mapping[str, str]:
    """The strength of each table and statement, by name."""
    return {
        **{table.name: table.strength for table in evidence.tables()},
        **{each.name: each.strength for each in evidence.statements()},
    }


def questions() -> tuple[Question, ...]:
    """All questions, in the order in which they are asked."""
    return tuple(
        Question(**{**one, "options": tuple(Option(**option) for option in one["options"])})
        for one in packaged(__package__, "questions.json")["questions"]
    )


def answers() -> tuple[Answer, ...]:
    """All answers; every combination of values leads to one."""
    return tuple(Answer(**one) for one in packaged(__package__, "questions.json")["answers"])


def open_questions(given: Mapping[str, str], asked: Sequence[Question], found: Sequence[Answer]) -> list[Question]:
    """The unanswered questions that may still change the answer, in order."""
    left = [answer for answer in found if answer.fits(given)]
    return [q for q in asked if q.name not in given and any(q.name in answer.when for answer in left)]


def answer_to(given: Mapping[str, str], found: Sequence[Answer]) -> Answer:
    """The answer, once no question is open."""
    (answer,) = (one for one in found if one.fits(given))
    return answer
