"""What the report of an extension shows is what was recorded."""

import math
from typing import Any

import pytest

from posenc.extend import pictures
from posenc.extend.summary import STRETCHES, Summary

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
    assert points[0][1].low >= 0.5
    assert points[0][1].high <= 2.5
    uneven = record("by_position", "none", 0, edges=[0, 8, 32, 256], bits=[4.0, 8.0, 1.0])
    assert Summary([uneven, record("final", "none", 0, bits=1.0, tokens=8)]).by_position("none")[0][1].mean == 7.0


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
