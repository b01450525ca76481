"""Rows that are too small for a test each: they are tried in a loop, and what fails says which it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def named(*row: object) -> Iterator[None]:
    """What is raised in here says first which row it was; it stays what it is, raised where it was."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        told = f"{', '.join(map(str, row))}: {error}"
        error.args = (told,)
        if isinstance(error, pytest.fail.Exception):
            error.msg = told
        raise
