"""What the report of an extension shows is what was recorded."""

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from posenc.extend import pictures, report
from posenc.extend.settings import Extension
from posenc.extend.summary import STRETCHES, Summary
from posenc.lab.summary import Interval

EDGES = [0, 16, 32, 64, 96, 128, 160, 192, 224, 256]


def record(kind: str, scheme: str, seed: int, **result: Any) -> dict[str, Any]:
    about = {"configuration": {"trained_length": 128}, "kind": kind, "scheme": scheme, "seed": seed, "length": 256}
    return {**about, **result}


def recorded(scheme: str, shift: float = 0.0) -> list[dict[str, Any]]:
    pieces = [[n + shift + piece for n in range(9)] for piece in (0, 2)]
    places = [record("by_position", scheme, n, edges=EDGES, bits=bits) for n, bits in enumerate(pieces)]
    return [*places, record("final", scheme, 0, bits=1.0, tokens=8)]


def test_buckets_become_stretches_each_weighing_as_many_tokens_as_it_is_wide() -> None:
    points = Summary(recorded("none")).by_position("none")
    assert len(points) == STRETCHES == 8
    # The first two buckets, of 16 tokens each, are the first stretch of 32; the others are a stretch each.
    assert [x for x, _ in points] == [16 + 32 * n for n in range(8)]
    assert [value.mean for _, value in points] == pytest.approx([1.5, *range(3, 10)])
    # Student's t of one degree of freedom stays within 12.7062; the standard error of (0.5, 2.5) is 1.
    assert (points[0][1].low, points[0][1].high) == pytest.approx((1.5 - 12.7062, 1.5 + 12.7062), abs=1e-4)
    uneven = record("by_position", "none", 0, edges=[0, 8, 32, 256], bits=[4.0, 8.0, 1.0])
    assert Summary([uneven, record("final", "none", 0, bits=1.0, tokens=8)]).by_position("none")[0][1].mean == 7.0


def test_an_interval_is_students_t() -> None:
    """Quantiles of the printed tables; a bootstrap of four values would say 0.75 of what must be said."""
    table = {2: 12.7062, 3: 4.3027, 4: 3.1824, 5: 2.7764, 8: 2.3646, 9: 2.3060, 31: 2.0423}
    for count, quantile in table.items():
        values = [float(n % 3) for n in range(count)]
        records = [record("final", "none", n, bits=value, tokens=8) for n, value in enumerate(values)]
        found = Summary(records).bits("none", 256)
        assert found is not None
        error = statistics.stdev(values) / math.sqrt(count)
        assert found.mean == pytest.approx(statistics.mean(values))
        assert (found.high - found.mean, found.mean - found.low) == pytest.approx((quantile * error,) * 2, abs=1e-4)
    one = Summary([record("final", "none", 0, bits=1.0, tokens=8)]).bits("none", 256)
    assert one == Interval(1.0, -math.inf, math.inf)


def test_a_report_without_a_finite_baseline_or_of_one_piece_is_drawn(tmp_path: Path) -> None:
    full = {**Extension(model="m", lengths=(128, 256), tasks=("text",), trained_length=128, windows=1 + 1).to_dict()}
    about = {
        "configuration": full,
        "text": {"about": "a text"},
        "model": "m",
        "versions": {},
        "machine": {},
        "time": "",
    }

    def final(scheme: str, length: int, bits: float | None) -> dict[str, Any]:
        return {**about, "kind": "final", "scheme": scheme, "seed": 0, "length": length, "bits": bits, "tokens": 8}

    records = [final("none", 128, None), final("none", 256, 2.0), final("cropped", 128, None)]
    page = report.write(records, tmp_path).read_text()
    assert "which has not finite" in page
    assert "Dashed" not in page
    assert "one piece" in page
    assert "cropped: final at 128 (1 of 2)" in page
    without = report.write(records[:2], tmp_path).read_text()
    assert "the plain model on text cropped to 128 tokens is missing" in without


def test_what_was_asked_for_in_parts_is_missing_and_repeated_as_a_whole() -> None:
    def asked(scaling: str, **changes: Any) -> dict[str, Any]:
        given = {"model": "m", "tasks": ("item",), "trained_length": 32, "windows": 2, "factor": 8 / 3, **changes}
        configuration = Extension(scalings=(scaling,), **given).to_dict()
        about = {"configuration": configuration, "kind": "item", "scheme": scaling, "seed": 10, "length": 128}
        return {**about, "found": 0, "bits": 1.0, "depth": 10, "tokens": 128}

    first = asked("none", lengths=(128,), depths=(10,), trials=1)
    assert Summary([first]).missing() == []
    summary = Summary([first, asked("linear", lengths=(96, 128), depths=(0, 10), trials=1)])
    assert summary.missing() == [
        f"{scaling}: item at 96 (0 of 2), item at 128 (1 of 2)" for scaling in ("none", "linear")
    ]
    command = report.command(summary)
    for words in ("none,linear", "--lengths 96,128", "--depths 0,10", "--factor 2.6666666666666665"):
        assert words in command


def test_a_stretch_with_a_value_that_is_not_finite_is_not_finite() -> None:
    records = recorded("none")
    records[0]["bits"][1] = None
    first, second, *_ = (value.mean for _, value in Summary(records).by_position("none"))
    assert math.isnan(first)
    assert second == pytest.approx(3.0)


def test_the_picture_marks_the_trained_length_and_what_is_off_it_is_told_apart() -> None:
    summary = Summary([*recorded("none"), *recorded("linear", 40.0), *recorded("yarn", 50.0)])
    for dark in (False, True):
        figure = pictures.by_position(summary, dark)
        (axes,) = figure.axes
        assert axes.get_xscale() == "linear"
        words = [text.get_text() for text in axes.texts]
        assert "trained: 128" in words
        off = [text for text in axes.texts if text.get_text().startswith("\u2191")]
        assert {"\u219141.5", "\u219151.5"} <= {text.get_text() for text in off}
        assert len({(text.xy, text.xyann) for text in off}) == len(off)
        assert len({(text.xy, text.xyann[1]) for text in off}) == len(off)
