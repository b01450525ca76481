"""Rows of tests: those that `make check` alone runs, and those that are too small for a test each."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def with_more(few: Iterable[Any], others: Iterable[Any], mark: pytest.MarkDecorator = pytest.mark.more) -> list[Any]:
    """Rows to parametrise with: a few that `make test` runs, and others like them, which are marked."""
    return [*few, *(pytest.param(*(x if isinstance(x, tuple) else (x,)), marks=mark) for x in others)]


@contextmanager
def named(*row: object) -> Iterator[None]:
    """For a row of a loop: an error raised in here keeps its type and place, and its message begins with the row."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        told = f"{', '.join(map(str, row))}: {error}"
        error.args = (told,)
        if isinstance(error, pytest.fail.Exception):
            error.msg = told
        raise
