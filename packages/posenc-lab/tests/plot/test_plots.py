"""The figures of schemes show the schemes' own numbers, say their units, and leave nothing behind."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import posenc
from posenc.encoding.terms import ChannelDecay, Row
from posenc.rotation.phases import OfHeads
from posenc.schemes.catalog import Shape, catalog
from posenc_lab.kit import style
from posenc_lab.kit.titles import titled
from posenc_lab.plot import command, overview, pairs, panels, rotations, sentences, vectors
from tests.rows import first_of

# A tolerance of 1e-12 below is 4,500 * 2^-52: figures show numbers of order 1 in float64, from sums of fewer terms.


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


def labels(figure: Figure) -> set[str]:
    return {label for axes in figure.axes for label in (axes.get_xlabel(), axes.get_ylabel()) if label}


def image(figure: Figure, index: int = 0) -> np.ndarray:
    found = [axes.images[0] for axes in figure.axes if axes.images]
    return np.ma.filled(np.ma.asarray(found[index].get_array(), dtype=float), np.nan)


def line(figure: Figure, axes: int, index: int = 0) -> np.ndarray:
    return np.asarray(figure.axes[axes].lines[index].get_ydata(), dtype=float)


def words_in(figure: Figure, axes: int) -> list[str]:
    return [text.get_text() for text in figure.axes[axes].texts]


# -- every figure -----------------------------------------------------------------------------------------------------

# Axes drawn by default, colour bars and legends' panels among them, and labels that say what is measured, and in what.
EXPECTED = {
    "overview": (None, {"key − query (tokens)", "key (token)", "row (patch)", "bias", "factor"}),
    "lines": (8, {"position (tokens)"}),
    "table": (2, {"position (tokens)", "dimension (index)", "value of the vector"}),
    "similarity": (5, {"position (tokens)", "cosine similarity"}),
    "bias": (15, {"key (position)", "ALiBi\ncausal\nquery (position)", "bias\n(added to the score)"}),
    "bias_by_distance": (8, {"key − query (positions)", "bias", "factor"}),
    "shaw_window": (1, {"key: word and position", "query: word and position"}),
    "attention": (5, {"query", "key", "attention weight (rows sum to 1)"}),
    "rope_rotation": (1, {"position (tokens)"}),
    "rope_decay": (2, {"distance r = query − key (positions)", "B(r) (no unit)", "score (in logits)"}),
    "relative_index": (2, {"key j (position)", "query i (position)"}),
}


def settings() -> dict[str, Any]:
    """Of matplotlib, but for the backend: asking for it would choose one, and load pyplot."""
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}


@pytest.mark.parametrize("name", first_of(EXPECTED))
def test_a_figure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn on the paper asked for, leaves nothing behind, has its axes and units, and nothing lies outside."""
    monkeypatch.delattr(matplotlib, "pyplot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # which cannot be imported now
    before, drawn = settings(), torch.get_rng_state()
    for dark in (True, False):
        figure = command.find(name).function(dark=dark)
        assert to_hex(figure.get_facecolor()) == style.theme(dark).background
        assert {to_hex(axes.get_facecolor()) for axes in figure.axes} == {style.theme(dark).background}
        assert {axes.xaxis.label.get_color() for axes in figure.axes} == {style.theme(dark).ink}
    assert settings() == before
    assert torch.equal(torch.get_rng_state(), drawn)
    count, wanted = EXPECTED[name]
    assert count in (None, len(figure.axes))  # None: as many as there are schemes
    assert wanted <= labels(figure)
    assert figure.get_size_inches()[0] <= 10
    # Nothing is clipped: all that is drawn, words too, lies on the paper.
    figure.draw_without_rendering()
    extent = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert extent.x0 >= -0.01
    assert extent.y0 >= -0.01
    assert extent.x1 <= width + 0.01
    assert extent.y1 <= height + 0.01


def turns_pairs(entry) -> bool:
    """Whether it turns pairs of channels, which can be drawn: other maps of the rotate door cannot."""
    coords = torch.arange(2)[:, None].expand(2, entry.least_axes) if entry.least_axes > 1 else torch.arange(2)
    rotation = entry.build(Shape(64, 4, 16, 12)).rotation(posenc.Positions(coords[None]))
    if rotation is None:
        return False
    turn = getattr(rotation.query, "turn", rotation.query)
    key = rotation.key.token_map if isinstance(rotation.key, OfHeads) else rotation.key
    return hasattr(turn, "cos") and key is rotation.query and not rotation.bands


@pytest.mark.parametrize("entry", first_of(catalog()), ids=lambda entry: entry.name)
def test_every_scheme_is_in_a_figure(entry) -> None:
    grid = (3, 4) if entry.axes == "two" else None
    drawn = []
    if "add" in entry.doors:
        drawn += [draw((entry.name,), dim=16, length=12) for draw in (vectors.lines, vectors.table, vectors.similarity)]
    scheme = entry.build(Shape(64, 4, 16, 12, grid=grid))
    if "score" in entry.doors and not any(
        isinstance(p, Row | ChannelDecay) for p in scheme(panels.places(12, grid)).score_terms
    ):
        drawn.append(pairs.bias((entry.name,), length=12, grid=grid))
        if grid is None:
            drawn.append(pairs.bias_by_distance((entry.name,), length=12))
    if "rotate" in entry.doors:
        if turns_pairs(entry):
            drawn.append(rotations.rope_rotation((entry.name,), length=12))
        else:
            with pytest.raises(ValueError, match=r"schemes must turn (pairs of channels|near and far pairs alike)"):
                rotations.rope_rotation((entry.name,), length=12)
    if entry.least_axes == 1:
        drawn.append(sentences.attention(schemes=(entry.name,)))
    assert drawn or entry.name in ("lie_re", "cameras")  # a picture of maps of several coordinates there is not
    for figure in drawn:
        said = (*titles(figure), *(label.replace("\n", ", ") for label in labels(figure)))
        assert any(titled(entry.name) in words for words in said)


def test_every_scheme_has_a_panel_in_one_family() -> None:
    named = []
    for family in overview.FAMILIES:
        figure = overview.overview(family=family, length=9)
        assert figure.get_suptitle() == overview.FAMILIES[family]
        for axes in figure.axes:
            assert axes.images or axes.lines or axes.get_label() == "<colorbar>"
            assert axes.get_ylabel()
        named += [title.partition(":")[0] for title in titles(figure)]
    assert sorted(named) == sorted(titled(entry.name) for entry in catalog())


def panel(name: str, length: int = 9) -> np.ndarray:
    """The line or the map of the one panel."""
    (axes, *_) = overview.overview(name, length=length).axes
    return np.asarray(axes.images[0].get_array() if axes.images else axes.lines[0].get_ydata(), dtype=float)


def test_panels_show_the_schemes_own_numbers() -> None:
    r = np.arange(-8, 9)
    np.testing.assert_allclose(panel("alibi"), r[:9] / 4, rtol=1e-12)
    theta = 10_000.0 ** (-np.arange(16) / 16)
    np.testing.assert_allclose(panel("rope"), np.cos(r[:, None] * theta).mean(1), rtol=1e-9)
    np.testing.assert_allclose(panel("nope"), 0)
    np.testing.assert_allclose(panel("query_scale"), panel("query_scale", 12)[:9])
    assert panel("fox").shape == (9, 9)
    (axes,) = overview.overview("rotated_values", length=9).axes
    score, value = (np.asarray(drawn.get_ydata()) for drawn in axes.lines)
    np.testing.assert_allclose(value, score[8::-1], rtol=1e-9)  # the values turn as the keys do
    (axes,) = overview.overview("softcap").axes
    np.testing.assert_allclose(axes.lines[1].get_ydata(), 50 * np.tanh(np.linspace(-200, 200, 201) / 50), rtol=1e-9)
    (axes,) = overview.overview("rope_3d", length=5).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["time", "row", "column"]
    grid = panel("axial_rope")
    assert grid.shape == (9, 9)
    assert np.unravel_index(grid.argmax(), grid.shape) == (4, 4)


def test_bands_are_the_distances_that_pairs_are_turned_by() -> None:
    i, j = np.mgrid[:20, :20]
    seen, rerope, extended = i >= j, panel("re_rope", 20), panel("self_extend", 20)
    np.testing.assert_allclose(rerope[seen], np.minimum(i - j, 8)[seen], atol=1e-3)
    grouped = i // 4 - j // 4 + 4 - 4 // 4
    np.testing.assert_allclose(extended[seen], np.where(i - j < 4, i - j, grouped)[seen], atol=1e-3)


# -- pairs ------------------------------------------------------------------------------------------------------------


def test_bias_matrices_are_slope_times_distance() -> None:
    figure = pairs.bias(length=7)
    i, j = np.arange(7)[:, None], np.arange(7)[None]
    for head, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):
        np.testing.assert_array_equal(image(figure, head), np.where(j > i, np.nan, -slope * (i - j)))
        np.testing.assert_array_equal(image(figure, 4 + head), -slope * np.abs(i - j))
    for head, slope in enumerate((1 / 16, 1 / 256, 1 / 16, 1 / 256)):
        hidden = j > i if head < 2 else j < i
        np.testing.assert_array_equal(image(figure, 8 + head), np.where(hidden, np.nan, -slope * np.abs(i - j)))
    assert titles(figure)[:2] == ["head 1 of 4, slope 1/4", "head 2 of 4, slope 1/16"]
    assert figure._supxlabel is not None
    assert figure._supxlabel.get_text() == "grey: never seen"


