"""Schemes of anyone's own, ``my.py:MyScheme``, wherever a command takes names of schemes."""

from pathlib import Path

import pytest

import posenc
from posenc.command.cli import main
from posenc.schemes.catalog import entries_of, scheme_from_names
from posenc.schemes.entry import Shape
from posenc.schemes.user_code import source_of
from posenc_lab.kit.records import read
from tests.compare.tiny_comparison import write_text

SMALL = "--train-length 16 --steps 2 --batch-size 4 --windows 8 --layers 1 --dim 16 --heads 2".split()  # noqa: SIM905
SHAPE = Shape(dim=24, num_heads=6, head_dim=4, max_positions=64)
FILE = """
import posenc
from posenc.schemes.entry import Entry, Law


class Steep(posenc.ALiBi):
    def __init__(self, num_heads, form="causal"):
        super().__init__(num_heads, form)


class Grid(posenc.Relative2D):
    def __init__(self, grid, head_dim):
        super().__init__(grid, head_dim)


class Vectors(posenc.Sinusoidal):
    def __init__(self, dim, grid=None):
        super().__init__(dim, axes=1 if grid is None else 2)


class Claims(posenc.NoPE):
    pass


ENTRY = Entry("claims", Claims, "mine", frozenset({Law.RELATIVE}), "nothing", lambda shape: Claims())


class Forgets(posenc.Sinusoidal):  # reads places off the index, and not off positions
    def __init__(self, dim):
        super().__init__(dim)

    def table(self, positions, *dtype, **more):
        return super().table(posenc.Positions.arange(len(positions)), *dtype, **more)


class Needs(posenc.RoPE):
    def __init__(self, head_dim, power):
        super().__init__(head_dim)


class FailsWhenBuilt(posenc.RoPE):
    def __init__(self, head_dim):
        super().__init__({}["head_dim"])


class FailsWhenCalled(posenc.RoPE):
    def __init__(self, head_dim):
        super().__init__(head_dim)

    def forward(self, *positions, **more):
        return {}["angle"]  # the line

    tokens = forward
"""
LINE = 1 + FILE.splitlines().index('        return {}["angle"]  # the line')


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "my.py").write_text(FILE)
    return str(tmp_path / "my.py")


def test_a_class_is_built_of_the_sizes_that_it_takes(own: str) -> None:
    (entry,) = entries_of(f"{own}:Steep")
    assert (entry.name, entry.axes, entry.laws, entry.doors) == (f"{own}:Steep", "one", frozenset(), ("score",))
    assert entry.build(SHAPE).slopes == posenc.ALiBi(6).slopes  # type: ignore[attr-defined]
    assert entries_of(f"{own}:Grid")[0].axes == "two"
    assert entries_of(f"{own}:Grid")[0].build(SHAPE).doors == ("score",)
    assert entries_of(f"{own}:Vectors")[0].axes == "any"
    assert scheme_from_names(f"rope+{own}:Vectors", SHAPE).doors == ("add", "rotate")


def test_an_entry_says_what_is_claimed(own: str) -> None:
    for name in ("Claims", "ENTRY"):
        (entry,) = entries_of(f"{own}:{name}")
        assert (entry.name, entry.laws, entry.paper) == (f"{own}:{name}", {"relative"}, "mine")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Steeep", "the scheme of {own} must be one of Steep, Grid, .*, got 'Steeep' .did you mean 'Steep'"),
        ("Needs", "{own}:Needs must be built from dim, .*, got an __init__ that needs power: add a default, or"),
        ("FailsWhenBuilt", "building {own}:FailsWhenBuilt failed: {own}:43: KeyError: 'head_dim'"),
    ],
)
def test_what_is_wrong_is_named_with_the_line(own: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("{own}", own)):
        scheme_from_names(f"{own}:{name}", SHAPE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import posenc\n\nx = 1 / 0\n", "importing .*my.py failed: .*my.py:3: ZeroDivisionError: division by zero"),
        ("import posenc\nclass X(:\n", "importing .*my.py failed: .*my.py:2: SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_run_is_named_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "my.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        entries_of(f"{tmp_path / 'my.py'}:X")


@pytest.mark.parametrize("name", ["no-such.py:X", "my.txt:X", "posenc:RoPE"])
def test_a_file_that_is_not_there_is_named(name: str) -> None:
    message = f"scheme must be a name of the catalog or path/to/file.py:Name of an existing file, got '{name}'"
    with pytest.raises(ValueError, match=message):
        entries_of(name)


@pytest.mark.more
def test_it_is_compared_and_its_file_must_stay_as_it_was(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["compare", "--text", str(write_text(tmp_path / "text.txt")), "--out", str(out)]
    words += SMALL
    assert main([*words, "--schemes", f"nope,{own}:Steep"]) == 0
    records = read(out)
    source = source_of(f"{own}:Steep")
    assert {record.get("source", "") for record in records if record["scheme"] == f"{own}:Steep"} == {source}
    assert not any("source" in record for record in records if record["scheme"] == "nope")
    assert f"{own}:Steep" in (out / "report.html").read_text()
    before = (out / "records.jsonl").read_text()
    (out / "records.jsonl").write_text(before.replace(source, "another"))
    capsys.readouterr()
    assert main([*words, "--schemes", f"nope,{own}:Steep"]) == 2
    assert f"{own}:Steep is not as it was when {out / 'records.jsonl'} was written" in capsys.readouterr().err


def test_an_error_in_training_shows_the_line(own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("safetensors")
    words = ["compare", "--text", str(write_text(tmp_path / "text.txt")), "--out", str(tmp_path / "out")]
    words += SMALL
    assert main([*words, "--schemes", f"{own}:FailsWhenCalled"]) == 1
    assert f"posenc: error: {own}:{LINE}: KeyError: 'angle'" in capsys.readouterr().err


def test_its_laws_are_measured(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    assert main(["laws", "--schemes", f"{own}:Steep,{own}:Claims"]) == 1
    shown = capsys.readouterr()
    assert f"{own}:Steep" not in shown.err  # nothing is claimed of it
    assert f"posenc: {own}:Claims: the catalog does not claim it, but bounded" in shown.err
    assert main(["laws", "--schemes", f"{own}:FailsWhenCalled"]) == 1
    assert capsys.readouterr().err == f"posenc: error: {own}:{LINE}: KeyError: 'angle'\n"


def test_it_is_drawn_and_described(own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    words = ["plot", "bias", "--length", "8", "--out", str(tmp_path / "bias.png")]
    assert main([*words, "--schemes", f"{own}:Steep"]) == 0
    assert main(["schemes", f"{own}:Steep"]) == 0
    assert "Steep(num_heads, form='causal')" in capsys.readouterr().out


def test_a_scheme_that_does_not_begin_as_a_module_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bare.py"
    path.write_text("import posenc\nclass Bare(posenc.Scheme):\n    def __init__(self, dim):\n        self.dim = dim\n")
    with pytest.raises(ValueError, match=r":Bare must call super\(\).__init__\(\) in its __init__"):
        scheme_from_names(f"{path}:Bare", Shape(dim=8, num_heads=2, head_dim=4, max_positions=9))
