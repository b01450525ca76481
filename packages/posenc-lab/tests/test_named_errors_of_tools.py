"""The same of what is built on the library: the catalog by name, laws, figures, benchmark, and the command line."""

import inspect
from functools import partial
from pathlib import Path

import matplotlib.figure
import pytest
import torch

from posenc import RoPE
from posenc.command.cli import main
from posenc.schemes.catalog import Shape, entries_of, scheme_from_names
from posenc_lab.bench.run import bench
from posenc_lab.bench.settings import Settings
from posenc_lab.kit.configuration import ConfigError
from posenc_lab.laws.laws import angles, counterexample, rotary_bound
from posenc_lab.laws.probe import Probe
from posenc_lab.laws.table import audit, audit_all
from posenc_lab.plot import command, overview, rotations, sentences, vectors
from tests.errors.wrong_calls import NO_NUMBERS, NO_SIZES, Row, each, flags, sizes

SIZES = {"dim": 24, "num_heads": 6, "head_dim": 4, "max_positions": 64}
SHAPE = Shape(**SIZES)
TWICE = "scheme must name each part once, got 'rope+rope'"
PROBE = Probe.named("rope")
ROPE = {"probe": PROBE, "peak": 3, "reach": 8, "draws": 4, "every": 2}
THETA = torch.ones(2)

SETTINGS = [
    *[Row(partial(Settings, **{name: (3,)}), f"{name} must be text, got 3") for name in ("schemes", "backends")],
    *[
        Row(partial(Settings, **{name: value}), f"{name} must be a whole number of at least 1, got {came}")
        for name in ("rounds", "heads", "head_dim")
        for value, came in NO_SIZES
    ],
    *[
        Row(partial(Settings, **{name: value}), f"{name} must be a finite number above 0, got {came}")
        for name in ("budget", "longest")
        for value, came in (*NO_NUMBERS, (0, "0"))
    ],
    *[
        Row(partial(Settings, **{name: "rope"}), f"{name} must be a list, got 'rope'")
        for name in ("lengths", "schemes", "backends")
    ],
    Row(lambda: Settings(lengths=(64.0,)), "lengths must be a whole number of at least 64, got 64.0"),  # type: ignore[arg-type]
    Row(lambda: Settings(dtype="int8"), "dtype must be 'float32', … or 'float64', got 'int8'"),
    Row(lambda: Settings(device=0), "device must be text, got 0"),  # type: ignore[arg-type]
]

