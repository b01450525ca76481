"""What the tables of wrong calls are made of."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

NAN, INF = math.nan, math.inf


class Row(NamedTuple):
    """A wrong call, and what it says: all of it, but where … stands."""

    call: Callable[[], Any]
    pattern: str
    error: type[ValueError] = ValueError

    def check(self) -> None:
        """Makes the call and fails unless it says that. Any error but a ValueError goes on its way."""
        try:
            self.call()
        except ValueError as caught:
            error: ValueError = caught
        else:
            pytest.fail(f"was accepted: {self.pattern}")
        words = ".*".join(map(re.escape, self.pattern.split("…")))
        assert re.fullmatch(words, str(error), re.DOTALL), (self.pattern, str(error))
        assert type(error) is self.error


# What comes, and how a message has it.
NO_SIZES: tuple[tuple[Any, str], ...] = (
    ("12", "'12'"),
    (12.0, "12.0"),
    (True, "True"),
    (NAN, "nan"),
    ((2,), "(2,)"),
    (torch.tensor(3), "torch.int64 ()"),
    (np.ones(2), "ndarray float64 (2,)"),
    (int, "the class int"),
    (0, "0"),
    (-1, "-1"),
)
NO_NUMBERS: tuple[tuple[Any, str], ...] = (
    ("10", "'10'"),
    (True, "True"),
    (NAN, "nan"),
    (INF, "inf"),
    (10**400, "int"),
    (None, "None"),
    (torch.tensor(2.0), "torch.float32 ()"),
)
NO_FLAGS: tuple[tuple[Any, str], ...] = ((1, "1"), ("yes", "'yes'"), (None, "None"), (np.True_, "np.True_"))
NO_WORDS: tuple[tuple[Any, str], ...] = (
    ("other", "'other'"),
    (3, "3"),
    (["half"], "['half']"),
    (np.array(["half", "half"]), "ndarray <U4 (2,)"),
)


def each(call: Callable[..., Any], good: Mapping[str, Any], name: str, wrong: Iterable[Any], must: str) -> list[Row]:
    """The call with one argument wrong, in each way."""
    return [Row(partial(call, **{**good, name: value}), f"{name} must be {must}, got {came}") for value, came in wrong]


def sizes(call: Callable[..., Any], good: Mapping[str, Any], *names: str) -> list[Row]:
    return [row for name in names for row in each(call, good, name, NO_SIZES, "a whole number of at least …")]


def numbers(call: Callable[..., Any], good: Mapping[str, Any], name: str, bound: int) -> list[Row]:
    wrong = (*NO_NUMBERS, (bound, str(bound)), (-3.5, "-3.5"))
    return each(call, good, name, wrong, f"a finite number above {bound}")


def flags(call: Callable[..., Any], good: Mapping[str, Any], *names: str) -> list[Row]:
    return [row for name in names for row in each(call, good, name, NO_FLAGS, "True or False")]
