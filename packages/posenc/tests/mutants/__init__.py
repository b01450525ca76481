"""Bugs, planted one at a time to see that the tests notice. Each is one that somebody has shipped, or could.

A mutant puts one wrong attribute in the place of the right one, and names the check that must fail for it: a check that
the tests run on the real thing, not one of its own. Every file here has its `MUTANTS`; tests/test_mutants.py runs them.

A file may hold broken copies of its scheme, too: one in ``LAWLESS`` has another verdict than the real scheme in the
law named beside it, one that it broke, or one that it should not have. ``REFUSED`` has the wrong arguments of the
scheme and what is said of them, for tests/errors/test_named_errors.py.
"""

import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import Positions, Scheme
from posenc.backends import choose
from posenc.backends.call import Backend
from posenc.backends.native import operator
from posenc.encoding.encoding import Context
from posenc.encoding.terms import Row
from posenc.lowering.distances import Block
from posenc.lowering.forms import ScoreFunction, dense
from posenc.positions.tiles import Visibility
from posenc.schemes.catalog import entries_of
from posenc.schemes.entry import Shape
from tests.cases import CASES
from tests.schemes import test_against_oracles, test_life_cycle


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


@dataclass(frozen=True)
class Line(Mutant):
    """A function in which ``wrong``, a pair (this, that), has that in the place of this, which is there once."""

    wrong: tuple[str, str]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is in posenc for as long as this is open."""
        wrong = edited(self.owner, self.name, *self.wrong)
        with pytest.MonkeyPatch.context() as patch:
            if isinstance(self.owner, Backend):  # which is frozen
                among = (replace(b, **{self.name: wrong}) if b is self.owner else b for b in choose.BACKENDS)
                patch.setattr(choose, "BACKENDS", tuple(among))
            else:
                patch.setattr(self.owner, self.name, wrong)
            operator._tiles.cache_clear()  # those of the check without the bug
            yield
        operator._tiles.cache_clear()


def edited(owner: Any, name: str, this: str, that: str) -> Any:
    """The function or property of that name with that in the place of this."""
    right = inspect.getattr_static(owner, name)
    function: Any = right.fget if isinstance(right, property) else right
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(this) != 1:
        raise ValueError(f"{name} must have this once, to be mutated, got it {source.count(this)} times: {this}")
    code = compile(source.replace(this, that), "<mutant>", "exec", __future__.annotations.compiler_flag, True)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    return made[function.__name__]


def lines(check: Callable[[], None], *bugs: tuple[str, object, str, str, str]) -> tuple[Line, ...]:
    """A `Line` for each bug, its owner and name, and this and that."""
    return tuple(Line(bug, owner, name, wrong, check) for bug, owner, name, *wrong in bugs)  # type: ignore[arg-type]


def undrawn(owner: type, scheme: str, name: str = "reset_parameters") -> Mutant:
    check = partial(test_life_cycle.check_meta, scheme)
    return Mutant("does not draw its parameters", owner, name, lambda self: None, check)


def oracles(scheme: str) -> Callable[[], None]:
    """The comparison with the scalar loops, of every case that holds the scheme, where the tests make it."""
    (entry,) = entries_of(scheme)

    def check() -> None:
        torch.default_generator.manual_seed(0)
        for name, case in CASES.items():
            if any(type(part) is entry.scheme for part in case.scheme().parts):
                test_against_oracles.test_output_is_the_oracles(name)

    return check


@dataclass(frozen=True)
class Lawless:
    """``build`` makes a copy of ``scheme`` with a bug that changes the verdict in ``law``."""

    scheme: str
    build: Callable[[Shape], Scheme]
    law: str


def moved(positions: Positions, move: Callable[[Tensor], Tensor]) -> Positions:
    """The same tokens at other coordinates."""
    return Positions(move(positions.coords), document=positions.document, segment=positions.segment)


def index(coords: Tensor) -> Tensor:
    """What coordinates would be if tokens were counted."""
    return torch.arange(coords.size(1))[None].expand(coords.shape[:2])


def of_blocks(change: Callable[[Tensor, Block], Tensor]) -> Row:
    """The term that makes of scores whatever ``change`` does, which is given their block."""

    def apply(
        scores: Tensor,
        visible: Tensor | None,
        query: Tensor,
        key: Tensor,
        query_positions: Positions,
        key_positions: Positions,
    ) -> Tensor:
        return change(scores, Block(query, key, query_positions, key_positions, query.size(-1) ** -0.5))

    return Row(apply)


def by_pair(bind: Callable[..., ScoreFunction]) -> Callable[..., tuple[Row, ...]]:
    """A score door that does to each pair what the function does that ``bind(scheme, block)`` gives."""

    def score(
        self: Scheme, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Row, ...]:
        def change(scores: Tensor, block: Block) -> Tensor:
            b, h, i, j = torch.meshgrid(*[torch.arange(n) for n in scores.shape], indexing="ij")
            x, y = (p.expand(scores.size(0)) for p in (block.query_positions, block.key_positions))
            return bind(self, replace(block, query_positions=x, key_positions=y))(scores, b, h, i, j)

        return (of_blocks(change),)

    return score


def elsewhere(
    scheme: type[Scheme], queries: Callable[[Tensor], Tensor], keys: Callable[[Tensor], Tensor]
) -> Callable[..., tuple[Row, ...]]:
    """The score door as it is, but with other coordinates."""
    right = scheme.score

    def score(
        self: Scheme, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Row, ...]:
        def change(scores: Tensor, block: Block) -> Tensor:
            x, y = moved(block.query_positions, queries), moved(block.key_positions, keys)
            there = replace(block, query_positions=x, key_positions=y)
            for score_term in right(self, x, y, context):
                scores = dense(score_term, scores, there, Visibility(), None)
            return scores

        return (of_blocks(change),)

    return score


def drawn(scheme: Scheme) -> Scheme:
    """The scheme with parameters from N(0, 1), in double precision."""
    for parameter in scheme.double().parameters():
        torch.nn.init.normal_(parameter)
    return scheme


def wide(copy: Callable[..., Scheme]) -> Callable[[Shape], Scheme]:
    """A copy of a scheme that adds vectors, on as many axes as the shape has."""
    return lambda shape: copy(shape.dim, axes=shape.axes)
