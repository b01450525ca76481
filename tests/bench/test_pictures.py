import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from posenc.tools.bench import pictures
from posenc.tools.bench.cases import all_schemes
from posenc.tools.kit import page
from tests.bench.made_up import everything, prices
from tests.rows import first_of


def drawn(name: str, records: list) -> Figure:  # type: ignore[type-arg]
    figure = pictures.FIGURES[name](records, False)
    assert figure is not None
    return figure


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]  # type: ignore[union-attr]


def test_what_was_not_measured_is_not_drawn() -> None:
    assert page.drawn(pictures.FIGURES, []) == {}
    decodes = [record for record in everything() if record["kind"] == "decode"]
    assert list(page.drawn(pictures.FIGURES, decodes)) == ["decode"]


def test_a_benchmark_interrupted_before_any_training_is_drawn() -> None:
    forward = [record for record in everything() if record["kind"] == "price forward"]
    assert list(page.drawn(pictures.FIGURES, forward)) == ["price", "price_by_length", "growth"]


def test_a_mark_stands_at_its_ratio_and_a_dash_for_none() -> None:
    figure = drawn("peers", everything())
    (axes,) = figure.axes
    marks = {line.get_label(): line for line in axes.get_lines() if not str(line.get_label()).startswith("_")}
    assert set(marks) == {"posenc, forward", "posenc, training step"}
    assert list(marks["posenc, forward"].get_xdata()) == [1.5]
    assert words(figure).count("–") == 2
    assert words(figure).count("1.50×") == 2
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["alibi", "posenc", "x-transformers"]


def test_lines_of_growth_and_price() -> None:
    figure = drawn("growth", everything())
    titles = [(axes.get_title("left"), axes.get_ylabel()) for axes in figure.axes]
    assert titles == [(p, y) for y in ("time (ms)", "peak memory (MiB)") for p in ("forward", "training step")]
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert list(lines["alibi"].get_ydata()) == [2, 8]
    assert list(lines["plain"].get_ydata()) == [1, 4]
    lines = {line.get_label(): line for line in drawn("price_by_length", everything()).axes[1].get_lines()}
    assert list(lines["alibi"].get_xdata()) == [512, 1024]
    assert list(lines["alibi"].get_ydata()) == [2, 2]


def test_an_attention_of_ones_own_and_posencs_are_lines() -> None:
    figure = drawn("mine", everything())
    for axes in figure.axes:
        lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
        assert (lines["posenc"], lines["mine"]) == ([1.5], [4.5])
    assert "An attention of one's own beside posenc's alibi" in words(figure)


def test_the_price_is_drawn_at_a_length_that_most_schemes_have() -> None:
    records = [*prices(("nope", "alibi", "t5"), (512, 1024)), *prices(("nope",), (2048,))]
    assert "The price of position at 1,024 tokens" in words(drawn("price", records))


@pytest.mark.parametrize("name", first_of(pictures.FIGURES))
def test_no_word_is_cut_off_or_lies_on_another_name(name: str) -> None:
    records = [*prices(all_schemes(), (512, 1024, 2048)), *[r for r in everything() if "price" not in r["kind"]]]
    figure = drawn(name, records)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    width, height = figure.bbox.size
    boxes = []
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_text() and text.get_visible() and text not in _out_of_view(figure):
            box = text.get_window_extent(renderer)
            assert box.x0 >= 0, text
            assert box.y0 >= 0, text
            assert box.x1 <= width, text
            assert box.y1 <= height, text
            boxes.append((text, box.padded(-1)))
    for index, (text, box) in enumerate(boxes):
        for other, another in boxes[index + 1 :]:
            assert not box.overlaps(another), (text, other)


def _out_of_view(figure: Figure) -> list[Text]:
    """Labels of ticks beyond the limits, which matplotlib makes and does not draw."""
    found = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]
    return found
