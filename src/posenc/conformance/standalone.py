"""A finding as a script: the code that found it, copied out of the files it stands in, so that it runs without them.

Files of this package, and files that import it, are copied; all else is imported. A file that is copied is cut into the
statements at its top level: the script gets those that bind or change a name that something in it uses, in their order,
and of a class the methods that something may call. A name that two files have is changed in one of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

import torch

from posenc.conformance.outcome import Outcome
from posenc.conformance.sources import OWN, Sources, is_at_top_level
from posenc.conformance.subjects import Batch, Subject
from posenc.conformance.trial import Case, Trial

MARK = "# A finding of posenc check, which this script repeats without posenc."  # how every script begins


def script(subject: Subject, trial: Trial, case: Case, heading: str) -> str:
    """A Python script that runs one trial on one case: it prints what was expected and what came, and exits with 1
    where they differ. It holds what it needs of this package; the subject it imports, or holds where the file that
    builds it imports this package. ``heading`` is what it says of itself at its beginning.

    Raises ValueError as `check_sources` does.
    """
    claims, batch, values = given(subject), given(case.batch), dict(case.values)
    sources = Sources()
    for part in (Batch, Outcome, type(subject), subject.build, subject.call, trial.function, "build", "call"):
        sources.add(part)
    for part in _parts([*claims.values(), *batch.values(), *values.values()]):
        sources.add(part)
    name = sources.settle(("subject", "batch", "outcome", "error"))

    def written(values: dict[str, Any]) -> list[str]:
        return [f"{key}={literal(value, key, name)}" for key, value in values.items()]

    used = {key: value for key, value in claims.items() if sources.mentions(key) or not _is_own(subject, key)}
    lines = [
        MARK,
        *(f"# {line}".rstrip() for line in heading.splitlines()),
        "",
        *sources.lines(),
        f"subject = {name(type(subject))}(",
        f"    build={name(subject.build)},",
        f"    call={name(subject.call)},",
        *(f"    {line}," for line in written(used)),
        ")",
        f"batch = {name(Batch)}({', '.join(written(batch))})",
        "try:",
        f"    outcome = {name(trial.function)}({', '.join(['subject', 'batch', *written(values)])})",
        "except Exception as error:",
        f'    outcome = {name(Outcome)}(False, "an answer", f"{{type(error).__name__}}: {{error}}")',
        'print("expected:", outcome.expected)',
        'print("came:    ", outcome.came)',
        "raise SystemExit(0 if outcome.ok else 1)",
    ]
    return "\n".join(lines) + "\n"


def check_sources(subject: Subject) -> None:
    """ValueError unless a script can be made of the subject: its class, ``build`` and ``call`` are at the top level of
    files that can be read, and its options are values that can be written down."""
    sources = Sources()
    for part, name in ((type(subject), "its class"), (subject.build, "build"), (subject.call, "call")):
        _require_top_level(part, name)
        sources.add(part)
    for name, value in given(subject).items():
        literal(value, name, lambda part: part.__name__)


def literal(value: Any, name: str, name_of: Callable[[Any], str]) -> str:
    """Source that makes the value again, where ``name_of`` says what functions and classes are called.

    Raises ValueError for what is not made of numbers, text, dtypes, lists, dictionaries, and functions at the top level
    of a file.
    """
    if value is None or type(value) in (bool, int, str):
        return repr(value)
    if type(value) is float:
        return repr(value) if value - value == 0 else f'float("{value}")'
    if isinstance(value, torch.dtype):
        return f"{name_of(torch)}.{str(value).removeprefix('torch.')}"
    if isinstance(value, torch.device):
        return f'{name_of(torch)}.device("{value}")'
    if type(value) is dict:
        pairs = (f"{literal(key, name, name_of)}: {literal(item, name, name_of)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if type(value) in (list, tuple, torch.Size):
        inside = [_run(value)] if _run(value) else [literal(item, name, name_of) for item in value]
        return (
            f"[{', '.join(inside)}]" if isinstance(value, list) else f"({', '.join(inside)}{',' * (len(inside) == 1)})"
        )
    if callable(value) and not isinstance(value, Enum):
        _require_top_level(value, name)
        return name_of(value)
    raise ValueError(
        f"{name} must be made of numbers, text, dtypes, lists and dictionaries, so that a script can repeat what is "
        f"found; got {value!r}"
    )


def _run(values: Any) -> str:
    """A run of whole numbers, written shortly."""
    if len(values) <= 8 or any(type(value) is not int for value in values):
        return ""
    run = range(values[0], values[0] + len(values))
    return f"*range({run.start}, {run.stop})" if list(values) == list(run) else ""


def _require_top_level(part: Any, name: str) -> None:
    if not is_at_top_level(part):
        raise ValueError(
            f"{name} must be a function or class at the top level of a file, so that a script can repeat what is "
            f"found; got {part!r}. What varies goes into options"
        )


def given(value: Subject | Batch) -> dict[str, Any]:
    """The fields that are not what they would be by themselves, but for ``build`` and ``call``."""
    found = {}
    for item in fields(value):
        empty = item.default if item.default_factory is MISSING else item.default_factory()
        if item.name not in ("build", "call") and getattr(value, item.name) != empty:
            found[item.name] = getattr(value, item.name)
    return found


def _parts(value: Any) -> Iterator[Any]:
    """The functions, classes and modules that the literal of a value names, and the text in it."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, torch.dtype | torch.device):
        yield torch
    elif callable(value) or isinstance(value, str):
        yield value


def _is_own(subject: Subject, name: str) -> bool:
    """Whether a field of the subject is one of this package, which is read where some code of it says so."""
    homes = [kind.__module__ for kind in type(subject).__mro__ if name in inspect.get_annotations(kind)]
    return homes[0].startswith(OWN)
