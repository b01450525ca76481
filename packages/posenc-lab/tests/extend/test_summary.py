"""What the report of an extension shows is what was recorded."""

import math
from pathlib import Path
from typing import Any

import pytest

from posenc_lab.extend import report
from posenc_lab.extend.settings import Extension
from posenc_lab.extend.summary import STRETCHES, Summary
from posenc_lab.kit.report import Cell

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


def final(scheme: str, length: int, bits: float | None, seed: int = 0) -> dict[str, Any]:
    """A record of a piece of text, with all that a report says of it."""
    full = Extension(model="m", lengths=(128, 256), trained_length=128, windows=2).to_dict()
    about = {"configuration": full, "text": {"about": "a text"}, "model": "m", "card": "Its card is blank."}
    told = {**about, "versions": {}, "machine": {}, "time": "", "file": f"book/{seed}.txt", "byte": 1000 + seed}
    return {**told, "kind": "final", "scheme": scheme, "seed": seed, "length": length, "bits": bits, "tokens": 8}


def differing(scheme: str, difference: float, deviation: float, pieces: int) -> list[dict[str, Any]]:
    """A scaling at 256 tokens whose bits are the cropped text's and a difference, varying so much and balanced."""
    shifts = [difference + deviation * (-1) ** n for n in range(pieces)]
    return [final(scheme, 256, 1.0 + 0.1 * n + shift, n) for n, shift in enumerate(shifts)]


def compared(pieces: int) -> list[dict[str, Any]]:
    cropped = [final("cropped", 128, 1.0 + 0.1 * n, n) for n in range(pieces)]
    many = (("none", 0.5, 0.01), ("linear", 0.0, 0.01), ("yarn", -0.1, 0.01), ("ntk", 0.01, 0.1))
    return [*cropped, *(r for each in many for r in differing(*each, pieces))]


def test_ties_are_said_where_they_are_shown_and_undecided_where_not() -> None:
    summary = Summary(compared(8))
    found = report.observed(summary)
    # Of 8 pieces the standard deviation is sqrt(8 / 7) of what they vary by, and t is 2.3646.
    assert found[0] == (
        "At 256 tokens, 2× the trained length, bits per byte compared with the unscaled model's on text cropped to 128 "
        "tokens: higher: none (+0.500); lower: yarn (−0.100); tied: linear (+0.000); undecided: ntk (+0.010)."
    )
    assert found[1] == ("Estimated number of pieces for a 95 % interval of ±0.02 bits per byte: ntk at 256 tokens 120.")
    half = 2.3646 * 0.1 * math.sqrt(8 / 7) / math.sqrt(8)
    cell = Cell(*report._row(summary, "ntk")[-1]).notes[-1]
    assert cell == f"+0.010 (−{half - 0.01:.3f} to +{half + 0.01:.3f}) undecided"
    table = report.terminal_table(compared(8))
    marks = [str(cell)[-2:] for cell in list(table.columns[-1].cells)]
    assert marks == [" >", " =", " <", " ?"]
    assert str(table.caption).endswith("<, =, >, ?: lower than that, tied, higher, undecided.")


def test_few_pieces_are_given_no_verdict(tmp_path: Path) -> None:
    found = report.observed(Summary(compared(4)))
    assert found[0].endswith("too few pieces to say: none (+0.500), linear (+0.000), yarn (−0.100), ntk (+0.010).")
    assert found[1].endswith(
        "none at 256 tokens 8, linear at 256 tokens 8, yarn at 256 tokens 8, ntk at 256 tokens 140."
    )
    page = report.write(compared(4), tmp_path).read_text()
    table = page[page.index('<table id="scalings">') :].partition("</table>")[0]
    assert "−0.100 (−0.118 to −0.082)<" in table
    assert not any(word in table for word in ("tied", "lower", "higher", "undecided", "too few"))
    assert "too few pieces to say: fewer than 8, so that nothing is known of other text" in page
    assert page.count("too few pieces to say: ") == 2  # what it is of, and what it means
    assert "excludes zero" not in page
    table = report.terminal_table(compared(4))
    assert str(table.caption) == (
        "?: too few pieces of text; nothing can be said on 4 of them, a verdict takes 8 (--windows)."
    )
    # A model that is half a bit worse does not look like one that is as good.
    assert [str(cell)[-2:] for cell in table.columns[-1].cells] == [" ?"] * 4


def test_the_report_names_the_pieces_and_what_the_model_may_have_seen(tmp_path: Path) -> None:
    records = [*compared(2), final("none", 128, 1.0, 0)]
    page = " ".join(report.write(records, tmp_path).read_text().split())
    table = page[page.index('<table id="pieces">') :].partition("</table>")[0]
    assert '<th scope="row">book/1.txt</th> <td class="number">1,001</td> <td class="number">1.590</td>' in table
    assert table.count("<tr>") == 1 + 2
    seen = page[page.index('<p id="seen">') :].partition("</p>")[0]
    for words in (
        "The model may have been trained on the test text; posenc cannot know. Its card is blank.",
        "the losses may be too low",
        "Differences between scalings are less affected",
    ):
        assert words in seen


def test_what_was_asked_for_in_parts_is_missing_and_repeated_as_a_whole() -> None:
    def asked(scaling: str, lengths: tuple[int, ...]) -> dict[str, Any]:
        given = {"model": "m", "trained_length": 32, "windows": 2, "factor": 8 / 3}
        return {
            **final(scaling, 128, 1.0),
            "configuration": Extension(**given, scalings=(scaling,), lengths=lengths).to_dict(),
        }

    summary = Summary([asked("none", (128,)), asked("linear", (96, 128))])
    left = "final at 96 (0 of 2), final at 128 (1 of 2), by_position at 128 (0 of 2)"
    assert summary.missing() == [f"none: {left}", f"linear: {left}", "cropped: final at 32 (0 of 2)"]
    command = report.command(summary)
    for words in ("none,linear", "--lengths 96,128", "--factor 2.6666666666666665"):
        assert words in command


def test_the_picture_marks_the_trained_length_and_has_numbers_for_what_is_off_it() -> None:
    summary = Summary([*recorded("none"), *recorded("linear", 40.0), *recorded("yarn", 50.0)])
    for dark in (False, True):
        (axes,) = report.by_position(summary, dark).axes
        assert next(line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":") == 128
        words = {text.get_text() for text in axes.texts}
        assert {"none", "linear", "yarn", "49.00 \u2191", "59.00 \u2191"} <= words
