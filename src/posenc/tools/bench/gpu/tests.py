"""The tests of the kernels on the device, where the repository and pytest are there: each is an item of a step."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from posenc.tools.bench.gpu.place import Place
from posenc.tools.bench.gpu.step import Answer, Result, Step, answer_each

ROOT = Path(__file__).parents[5]
FILES = ("test_triton*.py", "test_rotation_kernel.py")
MARK = "item: "
COLLECTING = 45  # seconds
FEW = 3  # in a dry run: `make triton` runs all of them


def _files() -> list[str]:
    """The files with these tests; none outside of a repository, or without pytest."""
    if importlib.util.find_spec("pytest") is None:
        return []
    return [str(path) for pattern in FILES for path in sorted((ROOT / "tests" / "backends").glob(pattern))]


class _Items:
    """A plugin of pytest that names the tests it would run, or runs those that it is asked for."""

    def __init__(self, run: Callable[[dict[str, Any]], None]) -> None:
        self.run, self.reports = run, list[Any]()

    def pytest_runtestloop(self, session: Any) -> bool:
        self.run({item.nodeid: item for item in session.items})
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.reports.append(report)


def _pytest(place: Place, plugin: _Items) -> int:
    import pytest

    # A warning of another version of a library is no failure here.
    how = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "filterwarnings=default", "--rootdir", str(ROOT)]
    chosen = "not gpu and not slow" if place.is_dry else "gpu"
    return int(pytest.main([*how, "-m", chosen, *_files()], plugins=[plugin]))


def _names(place: Place) -> Sequence[str]:
    """As a process of its own lists them, since what pytest imports stays."""
    if not _files():
        return ()
    words = [sys.executable, "-m", __name__, *(["dry"] if place.is_dry else [])]
    try:
        told = subprocess.run(words, capture_output=True, text=True, check=False, timeout=COLLECTING)
    except subprocess.TimeoutExpired:
        raise ValueError(f"pytest did not collect the tests of the kernels within {COLLECTING} s") from None
    lines = [line.removeprefix(MARK) for line in told.stdout.splitlines() if line.startswith(MARK)]
    if told.returncode or not lines:
        lines = [line for line in told.stdout.splitlines() if line.startswith(("E  ", "ERROR"))]
        raise ValueError(f"pytest could not collect the tests of the kernels: {' '.join(lines)[:300]}")
    return lines[:FEW] if place.is_dry else lines


def _serve(place: Place, names: Iterator[str], ready: Callable[[], None], answer: Answer) -> None:
    def loop(items: dict[str, Any]) -> None:
        ready()
        answer_each(place, lambda name: of(items[name]), names, answer)

    def of(item: Any) -> Result:
        plugin.reports.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        outcomes = {report.outcome for report in plugin.reports}
        if "failed" in outcomes:
            told = next(str(report.longreprtext) for report in plugin.reports if report.outcome == "failed")
            return {"passed": False, "told": told[-2000:]}
        if "skipped" in outcomes:
            return {"left_out": str(plugin.reports[-1].longrepr)[:300]}
        return {"passed": True}

    plugin = _Items(loop)
    _pytest(place, plugin)


TESTS = Step("tests", "The tests of the kernels", 50, 45, _names, _serve, workers=0)


if __name__ == "__main__":
    _pytest(Place("dry" in sys.argv), _Items(lambda items: print("", *(MARK + name for name in items), sep="\n")))
