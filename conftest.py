"""Shapes are checked where POSENC_SHAPES=1 asks for it: beartype then guards every jaxtyping annotation of posenc.

Not always, since the tests of error messages hand over wrong shapes on purpose, and torch.compile cannot see through
the guards.
"""

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

from tests.availability import NO_TRITON
from tests.scheme_variants import SCHEME_VARIANTS

if os.environ.get("POSENC_SHAPES") == "1":
    install_import_hook("posenc", "beartype.beartype")
# Processes that tests start find what this one finds: the folders named tests are one namespace, of several packages.
ROOT = Path(__file__).parent
PARTS = (ROOT, *sorted((ROOT / "packages").iterdir()), ROOT / "research")
os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, PARTS), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("POSENC_RACES", "0")  # what is taken must not depend on the machine, but where races are tested
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell has put into the background; tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    # torch.manual_seed notes a traceback for every kind of device that is not there, a millisecond each.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def _same_path() -> Generator[None]:
    """Importing a user's file puts its folder first, as Python does for a script; a process that a later test starts
    would take its modules for the standard library's."""
    before = sys.path[:]
    yield
    sys.path[:] = before


DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, and a CUDA device where there is one: a test that takes it runs on each."""
    return torch.device(request.param)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is there before the first test stays until the last, so the garbage collector need not go through it: not
    while it is made, a third of that time, and not later, half a second each time."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


OF_ALL_SCHEMES = (
    *("backends/test_parity", "backends/test_flex", "backends/test_budgets", "models/test_cache"),
    *("models/test_transformer", "property/test_properties", "compare/test_tasks", "bench/test_run", "plot/test_plots"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as ``more`` what is tried on a scheme that is like another. Those that take longest begin first, so that no
    process waits for another that has just begun one."""
    for item in items:
        if item.path.with_suffix("").as_posix().endswith(OF_ALL_SCHEMES) and isinstance(item, pytest.Function):
            callspec = getattr(item, "callspec", None)
            names = {str(getattr(x, "name", x)) for x in callspec.params.values()} if callspec else set()
            if names & SCHEME_VARIANTS:
                item.add_marker("more")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What is marked gpu or triton is skipped where there is no CUDA device or no Triton, and says so."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none")
    if item.get_closest_marker("triton") and NO_TRITON:
        pytest.skip(NO_TRITON)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where mutants were not left out: what caught each planted bug, and which escaped."""
    caught, failed, broken = (
        [report for report in terminalreporter.getreports(outcome) if "mutant" in getattr(report, "keywords", ())]
        for outcome in ("passed", "failed", "error")
    )
    escaped = [*failed, *broken]
    if "not mutant" in config.option.markexpr or not (caught or escaped):
        return
    terminalreporter.section("planted bugs")
    for report in sorted(caught, key=lambda report: report.nodeid):
        terminalreporter.line(
            f"caught   {report.nodeid}\n         by {dict(report.user_properties).get('caught by', 'its own test')}"
        )
    for report in escaped:
        terminalreporter.line(f"ESCAPED  {report.nodeid}", red=True)
    terminalreporter.line(f"{len(caught)} caught, {len(escaped)} escaped")
