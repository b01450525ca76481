from pathlib import Path

import pytest

from posenc_lab.bench import measure as watched
from posenc_lab.bench.measure import Moment, now, others

BEGIN = Moment(wall=100.0, every=5000.0, own=70.0)


def test_what_is_not_this_process_is_others() -> None:
    # In 10 seconds 18 were worked, 12 of them by this process; a tick of each of 2 cores, 0.01 s, may be nobody's.
    assert others(BEGIN, Moment(110.0, 5018.0, 82.0), cores=2) == pytest.approx((6 - 0.02) / 10)


def test_what_the_system_does_not_count_is_not_known() -> None:
    assert others(BEGIN._replace(every=None), Moment(110.0, 5018.0, 82.0), cores=2) is None
    assert others(BEGIN, Moment(110.0, None, 82.0), cores=2) is None
    assert others(BEGIN, Moment(110.0, 5000.0, 82.0), cores=2) is None  # and this process worked for 12 s


def test_busy_is_all_but_idle_and_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # user, nice, system, idle, waiting for a disk, two kinds of interrupts, taken by the host, guests (in user)
    (tmp_path / "stat").write_text("cpu  100 20 30 9999 8888 4 5 600 70 8\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    monkeypatch.setattr(watched, "STAT", tmp_path / "stat")
    monkeypatch.setattr("os.sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    assert now().every == pytest.approx(7.59)
    monkeypatch.setattr(watched, "STAT", tmp_path / "none")
    assert now().every is None
