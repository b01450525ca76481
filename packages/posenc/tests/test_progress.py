import io

import pytest

from posenc.command import progress
from posenc.command.progress import Progress, for_stream


class CumulativeBias:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> CumulativeBias:
    clock = CumulativeBias()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_no_time_is_told_before_there_is_a_pace_and_setting_up_is_no_part_of_it(clock: CumulativeBias) -> None:
    told = Progress()
    told.begin(1000)
    assert told.left == ""
    clock.now += 60  # a model is built, and compiled
    told.advance(1, "first")
    assert told.left == ""
    clock.now += 1
    told.advance(10, "second")
    assert told.left == ""  # 1 % of the work in a second
    clock.now += 4
    told.advance(40, "third")
    assert told.left == "1:35 left"  # 949 at 10 a second
    told.skip(849)
    assert told.left == "0:10 left"


def test_work_that_has_become_slower_is_told_by_its_present_pace(clock: CumulativeBias) -> None:
    """As passes of longer texts are, and passes on a machine that became busy."""
    told = Progress()
    told.begin(100)
    told.advance(1, "the first")
    for _ in range(20):
        clock.now += 1
        told.advance(1, "short")
    assert told.left == "1:19 left"
    for _ in range(10):
        clock.now += 4
        told.advance(1, "long")
    assert told.left == "4:36 left"  # 69 at 4 seconds each; by the mean pace 2:18
    for _ in range(40):
        clock.now += 1
        told.advance(1, "short")
    assert told.left == "0:41 left"  # 29 at the mean of 100 seconds for 70


def test_slow_work_is_told_after_a_while(clock: CumulativeBias) -> None:
    told = Progress()
    told.begin(1000)
    told.advance(1, "first")
    clock.now += 36
    told.advance(1, "second")
    assert told.left == "9:58:48 left"


def test_lines_leave_out_what_is_not_told(clock: CumulativeBias) -> None:
    file = io.StringIO()
    lines = for_stream(file)
    lines.begin(100)
    lines.advance(1, "one")
    clock.now += 2
    lines.advance(49, "two", "3/4")
    assert file.getvalue() == "  1%  one\n 50%  two 3/4  (0:02 left)\n"


def test_what_was_done_earlier_counts_in_the_share(clock: CumulativeBias) -> None:
    file = io.StringIO()
    lines = for_stream(file)
    lines.begin(100)
    lines.skip(70)
    lines.advance(5, "resumed")
    assert file.getvalue() == " 75%  resumed\n"