def test_the_default_lines_are_those_of_the_schemes() -> None:
    figure = pairs.bias_by_distance(length=20)
    drawn = {title.split(",")[0]: axes for title, axes in zip(titles(figure), figure.axes, strict=False)}
    shaw = np.asarray(drawn["Shaw"].lines[0].get_ydata())
    assert len(set(shaw[:13])) == len(set(shaw[-13:])) == 1  # past the window of 8 all distances share a vector
    assert len(set(shaw)) == 17
    assert len(set(np.asarray(drawn["Relative 1D"].lines[0].get_ydata()))) == 41
    factor = posenc.DistanceAware(4)
    with torch.no_grad():
        factor.w.copy_(torch.linspace(-0.3, 0.3, 4))
    wanted = factor.factor(torch.arange(-20.0, 21).double()).detach().numpy()
    for head in range(4):
        # The distance meets weights of float32, in another order of operations.
        np.testing.assert_allclose(drawn["DA-Transformer"].lines[head].get_ydata(), wanted[head], rtol=1e-6)
    assert drawn["DA-Transformer"].get_ylabel() == "factor"


def test_common_axes_are_common_to_biases_alone() -> None:
    figure = pairs.bias_by_distance(common=True)
    limits = {axes.get_ylabel(): set() for axes in figure.axes}
    for axes in figure.axes:
        limits[axes.get_ylabel()].add(axes.get_ylim())
    assert len(limits["bias"]) == 1
    assert limits["bias"] != limits["factor"]


