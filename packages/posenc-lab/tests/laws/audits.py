"""The audit of each scheme, made once for all tests of a process."""

from functools import cache

from posenc.schemes.catalog import entries_of
from posenc_lab.laws.laws import LAWS
from posenc_lab.laws.probe import Probe
from posenc_lab.laws.table import Audit, audit


@cache
def audit_of(names: str) -> Audit:
    return audit(names)


def check_claim(name: str, law: str) -> None:
    """The law holds if the catalog claims it of the scheme, and does not hold if it does not."""
    (entry,) = entries_of(name)
    finding = LAWS[law](Probe.named(name))
    assert (finding.holds is True) == (law in entry.laws), finding.words