TABLE: dict[str, list[Row]] = {
    "Settings": [row._replace(error=ConfigError) for row in SETTINGS],
    "Shape": [
        *sizes(Shape, SIZES, *SIZES),
        *flags(Shape, SIZES, "causal"),
        *each(Shape, SIZES, "grid", ((3, "3"), ((2,), "(2,)")), "(rows, columns), (frames, rows, columns) or None"),
        Row(lambda: Shape(**SIZES, grid=(2, 0)), "grid[1] must be a whole number of at least 1, got 0"),
    ],
    "entries_of": [
        Row(lambda: entries_of("roap"), "scheme must be one of …, got 'roap' (did you mean 'rope'?)"),
        Row(lambda: entries_of(""), "scheme must be one of …, got ''"),
        Row(lambda: entries_of("rope+"), "scheme must be one of …, got ''"),
        Row(lambda: entries_of("rope+rope"), TWICE),
        Row(lambda: entries_of(["rope"]), "scheme must be a str, got ['rope']"),  # type: ignore[arg-type]
        Row(lambda: entries_of(None), "scheme must be a str, got None"),  # type: ignore[arg-type]
    ],
    "scheme_from_names": [
        Row(lambda: scheme_from_names("rope+rope", SHAPE), TWICE),
        *each(partial(scheme_from_names, "rope"), {}, "shape", ((64, "64"), ((24, 6), "(24, 6)")), "a Shape"),
    ],
    "audit": [
        Row(lambda: audit("roap"), "scheme must be one of …, got 'roap' (did you mean 'rope'?)"),
        Row(lambda: audit("rope", 64), "shape must be a Shape, got 64"),  # type: ignore[arg-type]
        Row(lambda: audit("rope", Shape(24, 6, 4, 63)), "shape.max_positions must be at least 64 to measure, got 63"),
    ],
    "audit_all": [
        Row(lambda: audit_all("rope"), "names must be a sequence of names, got 'rope'"),
        Row(lambda: audit_all(3), "names must be a sequence of names, got 3"),  # type: ignore[arg-type]
        Row(lambda: audit_all(["nope", "roap"]), "scheme must be one of …, got 'roap' (did you mean 'rope'?)"),
    ],
    "Probe": [
        Row(lambda: Probe("rope"), "build must be a function of a Shape, got 'rope'"),  # type: ignore[arg-type]
        Row(lambda: Probe(PROBE.build, 96), "shape must be a Shape, got 96"),  # type: ignore[arg-type]
        *each(partial(Probe, PROBE.build), {}, "seed", NO_SIZES[:8], "a whole number within …"),
        Row(
            lambda: Probe(PROBE.build, dtype=torch.int64),
            "dtype must be …torch.float32 or torch.float64, got torch.int64",
        ),
        Row(lambda: Probe.named("roap"), "scheme must be one of …, got 'roap' (did you mean 'rope'?)"),
    ],
    "rotary_bound": [
        *each(rotary_bound, {"distances": THETA}, "theta", (([1.0], "[1.0]"), (2, "2")), "a tensor of one axis"),
        Row(
            lambda: rotary_bound(THETA, THETA[None]), "distances must be a tensor of one axis, got torch.float32 (1, 2)"
        ),
    ],
    "angles": [Row(lambda: angles(RoPE(8)), "probe must be a Probe, got RoPE(…)")],  # type: ignore[arg-type]
    "counterexample": [
        Row(partial(counterexample, **{**ROPE, "probe": "rope"}), "probe must be a Probe, got 'rope'"),
        *sizes(counterexample, ROPE, "reach", "draws", "every"),
        Row(partial(counterexample, **{**ROPE, "peak": 8}), "peak must be a whole number within 0..7, got 8"),
    ],
    "bench": [
        Row(lambda: bench({}, "never made"), "settings must be a Settings, got {}"),  # type: ignore[arg-type]
        Row(lambda: bench(Settings(schemes=("roap",)), "never made"), "scheme must be one of …, got 'roap' …"),
        Row(
            lambda: bench(Settings(backends=("abacus",)), "never made"), "backends must be one of auto, …, got 'abacus'"
        ),
        Row(lambda: bench(Settings(device="abacus"), "never made"), "device must be one that is here, got 'abacus': …"),
    ],
    "find": [
        Row(lambda: command.find("liens"), "figure must be one of …, got 'liens' (did you mean 'lines'?)"),
        Row(lambda: command.find(["lines"]), "figure must be a str, got ['lines']"),  # type: ignore[arg-type]
    ],
    "save": [
        Row(lambda: command.save("lines", Path("x.png")), "figure must be a Figure, got 'lines'"),  # type: ignore[arg-type]
        Row(partial(command.save, matplotlib.figure.Figure(), "x.png"), "path must be a Path, got 'x.png'"),
        Row(
            partial(command.save, matplotlib.figure.Figure(), Path("x.gif")),
            "--out must end in .png or .svg, got 'x.gif'",
        ),
    ],
}

