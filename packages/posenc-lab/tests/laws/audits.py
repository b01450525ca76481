"""The audit of each scheme, made once for all tests of a process."""

from functools import cache

from posenc_lab.laws.table import Audit, audit


@cache
def audit_of(names: str) -> Audit:
    return audit(names)
