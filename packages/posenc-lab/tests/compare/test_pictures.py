"""What the figures show, asked of their artists; how they look is for eyes."""

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from posenc_lab.compare.pictures import FIGURES, final_tokens, sliding, windows
from posenc_lab.compare.summary import Summary
from posenc_lab.kit.titles import titled
from tests.compare import synthetic_records
from tests.compare.test_summary import bits


def lines(figure: Figure) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in figure.axes[0].lines if not str(line.get_label()).startswith("_")}


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in (*figure.axes[0].texts, *figure.texts)]


def ticks(axes: Axes) -> list[str]:
    axes.figure.draw_without_rendering()
    return [label.get_text() for label in axes.get_xticklabels()]


@pytest.mark.parametrize("kind", ["windows", "sliding", "final_tokens"])
def test_a_line_per_scheme_goes_through_its_means(kind: str) -> None:
    records = synthetic_records.records(seeds=(0, 1))
    drawn = lines(FIGURES[kind](Summary(records), False))
    assert set(map(titled, synthetic_records.SCHEMES)) <= set(drawn)
    for scheme in synthetic_records.SCHEMES:
        lengths = [n for n in synthetic_records.LENGTHS if scheme != "learned" or n <= synthetic_records.TRAIN_LENGTH]
        assert list(drawn[titled(scheme)].get_xdata()) == lengths
        assert list(drawn[titled(scheme)].get_ydata()) == pytest.approx(
            [bits(records, kind, scheme, n).mean() for n in lengths]
        )


def test_lengths_are_powers_of_two_with_the_training_length_marked() -> None:
    axes = windows(Summary(synthetic_records.records())).axes[0]
    assert axes.get_xscale() == "log"
    assert ticks(axes) == ["64\n½×", "128\n1×\ntraining length", "256\n2×", "512\n4×", "1,024\n8×"]
    assert any(list(line.get_xdata()) == [128, 128] for line in axes.lines)


def test_an_exploding_scheme_does_not_flatten_the_rest_and_is_not_dropped() -> None:
    records = synthetic_records.records()
    figure = windows(Summary(records))
    worst, best = (bits(records, "windows", s, 1024).mean() for s in ("sinusoidal", "alibi"))
    assert worst - best > 3
    low, high = figure.axes[0].get_ylim()
    assert low < best < high < best + 1.5
    for length in (512, 1024):
        assert f"{bits(records, 'windows', 'sinusoidal', length).mean():.2f} ↑" in texts(figure)
    arrows = [line for line in figure.axes[0].lines if line.get_marker() == "$↑$"]
    assert {float(line.get_xdata()[0]) for line in arrows} == {512, 1024}
    assert "Sinusoidal" in texts(figure)


def test_where_a_scheme_is_undefined_its_line_ends_in_a_cross_with_a_note() -> None:
    for draw in (windows, sliding, final_tokens):
        figure = draw(Summary(synthetic_records.records()))
        assert "× Learned: undefined past 128" in texts(figure)
        crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
        assert [float(line.get_xdata()[0]) for line in crosses] == [128]


@pytest.mark.parametrize("name", ["windows", "training"])
def test_what_diverged_is_said_in_every_figure(name: str) -> None:
    records = synthetic_records.diverge(synthetic_records.records(), "rope")
    figure = FIGURES[name](Summary(records), False)
    figure.draw_without_rendering()
    assert any("diverged at step 40" in text for text in texts(figure))
    assert "RoPE" not in lines(figure)
    every = synthetic_records.records(("nope", "rope"))
    for scheme in ("nope", "rope"):
        every = synthetic_records.diverge(every, scheme)
    said = texts(FIGURES[name](Summary(every), False))
    assert any("diverged at step 40" in text for text in said)
    assert "not measured yet" not in said


@pytest.mark.parametrize("name", FIGURES)
def test_no_record_and_any_first_part_of_the_records_can_be_drawn(name: str) -> None:
    assert "not measured yet" in texts(FIGURES[name](Summary([]), False))
    records = synthetic_records.records(("nope", "learned"))
    for count in range(1, len(records), 15):
        FIGURES[name](Summary(records[:count]), False).draw_without_rendering()
