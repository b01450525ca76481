"""Collects the checks, one a file, in the order of their numbers. A file without a CHECK has MORE trials of one."""

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from posenc.tools.check.trial import Check, Trial


def _checks() -> tuple[Check, ...]:
    checks: dict[int, Check] = {}
    more: list[tuple[int, tuple[Trial, ...]]] = []
    for module in iter_modules(__path__):
        file = import_module(f"{__name__}.{module.name}")
        if hasattr(file, "CHECK"):
            checks[file.CHECK.number] = file.CHECK
        else:
            more.append(file.MORE)
    for number, trials in more:
        checks[number] = replace(checks[number], trials=checks[number].trials + trials)
    return tuple(checks[number] for number in sorted(checks))


CHECKS = _checks()