NO_LINES = ((1, "1"), (0, "0"), (True, "True"), (8.0, "8.0"), ("8", "'8'"))
LEAST = {"overview": 3, "bias_by_distance": 1, "relative_index": 1}  # tokens of a figure, if not 2
SENTENCE = (("alone", "sentence must have two words or more, got 'alone'"), (3, "sentence must be a str, got 3"))
GRID = (
    (3, "grid must be (rows, columns), got 3"),
    ((2, 0), "grid[1] must be a whole number of at least 1, got 0"),
    ((2.0, 3), "grid[0] must be a whole number of at least 1, got 2.0"),
)
NAMED = (
    (3, "schemes must be a Sequence or a Mapping, got 3"),
    (RoPE(8), "schemes must be a Sequence or a Mapping, got RoPE(…)"),
    ((), "schemes must name at least one, got none"),
    ((3,), "scheme must be a str, got 3"),
    (("roap",), "scheme must be one of …, got 'roap' (did you mean 'rope'?)"),
    ({"mine": "rope"}, "schemes['mine'] must be a Scheme, got 'rope'"),
)
CAUSAL = ((1, "causal must be True, False or None, got 1"), ("no", "causal must be True, False or None, got 'no'"))
COMMON = {"sentence": SENTENCE, "grid": GRID, "schemes": NAMED, "causal": CAUSAL}
OWN: dict[str, list[Row]] = {
    "overview": [
        Row(partial(overview.overview, family=3), "family must be a str, got 3"),
        Row(
            partial(overview.overview, "rope", family="score"), "family says …, got 'score' beside schemes: leave one …"
        ),
        Row(
            partial(overview.overview, family="rotates"),
            "family must be one of add, rotate, bands, score, content, got 'rotates' (did you mean 'rotate'?)",
        ),
    ],
    "lines": [
        Row(partial(vectors.lines, dim=16, dimensions=wrong), f"dimensions must be some of 0 to 15, got {came}")
        for wrong, came in ((3, "3"), ((), "()"), ((16,), "(16,)"), ((-1,), "(-1,)"), ((1.0,), "(1.0,)"))
    ],
    "shaw_window": [
        Row(partial(sentences.shaw_window, positions=wrong), f"positions must be some of 1 to 7, …, got {came}")
        for wrong, came in ((3, "3"), ((0,), "(0,)"), ((8,), "(8,)"), (("3",), "('3',)"))
    ],
    "rope_rotation": [
        Row(
            lambda: rotations.rope_rotation("re_rope"),
            "schemes must turn near and far pairs alike, got one that has bands",
        ),
        Row(lambda: rotations.rope_rotation("alibi"), "schemes must open the rotate door (…rope…), got 'alibi', …"),
    ],
    "rope_decay": each(
        rotations.rope_decay,
        {},
        "peak",
        ((256, "256"), (-1, "-1"), (True, "True"), ("3", "'3'")),
        "a whole number within 0..255",
    ),
}


def rows_of(figure: command.Entry) -> list[Row]:
    """The wrong values of every option that a figure has."""
    draw, rows = figure.function, list(OWN.get(figure.name, []))
    for name in inspect.signature(draw).parameters:
        rows += [Row(partial(draw, **{name: wrong}), words) for wrong, words in COMMON.get(name, ())]
        if name in ("dark", "common"):
            rows += flags(draw, {}, name)
        if name in ("dim", "num_heads", "head_dim", "pairs", "draws", "max_distance"):
            rows += sizes(draw, {}, name)
        least = LEAST.get(figure.name, 2)
        if name == "length":
            rows += each(draw, {}, name, NO_LINES[least < 2 :], f"a whole number of at least {least}")
    return rows


FIGURES = {figure.name: rows_of(figure) for figure in command.FIGURES}


@pytest.mark.parametrize("rows", [pytest.param(rows, id=name) for name, rows in (TABLE | FIGURES).items()])
def test_a_wrong_argument_is_named_with_what_was_expected_and_what_came(rows: list[Row]) -> None:
    for row in rows:
        row.check()
    assert not Path("never made").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("laws --schemes rope+rope", f"{TWICE} (see posenc laws --help)"),
        ("plot rope_rotation --pairs 0", "pairs must be a whole number of at least 1, got 0 (see posenc plot --help)"),
        ("plot lines --length 0", "length must be a whole number of at least 2, got 0 (see posenc plot --help)"),
        ("plot bias --schemes rope+rope", f"{TWICE} (see posenc plot --help)"),
    ],
)
def test_the_command_line_says_it_in_one_line_and_is_2(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"posenc: error: {message}\n")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "taken.png"
    taken.mkdir()
    assert main(["plot", "relative_index", "--out", str(taken)]) == 1
    assert capsys.readouterr().err == f"posenc: error: {taken}: Is a directory\n"
