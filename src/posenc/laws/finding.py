"""What measuring a law gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from posenc.schemes.entry import Law

EPS = 2.0**-52  # float64, in which everything is measured unless it says otherwise


@dataclass(frozen=True)
class Finding:
    """What measuring a law gave.

    ``holds`` is None where the law makes no sense for the scheme; ``words`` then say why, and otherwise what ``value``
    is. ``threshold`` is what the value was held against, and ``numbers`` whatever else was measured on the way.
    """

    law: str
    holds: bool | None
    value: float | None
    threshold: float | None
    words: str
    numbers: Mapping[str, float | int] = field(default_factory=dict)


def not_applicable(law: Law, words: str) -> Finding:
    return Finding(law, None, None, None, words)
