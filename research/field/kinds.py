"""What is said of a finding: its kind, and where and why it is so."""

from typing import NamedTuple

WRONG = "mistake"  # what it says it does, it does not do
LIMIT = "limitation"  # it says so, or it fails with an error, or it takes unusual use to meet it
MEANT = "by design"  # a choice, which who uses it should know of
TIDY = "housekeeping"  # no output is wrong by this alone


class Note(NamedTuple):
    """Speaks of findings of ``checks`` in subjects of ``file`` (its beginning will do) with these ``names`` (none: all)
    in trials whose name begins with one of ``trials``. The first note that fits is taken. ``script`` of
    field/reproductions shows it without posenc, and every mistake has one; ``instead`` is the way out."""

    file: str
    checks: tuple[int, ...]
    title: str
    kind: str
    text: str
    where: str = ""
    names: tuple[str, ...] = ()
    trials: tuple[str, ...] = ("",)
    script: str = ""
    instead: str = ""


class Fault(NamedTuple):
    """What a script of field/reproductions shows. ``script`` is its name, ``where`` the file and function, ``instead``
    the way out."""

    script: str
    title: str
    kind: str
    text: str
    where: str
    instead: str
    upstream: str = ""
    package: str = "transformers"
