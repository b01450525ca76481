"""Rows of tests: those that `make check` or `make survey` alone runs, and those that are too small for a test each."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


def with_more(few: Iterable[Any], others: Iterable[Any], mark: pytest.MarkDecorator = pytest.mark.more) -> list[Any]:
    """Rows to parametrise with: a few that `make test` runs, and others like them, which are marked."""
    return [*few, *(pytest.param(*(x if isinstance(x, tuple) else (x,)), marks=mark) for x in others)]


def first_of(values: Iterable[Any]) -> list[Any]:
    """The first row for `make test`, and of the others every third for `make check`, the rest for `make survey`."""
    first, *others = values
    in_check = with_more([first], others[::3])
    return with_more(in_check, [row for n, row in enumerate(others) if n % 3], pytest.mark.survey)


def every_second(values: Iterable[Any]) -> list[Any]:
    """`with_more` for the second row, the fourth, and so on."""
    rows = list(values)
    return with_more(rows[::2], rows[1::2])


@contextmanager
def named(*row: object) -> Iterator[None]:
    """For a row of a loop: an error raised in here keeps its type and place, and its message begins with the row."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        told = f"{', '.join(str(getattr(part, 'name', part)) for part in row)}: {error}"
        error.args = (told,)
        if isinstance(error, pytest.fail.Exception):
            error.msg = told
        raise


def in_one_test(rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """One test of a check that takes a row: it goes through all rows, each with the seed of a test."""
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    assert rows

    def loop(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            for row in rows:
                torch.default_generator.manual_seed(0)
                with named(*row):
                    check(*row)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return loop