@pytest.mark.parametrize("name", first_of(["rope+fox", "alibi", "fox", "fire", "t5"]))
def test_what_is_made_for_decoders_is_drawn_for_keys_up_to_the_query(name: str) -> None:
    """FoX rewards the keys after it, and the others say nothing of use there."""
    after = np.triu(np.ones((5, 5), dtype=bool), 1)
    np.testing.assert_array_equal(np.isnan(image(pairs.bias(name, length=5))), after)
    assert np.isnan(line(pairs.bias_by_distance(name, length=5), 0)[6:]).all()
    assert not np.isnan(image(pairs.bias(name, length=5, causal=False))).any()
    assert not np.isnan(image(pairs.bias("kerple", length=5))).any()


def test_the_bar_says_whose_rows_need_not_sum_to_one() -> None:
    def bar(*names: str) -> str:
        return sentences.attention(schemes=names).axes[-1].get_ylabel()

    assert bar("rope", "alibi") == "attention weight (rows sum to 1)"
    assert bar("stick_breaking") == "attention weight (rows sum to less than 1)"
    assert bar("rope", "stick_breaking") == "attention weight (rows sum to 1; of stick_breaking to less)"
    weights = image(sentences.attention(schemes=("stick_breaking",)))
    assert (np.nansum(weights, axis=1) < 1).all()
    assert np.isnan(weights[np.triu_indices(5, 1)]).all()


def test_what_is_neither_a_bias_nor_a_factor_is_an_error() -> None:
    with pytest.raises(ValueError, match="add to the score or multiply it, got one that does both"):
        pairs.bias("alibi+distance_aware")
    with pytest.raises(ValueError, match="or the contents: posenc plot overview draws it"):
        pairs.bias("wall")
    with pytest.raises(ValueError, match="must open the score door"):
        pairs.bias("nope")


def test_the_window_of_two_at_positions_three_and_four() -> None:
    offsets = sentences.shaw_offsets(7, 2)
    assert offsets[3].tolist() == [-2, -2, -1, 0, 1, 2, 2]
    assert offsets[2].tolist() == [-2, -1, 0, 1, 2, 2, 2]
    figure = sentences.shaw_window()
    np.testing.assert_array_equal(image(figure), offsets)
    assert " ".join(words_in(figure, 0)[21:28]) == "$w_{-2}$ $w_{-2}$ $w_{-1}$ $w_0$ $w_{+1}$ $w_{+2}$ $w_{+2}$"
    frames = [patch.get_y() for patch in figure.axes[0].patches]
    assert frames == [1.5, 2.5]  # the rows of positions 3 and 4, counted from 1
    with pytest.raises(ValueError, match="positions must be some of 1 to 7"):
        sentences.shaw_window(positions=(8,))
    with pytest.raises(ValueError, match="sentence must have two words"):
        sentences.shaw_window("alone")


