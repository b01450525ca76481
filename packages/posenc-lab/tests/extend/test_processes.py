"""posenc extend over several processes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers needs Python 3.11")

from posenc_lab.extend import run
from posenc_lab.extend.settings import Extension
from posenc_lab.kit.records import Record, key, read
from tests.distributed.processes import in_processes


def results(records: list[Record]) -> dict[Any, Any]:
    """The numbers of each record."""
    return {(key(record), n): value for record in records for n, value in enumerate(np.ravel(record["bits"]).tolist())}


def extended(given: tuple[Extension, Path]) -> int:
    return len(run.extend(*given))


@pytest.mark.more
def test_two_processes_measure_what_one_does(settings: Extension, tmp_path: Path) -> None:
    """Three pieces do not divide by two."""
    its = replace(settings, scalings=("none", "linear"), windows=3, lengths=(96, 128))
    counts = in_processes(2, tmp_path, extended, (its, tmp_path / "both"))
    alone, found = run.extend(its, tmp_path / "alone"), read(tmp_path / "both")
    assert counts == [len(alone), 0]
    assert len({key(record) for record in found}) == len(found) == len(alone)
    assert {record["machine"]["processes"] for record in found} == {2}
    # Steps of float32, whose results of about 8 bits are told to the sixth digit.
    assert results(found) == pytest.approx(results(alone), abs=64 * 8 * 2**-23 + 1e-6)
