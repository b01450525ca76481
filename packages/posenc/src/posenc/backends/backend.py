"""What a backend is: a way to run calls, and a table of the kinds of terms it supports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from posenc.backends.call import Call
from posenc.encoding.pieces import Term

Question: TypeAlias = Callable[[Call], str | None]
"""Why a backend cannot run a call; None if it can."""


class Unless(NamedTuple):
    """A condition on terms of a kind: they are supported unless ``holds(term, call)``, and ``reason`` says why not."""

    reason: str
    holds: Callable[[Any, Call], bool]


def never(reason: str) -> tuple[Unless]:
    """The conditions of a kind that is not supported."""
    return (Unless(reason, _always),)


def _always(term: Term, call: Call) -> bool:
    return True


@dataclass(frozen=True)
class Backend:
    """An implementation of attention.

    ``run(call)`` returns the output (B, H, M, d_v) in the query's dtype and, if ``return_lse``, the log-sum-exp
    (B, H, M) of every row of scores. Queries and keys are already rotated, unless it ``turns`` them itself.

    ``kinds`` are the kinds of terms that it supports, with their conditions; None: all that have a form. It is asked
    ``first`` before them, and ``last`` what needs terms of these kinds, or takes time.

    A query without any visible key gives zeros in the output and in every gradient, and a log-sum-exp of -inf. The
    log-sum-exp is differentiable like the output.
    """

    name: str
    run: Callable[[Call], tuple[Tensor, Tensor | None]]
    kinds: Mapping[type[Term], tuple[Unless, ...]] | None = None
    first: tuple[Question, ...] = ()
    last: tuple[Question, ...] = ()
    turns: bool = False

    def __call__(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """Runs the call, after rotating queries and keys unless the backend does."""
        return self.run(call if self.turns else call.turned())

    def refuses(self, call: Call) -> str | None:
        """Why it cannot run the call; None if it can. Does not read tensor values."""
        return _answer(self.first, call) or self._refuses_term(call) or _answer(self.last, call)

    def supports(self, kind: type[Term]) -> bool:
        """Whether it supports terms of the kind, where their conditions hold."""
        if self.kinds is None:
            return True
        return kind in self.kinds and not any(condition.holds is _always for condition in self.kinds[kind])

    def _refuses_term(self, call: Call) -> str | None:
        if self.kinds is None:
            return None
        for term in (*call.values, *call.pieces):
            if type(term) not in self.kinds:
                return f"it does not support terms of the kind {type(term).__name__}"
            for reason, holds in self.kinds[type(term)]:
                if holds(term, call):
                    return reason
        return None


def _answer(questions: Sequence[Question], call: Call) -> str | None:
    for question in questions:
        reason = question(call)
        if reason is not None:
            return reason
    return None
