"""Parameters of which `make test` tries the first alone."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(values: Iterable[Any]) -> list[Any]:
    """The values as parameters of a test: all but the first are marked ``more``, for `make check`."""
    first, *others = values
    each = [other if isinstance(other, tuple) else (other,) for other in others]
    return [first, *(pytest.param(*other, marks=pytest.mark.more) for other in each)]
