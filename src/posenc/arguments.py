"""What an argument must be: each check gives a ValueError that names the argument, what was expected and what came."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any


def shown(value: object) -> str:
    """A value as an error says it: as it is written, but a tensor or an array by dtype and shape, and by its type what
    would not fit into a line.

    >>> shown("12"), shown((2, None)), shown(float)
    ("'12'", '(2, None)', 'the class float')
    """
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        told = f"{value.dtype} {tuple(value.shape)}"
        if told.startswith("torch."):
            return told
        if value.shape:  # a single number of NumPy's is written as any other
            return f"{kind} {told}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(shown, value[:8])) + (", ..." if len(value) > 8 else "," if len(value) == 1 else "")
        return f"({inside})" if isinstance(value, tuple) else f"[{inside.removesuffix(',')}]"
    written = repr(value)
    return kind if len(written) > 60 or written.startswith("<") or "\n" in written else written


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """The whole number, as an int. ValueError for one below ``least`` or above ``most``, and for True, 12.0 or "12"."""
    if not isinstance(value, bool) and isinstance(value, Integral):
        found = int(value)
        if found >= least and (most is None or found <= most):
            return found
    within = f"of at least {least}" if most is None else f"within {least}..{most}"
    raise ValueError(f"{name} must be a whole number {within}, got {shown(value)}")


def sides(grid: Any, name: str = "grid") -> tuple[int, int]:
    """Height and width, each at least 1; ValueError for anything else."""
    if not isinstance(grid, Sequence) or len(grid) != 2:
        raise ValueError(f"{name} must be (height, width), got {shown(grid)}")
    return whole(f"{name}[0]", grid[0]), whole(f"{name}[1]", grid[1])


def is_number(value: object) -> bool:
    """Whether it is a real number: an int, a float, or NumPy's. True and False are none."""
    return not isinstance(value, bool) and isinstance(value, Real)


def one_or(size: int, n: int) -> bool:
    """Whether a size is 1 or n, so that it can be broadcast to n. By "==", since in a graph of any lengths, where sizes
    are symbols, none is found in a tuple."""
    return size == 1 or size == n


def number(name: str, value: Any, above: int | float = -math.inf) -> float:
    """The finite number above ``above``, as a float. ValueError for any other, and for True or "12"."""
    try:
        found = float(value) if is_number(value) else math.nan
    except OverflowError:  # a whole number past the largest float
        found = math.inf
    if above < found < math.inf:
        return found
    beyond = "" if above == -math.inf else f" above {above:g}"
    raise ValueError(f"{name} must be a finite number{beyond}, got {shown(value)}")


def check_flag(name: str, value: Any) -> None:
    """ValueError for what is neither True nor False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")


def check_choice(name: str, value: Any, choices: Sequence[Any], more: str = "") -> None:
    """ValueError, with ``more`` at its end, for what is none of the choices, which are all words or all dtypes."""
    if not isinstance(value, type(choices[0])) or value not in choices:
        raise ValueError(f"{name} must be {_either(list(map(repr, choices)))}, got {shown(value)}{more}")


def check_name(name: str, value: str, names: Sequence[str], more: str = "") -> None:
    """ValueError, with the closest of the ``names``, for a text that is none of them; ``more`` says what else may be.

    >>> check_name("figure", "tabel", ("lines", "table"))
    Traceback (most recent call last):
    ...
    ValueError: figure must be one of lines, table, got 'tabel' (did you mean 'table'?)
    """
    if value not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}{more}, got {value!r}{meant(value, names)}")


def meant(value: object, names: Sequence[str]) -> str:
    """The end of an error: the closest of the names, where one is close."""
    close = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_type(name: str, value: Any, *kinds: type | None) -> None:
    """ValueError for what is of none of these types; None stands for itself."""
    for kind in kinds:
        if value is None if kind is None else isinstance(value, kind):
            return
    named = ["None" if kind is None else f"{_article(kind.__name__)} {kind.__name__}" for kind in kinds]
    raise ValueError(f"{name} must be {_either(named)}, got {shown(value)}{_hint(kinds, value)}")


def _hint(kinds: Sequence[type | None], value: Any) -> str:
    """How positions are made of what models hand about in their place."""
    if "Positions" not in {getattr(kind, "__name__", "") for kind in kinds} or type(value).__name__ != "Tensor":
        return ""
    return "; make them by Positions.from_ids(position_ids, mask), or of a mask of tokens by Positions.padded(mask)"


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _article(noun: str) -> str:
    return "an" if noun[0] in "AEIOU" else "a"
