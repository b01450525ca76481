"""Bugs, planted one at a time to see that the tests notice. Each is one that somebody has shipped, or could.

A mutant puts one wrong attribute in the place of the right one, and names the check that must fail for it: a check that
the tests run on the real thing, not one of its own. Every file here has its `MUTANTS`; tests/test_mutants.py runs them.

A file may hold broken copies of its scheme, too: one in ``LAWLESS`` has another verdict than the real scheme in the law
named beside it, one that it broke, or one that it should not have. Those in ``UNTRUE`` keep the laws well enough, and
only their oracle can tell; tests/laws/test_broken.py holds both to what they are there for. ``REFUSED`` has the wrong
arguments of the scheme and what is said of them, for tests/hard/test_named_errors.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from posenc import Positions, Scheme
from posenc.schemes.catalog import entries_of
from posenc.schemes.entry import Shape
from tests.cases import CASES
from tests.schemes import test_against_oracles


@dataclass(frozen=True)
class Mutant:
    """``wrong``, planted as ``owner.name``, makes ``check`` fail."""

    bug: str
    owner: object
    name: str
    wrong: object
    check: Callable[[], None]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is in posenc for as long as this is open."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.owner, self.name, self.wrong)
            yield


def oracles(scheme: str, *where: str) -> Callable[[], None]:
    """The comparison with the scalar loops, of every case that holds the scheme, at some awkward positions."""
    (entry,) = entries_of(scheme)

    def check() -> None:
        torch.default_generator.manual_seed(0)
        for case in CASES.values():
            if any(type(part) is entry.scheme for part in case.scheme().parts):
                places = case.positions()
                for name in where or (("offset", "permuted") if case.axes == 1 else places):
                    test_against_oracles.test_output_is_the_oracles(case, places[name], "reference")

    return check


@dataclass(frozen=True)
class Lawless:
    """``build`` makes a copy of ``scheme`` with a bug that changes the verdict in ``law``."""

    scheme: str
    build: Callable[[Shape], Scheme]
    law: str


@dataclass(frozen=True)
class Untrue:
    """``build`` makes a copy of the scheme of an oracle's ``case``, which its oracle does not agree with."""

    case: str
    build: Callable[[], Scheme]


def moved(positions: Positions, move: Callable[[Tensor], Tensor]) -> Positions:
    """The same tokens at other coordinates."""
    return Positions(move(positions.coords), document=positions.document, segment=positions.segment)


def wide(copy: Callable[..., Scheme]) -> Callable[[Shape], Scheme]:
    """A copy of a scheme that adds vectors, on as many axes as the shape has."""
    return lambda shape: copy(shape.dim, axes=shape.axes)
