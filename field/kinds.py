"""What a note on a finding says, and a fault that no check looks for."""

from typing import NamedTuple

WRONG = "mistake"  # what it says it does, it does not do
LIMIT = "limitation"  # it says so, or it fails with an error, or it takes unusual use to meet it
MEANT = "by design"  # a choice, which who uses it should know of
TIDY = "housekeeping"  # no output is wrong by this alone


class Note(NamedTuple):
    """Speaks of findings of ``checks`` in subjects of ``file`` (its beginning will do) with these ``names`` (none: all)
    in trials whose name begins with one of ``trials``. The first note that fits is taken."""

    file: str
    checks: tuple[int, ...]
    title: str
    kind: str
    text: str
    where: str = ""
    names: tuple[str, ...] = ()
    trials: tuple[str, ...] = ("",)


class Fault(NamedTuple):
    """``script`` is its name in docs/field-scripts, ``where`` the file and function, ``instead`` the way out."""

    script: str
    title: str
    kind: str
    text: str
    where: str
    instead: str
    upstream: str = ""
    package: str = "transformers"
