"""The report as its reader's browser and terminal get it."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from posenc_lab.compare import report
from posenc_lab.compare.text import Text
from posenc_lab.kit.titles import titled
from tests.compare import synthetic_records
from tests.compare.test_summary import THREE, bits
from tests.kit.pages import Page

# Drawing takes longer than all else here, and the pictures have tests of their own.
DRAWN = [name for group in Text.figures for name in group]
PIXEL = {name: {False: b"light " + name.encode(), True: b"dark " + name.encode()} for name in DRAWN}


def page(records: list[dict[str, Any]]) -> Page:
    parsed = Page(report.html(records, PIXEL))
    assert not parsed.open
    return parsed


def test_it_is_one_file_that_asks_for_nothing() -> None:
    html = report.html(synthetic_records.records(), PIXEL)
    assert "http:" not in html
    assert "https:" not in html
    assert not re.search(r"@import|url\(", html)
    for tag, attributes in Page(html).tags:
        assert tag not in ("script", "iframe", "object", "embed")
        for name in ("src", "srcset", "href"):
            assert attributes.get(name, "data:").startswith("data:")


def test_every_scheme_has_its_numbers() -> None:
    records = synthetic_records.records()
    parsed = page(records)
    for scheme in synthetic_records.SCHEMES:
        row = parsed.row("schemes", titled(scheme))
        for cell, length in zip(row[1:6], synthetic_records.LENGTHS, strict=True):
            if scheme == "learned" and length > synthetic_records.TRAIN_LENGTH:
                assert cell == "undefined"
            else:
                assert cell.startswith(f"{bits(records, 'sliding', scheme, length).mean():.3f} ")
        trained = next(r for r in records if r["kind"] == "training" and r["scheme"] == scheme)
        timed = next(r for r in records if r["kind"] == "speed" and r["scheme"] == scheme)
        assert row[6:] == [
            f"{trained['parameters']:,} {trained['position_parameters']:,}",
            f"{timed['step_ratio']:.2f}× {timed['low']:.2f}–{timed['high']:.2f}",
            f"{trained['peak_bytes'] / 1e6:,.0f} MB",
        ]
    assert parsed.row("schemes", "Learned")[0] == "Learned undefined past 128"
    assert "Learned is undefined past 128: Learned has 128 positions, 0 to 127; got position 255" in parsed.text


def test_the_best_of_every_length_are_marked_from_three_seeds_on() -> None:
    for seeds in ((0,), (0, 1)):
        assert 'class="number best">' not in report.html(synthetic_records.records(seeds=seeds), PIXEL)
    records = synthetic_records.records(seeds=THREE)
    best = re.findall(r'class="number best">([\d.]+)<', report.html(records, PIXEL))
    expected = [
        ("rope", 64),
        ("rope", 128),
        ("alibi", 64),
        ("alibi", 128),
        ("alibi", 256),
        ("alibi", 512),
        ("alibi", 1024),
    ]
    assert best == [f"{bits(records, 'sliding', s, n).mean():.3f}" for s, n in expected]


def test_it_says_how_to_read_it_and_how_to_repeat_it() -> None:
    text = " ".join(page(synthetic_records.records()).text.split())
    for said in (
        "No scheme was tuned: all had one learning rate, 0.005 (positional parameters: times what the scheme's",
        "This comparison has one seed, so there are no verdicts: they need at least 3 seeds.",
        "At the training length of 128 bytes, bits per byte: 2.30 with RoPE, 2.31 with ALiBi",
        "What must not be concluded",
        "The results are of one seed: the intervals cover the choice of examples",
        "posenc compare --schemes nope,learned,sinusoidal,rope,alibi --text poems --train-length 128",
        "poems: 1,234,567 bytes in 3 files",
        "An Example 9000",
        "8.0 GiB",
        "2.13.0",
        "2026-01-02T03:04:05+00:00",
    ):
        assert said in text


def test_a_partial_run_says_what_is_missing() -> None:
    records = synthetic_records.records()
    half = page(records[: len(records) // 2])
    assert "This comparison is not finished" in half.text
    assert "RoPE and ALiBi, seed 0: everything" in half.text
    assert half.row("schemes", "RoPE")[1:] == ["missing"] * 5 + ["missing missing", "missing", "missing"]
    assert "RoPE and ALiBi are not measured" in half.text
    assert "This comparison is not finished" not in page(records).text


def test_any_first_part_of_the_records_can_be_reported() -> None:
    records = synthetic_records.records(("nope", "learned", "rope"))
    for count in range(0, len(records), 7):
        assert page(records[:count]).text
        assert report.terminal_table(records[:count]).columns
    assert "no records yet" in page([]).text


def test_write_leaves_whole_files_only(tmp_path: Path) -> None:
    path = report.write(synthetic_records.records(("nope", "rope")), tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "report.html"
    parsed = Page(path.read_text(encoding="utf-8"))
    images = {a[name] for tag, a in parsed.tags for name in ("src", "srcset") if tag in ("img", "source") and name in a}
    files = sorted(path.parent.rglob("*.png"))
    assert [f.name for f in files] == sorted(f"{n}{d}.png" for n in PIXEL for d in ("", "-dark"))
    assert {"data:image/png;base64," + base64.b64encode(f.read_bytes()).decode() for f in files} == images
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in files)
    assert not list(path.parent.rglob("*.writing"))


def printed(records: list[dict[str, Any]]) -> str:
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(report.terminal_table(records))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize("seeds", [(0,), THREE])
def test_the_terminal_table_fits_and_has_the_numbers(seeds: tuple[int, ...]) -> None:
    records = synthetic_records.records((*synthetic_records.SCHEMES, "rope+alibi"), seeds)
    shown = printed(records)
    assert max(map(len, shown.splitlines())) <= 100
    assert "…" not in shown
    for scheme in (*synthetic_records.SCHEMES, "rope+alibi"):
        # One line for each: nothing is folded.
        cells = next(
            found[1].split()
            for line in shown.splitlines()
            if (found := re.match(rf" *{re.escape(titled(scheme))} +(\d.*)", line))
        )
        assert len(cells) == 8
        assert cells[7].startswith(
            "undefined" if scheme == "learned" else f"{bits(records, 'sliding', scheme, 1024).mean():.2f}±."
        )
    assert ("*" in shown) == (seeds == THREE)
    words = " ".join(shown.split())
    assert "No scheme was tuned: " in words
    assert ("there are no verdicts: they need at least 3 seeds" in words) == (seeds == (0,))


def test_many_lengths_still_fit_the_terminal() -> None:
    shown = printed(synthetic_records.records(lengths=(32, 64, 128, 192, 256, 384, 512, 1024)))
    assert max(map(len, shown.splitlines())) <= 100
    head = next(line.split() for line in shown.splitlines() if line.split()[:1] == ["scheme"])
    assert head[4:] == ["32", "128", "384", "512", "1,024"]


def test_what_diverged_is_said_and_no_number() -> None:
    records = synthetic_records.diverge(synthetic_records.records(), "rope")
    parsed = page(records)
    row = parsed.row("schemes", "RoPE")
    assert row[0] == "RoPE diverged at step 40"
    assert row[1:8] == ["diverged"] * 5 + ["diverged diverged", "1.09× 1.08–1.11"]
    assert parsed.row("differences", "RoPE")[1:] == ["diverged"] * 5 + ["0"]
    assert "RoPE diverged at step 40: its loss was no longer finite, so it was not tested." in parsed.text
    assert "the learning rate was too high here" in " ".join(parsed.text.split())
    assert "not finished" not in parsed.text
    shown = printed(records)
    assert next(line.split() for line in shown.splitlines() if line.split()[:1] == ["RoPE"])[4:] == ["diverged"] * 5
    assert "RoPE diverged at step 40." in shown
    assert max(map(len, shown.splitlines())) <= 100