# -- rotations --------------------------------------------------------------------------------------------------------


def test_arrows_point_where_the_scheme_turns() -> None:
    figure = rotations.rope_rotation({"ten": posenc.RoPE(8, base=10.0)}, length=5, pairs=3)
    (arrows,) = figure.axes[0].collections
    theta = 10.0 ** (-np.arange(3) / 4)
    angle = np.arange(5)[:, None] * theta
    np.testing.assert_allclose(arrows.U, 0.42 * np.cos(angle).ravel(), atol=1e-12)
    np.testing.assert_allclose(arrows.V, -0.42 * np.sin(angle).ravel(), atol=1e-12)  # the axis runs down
    assert words_in(figure, 0) == [f"{value:.3g} rad per position" for value in theta]
    low, high = figure.axes[0].get_ylim()
    assert low > high


def test_the_bound_has_the_published_values() -> None:
    drawn = line(rotations.rope_decay(draws=8), 0)
    for distance, value in {0: 32.5, 10: 17.95, 50: 12.63, 100: 10.23, 255: 6.78}.items():
        assert drawn[distance] == pytest.approx(value, abs=0.005)


# -- grids ------------------------------------------------------------------------------------------------------------


def test_the_index_of_a_pair_is_its_distance_plus_n_minus_one() -> None:
    index = sentences.relative_indices(4)
    assert index.tolist() == [[3, 4, 5, 6], [2, 3, 4, 5], [1, 2, 3, 4], [0, 1, 2, 3]]
    figure = sentences.relative_index()
    assert words_in(figure, 0)[:3] == ["0", "−3", "d(i, i − 3)"]
    assert words_in(figure, 0)[-3:] == ["6", "+3", "d(i, i + 3)"]
    assert words_in(figure, 1) == [str(i) for row in index.tolist() for i in row]


# -- the command ------------------------------------------------------------------------------------------------------


def plot(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["plot", *words])
    return int(arguments.run(arguments))


def test_help_names_the_figures_and_that_of_a_figure_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            plot(*words)
        assert end.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    every = said("--help")
    for entry in command.FIGURES:
        assert f"{entry.name} {entry.about}" in every
        assert entry.function.__doc__
        assert entry.function.__name__ == entry.name
    bias = said("bias", "--help")
    assert "By default ALiBi's three forms." in bias
    assert "--length N positions, the largest distance, or the trained length (default: 24)" in bias
    assert "(default: FIGURE.png)" in bias
    assert "--peak" not in bias
    assert '(default: "the dog saw the cat")' in said("attention", "--help")
    assert "(default: 3 4)" in said("shaw_window", "--help")


def test_an_option_of_another_figure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        plot("bias", "--peak", "3")
    assert end.value.code == 2
    assert "posenc plot bias: error: unrecognized arguments: --peak 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["biass"], r"figure must be one of overview, lines, .*, got 'biass' \(did you mean 'bias'\?\)"),
        (["biass", "--help"], "did you mean 'bias'"),
        ([], "FIGURE must be given, one of overview, lines, table, .*relative_index"),
        (["lines", "--out", "lines.pdf"], r"--out must end in \.png or \.svg, got 'lines\.pdf'"),
        (["table", "--schemes", "alibi"], "must open the add door"),
        (["table", "--schemes", "sinusoid"], "did you mean 'sinusoidal'"),
        (["attention", "--sentence", "alone"], "sentence must have two words"),
    ],
)
def test_wrong_use_exits_2_and_says_why(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plot(*words) == 2
    err = capsys.readouterr().err
    assert err.startswith("posenc: error: ")
    assert re.search(message, err)
    assert err.count("\n") == 1


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_file_is_of_the_kind_that_its_ending_says_and_the_same_every_time(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "new" / f"{name}.{ending}" for name in "ab"]
    for file in files:
        assert plot("relative_index", "--length", "3", "--dark", "--out", str(file)) == 0
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    one, two = (file.read_bytes() for file in files)
    assert one == two
    assert one.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    if ending == "svg":
        assert b"Relative positions of 3 tokens" in one  # words stay words
