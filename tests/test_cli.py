import ast
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import posenc
import posenc_lab.compare
from posenc.command.cli import main
from posenc.schemes.catalog import entries_of
from posenc_lab.kit.command import stdout
from tests.compare.tiny_comparison import write_text

UNREADABLE = "/proc/self/mem"  # even root cannot read it from its beginning
SMALL = [
    *("--train-length", "16", "--steps", "2", "--batch-size", "4", "--windows", "8"),
    *("--layers", "1", "--dim", "16", "--heads", "2"),
]


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each report was written from; drawing is not what is tested here."""
    written: list[int] = []

    def write(records: list[Any], out: Path) -> Path:
        written.append(len(records))
        return out / "report.html"

    fake = SimpleNamespace(write=write, terminal_table=lambda records: "the table")
    monkeypatch.setitem(sys.modules, "posenc_lab.compare.report", fake)
    monkeypatch.setattr(posenc_lab.compare, "report", fake, raising=False)
    return written


def test_help_and_version_do_not_wait_for_torch() -> None:
    script = (
        "import sys; from posenc.command.cli import main\n"
        "try: assert main(sys.argv[1:]) == 0\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'numpy', 'rich', 'matplotlib'} & set(sys.modules)"
    )
    for arguments, shown in (
        (["--help"], "compare"),
        (["compare", "--help"], "--train-length N"),
        (["check", "--help"], "TARGET"),
        (["choose", "--for", "set", "--weights", "no", "--tokens", "line"], "posenc.NoPE()"),
        (["--version"], "0."),
    ):
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert shown in done.stdout
        assert "(default: )" not in " ".join(done.stdout.split())


@pytest.mark.parametrize("module", ["posenc", "posenc.command.cli"])
def test_it_runs_as_a_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "compair"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "(did you mean 'compare'?)" in done.stderr


def test_dir_lists_what_is_public() -> None:
    assert dir(posenc) == sorted([*posenc.__all__, "__version__"])
    assert all(getattr(posenc, name) is not None for name in dir(posenc))


@pytest.mark.parametrize(("wrong", "near"), [("Rope", "RoPE"), ("alibi", "ALiBi"), ("Sinusodal", "Sinusoidal")])
def test_a_name_that_is_not_public_is_answered_with_the_closest(wrong: str, near: str) -> None:
    with pytest.raises(AttributeError, match=rf"'posenc' has no attribute '{wrong}' \(did you mean '{near}'\?\)"):
        getattr(posenc, wrong)
    assert not hasattr(posenc, "qqq")


def test_type_checkers_are_told_of_every_public_name_where_it_is() -> None:
    """`_HOMES` and `_ROOMS` say it once more, since no name may be imported before it is used."""
    tree = ast.parse(Path(posenc.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {}
    for line in block.body:
        assert isinstance(line, ast.ImportFrom)
        (name,) = line.names
        assert name.name == name.asname  # else it would not be public
        told[name.name] = str(line.module).removeprefix("posenc").removeprefix(".")
    rooms = {name: home.rpartition(".")[0] for name, home in posenc._ROOMS.items()}
    assert told == posenc._HOMES | rooms


def test_an_unknown_command_is_named_with_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compair", "--steps", "3"]) == 2
    known = "bench, check, choose, compare, explore, export, extend, kernel, laws, plot, read, schemes"
    message = f"command must be one of {known}, got 'compair' (did you mean 'compare'?) (see posenc --help)"
    assert capsys.readouterr().err == f"posenc: error: {message}\n"


def test_the_command_line_wins_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lab.toml").write_text('steps = 0\nschemes = ["roap"]\nper_layer = true\n')
    text, out = write_text(tmp_path / "text.txt"), tmp_path / "out"
    command = ["compare", "--config", str(tmp_path / "lab.toml"), "--text", str(text), "--out", str(out)]
    assert main([*command, *SMALL, "--schemes", "nope", "--no-per-layer"]) == 0
    saved = (out / "config.toml").read_text()
    assert "steps = 2\n" in saved
    assert "per_layer = false\n" in saved


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--steps", "many"], "argument --steps: invalid int value"),
        (["compare", "--seeds", "1,x"], "argument --seeds: must be whole numbers, got '1,x'"),
        (["compare", "--text", ""], "argument --text: must name a file, a folder or a glob, got ''"),
        (["compare", "--schemes"], "expected at least one argument"),
        (["compare", "--stepz", "3"], "unrecognized arguments: --stepz 3 (see posenc"),
        (["compare", "--train", "64"], "unrecognized arguments: --train 64"),
        (
            ["compare", "--schemes", ""],
            "argument --schemes: must name at least one, got none (see posenc compare --help)",
        ),
    ],
)
def test_wrong_use_is_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "arguments", "message"),
    [
        (2, ["--steps", "0"], "steps must be a whole number of at least 1, got 0 (see posenc compare --help)"),
        (
            2,
            ["--schemes", "roap"],
            "scheme must be one of the known names, path/to/file.py:Name, or several joined by '+', got 'roap' (did "
            "you mean 'rope'?)",
        ),
        (2, ["--schemes", "rope+segment"], "schemes must do without segments"),
        (2, ["--device", "abacus"], "device must be one that is here, got 'abacus'"),
        (2, ["--config", "no-such.toml"], "--config must be a file that can be read, got no-such.toml: No such file"),
        (2, ["--config", "."], "--config must be a file that can be read, got .: Is a directory"),
        (2, ["--schemes", "rope+rope"], "must name each part once, got 'rope+rope'"),
        (2, ["--schemes", "rope,rope"], "schemes must be one or more different values, got ['rope', 'rope']"),
        (2, ["--text", "no-such-text"], "text must be of files, folders or globs that match some, got 'no-such-text'"),
        (2, ["--text", __file__, "--train-length", "4000"], "too little text: "),
        (2, ["--text", UNREADABLE], f"text must be of files that can be read, got {UNREADABLE}: Input/output error"),
    ],
)
def test_what_fails_says_so_in_one_line(
    code: int,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reports: list[int],
) -> None:
    assert main(["compare", "--out", str(tmp_path / "out"), *arguments]) == code
    error = capsys.readouterr().err
    assert error.startswith("posenc: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert reports == []


@pytest.mark.parametrize("error", [ValueError, RuntimeError, OSError])
def test_what_fails_on_the_way_leaves_a_partial_report_and_is_1(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reports: list[int],
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    def fail(*_: object) -> None:
        raise error("no room\non the device")

    command = ["compare", "--text", str(write_text(tmp_path / "text")), "--out", str(tmp_path / "out"), *SMALL]
    with monkeypatch.context() as patched:
        patched.setattr("posenc_lab.compare.compare._Lab.time_steps", fail)
        assert main([*command, "--schemes", "nope"]) == 1
    shown = capsys.readouterr()
    assert "A partial report: " in shown.out
    assert shown.err.splitlines()[-1].startswith("posenc: error: no room on the device: 17 records are kept in ")
    # What is refused has no part in the records that are there.
    assert main([*command, "--schemes", "nope", "--clip", "2"]) == 2
    assert "holds another comparison, with clip" in capsys.readouterr().err
    assert reports == [17]


def test_schemes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schemes"]) == 0
    shown = capsys.readouterr().out
    for entry in posenc.catalog():
        assert entry.name in shown
        assert entry.does.split()[0] in shown


def test_a_scheme_is_shown_with_its_signature_formula_and_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schemes", "rope", "alibi"]) == 0
    shown = capsys.readouterr().out
    assert "RoPE(head_dim: int, base: float = 10000.0, layout: " in shown
    assert inspect.getdoc(posenc.ALiBi) in shown
    assert ", ".join(sorted(entries_of("rope")[0].laws)) in " ".join(shown.split())
    assert shown.count("\nfor     decoders and encoders\n") == 2
    assert f"\nfile    {inspect.getfile(posenc.ALiBi)}\n" in shown
    assert "\nurl     https://arxiv.org/abs/2104.09864\nusers   Llama, " in shown
    assert "\nexample posenc.attention(q, k, v, posenc.ALiBi(12), is_causal=True)\n" in shown
    assert main(["schemes", "xpos"]) == 0
    assert "\nfor     decoders\n" in capsys.readouterr().out
    assert main(["schemes", "nope"]) == 0
    assert capsys.readouterr().out.startswith("NoPE()\n")
    assert main(["schemes", "fox"]) == 0
    assert "\nusers" not in capsys.readouterr().out  # of which none is known
    assert main(["schemes", "XPos", "rope+ALiBi"]) == 0
    shown = capsys.readouterr().out
    kinds = ["XPos", "RoPE", "ALiBi"]
    assert [kind for kind in kinds if f"\n{kind}(" in f"\n{shown}"] == kinds
    for wrong, near in (("ropee", "rope"), ("ALiBI", "ALiBi"), ("p-rope", "p_rope")):
        assert main(["schemes", wrong]) == 2
        assert f"got {wrong!r} (did you mean {near!r}?) (see posenc schemes)" in capsys.readouterr().err
    for either in ("PRoPE", "prope"):
        assert main(["schemes", either]) == 2
        assert f"got {either!r}{TWO}" in capsys.readouterr().err


TWO = (
    ": p-RoPE of Barbero et al. 2024 is RoPE with the scaling Proportional (p_rope), PRoPE of Li et al. 2025, for "
    "cameras, is Cameras (cameras)"
)
"""What is said of a name that is that of two schemes."""


def test_the_name_of_two_schemes_is_an_error_that_names_both() -> None:
    for ask in (lambda: posenc.PRoPE, lambda: exec("from posenc import PRoPE")):
        with pytest.raises(ImportError, match=re.escape(f"module 'posenc' has no attribute 'PRoPE'{TWO}")):
            ask()
    with pytest.raises(ValueError, match=re.escape(TWO)):
        entries_of("prope")


def test_a_command_that_cannot_be_loaded_costs_itself_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load() -> None:
        raise ImportError("cannot import name 'x'")

    monkeypatch.setattr("posenc.command.cli.entry_points", lambda group: (SimpleNamespace(name="mine", load=load),))
    assert main(["schemes", "nope"]) == 0
    assert capsys.readouterr().err == "posenc: error: the command mine cannot be loaded: cannot import name 'x'\n"


def test_what_the_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert main(["schemes", "query_scale"]) == 0


def test_a_command_of_a_package_that_is_not_installed_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("posenc.command.cli.entry_points", lambda group: ())
    assert main(["check", "rope"]) == 2
    assert capsys.readouterr().err == (
        "posenc: error: posenc check needs posenc-check, which is not installed: in a clone of posenc, "
        "pip install ./packages/posenc-check\n"
    )


@pytest.mark.parametrize(("package", "needed"), [("uvicorn", "posenc-lab[explore]"), ("torch", "posenc")])
def test_what_is_not_installed_is_told_with_what_brings_it(
    package: str, needed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_: object) -> None:
        raise ModuleNotFoundError(name=package)

    monkeypatch.setattr("posenc.command.cli._schemes", missing)
    assert main(["schemes"]) == 1
    assert (
        f"{package} is not installed: in a clone of posenc, pip install './packages/{needed}'"
        in capsys.readouterr().err
    )


def test_what_an_output_cannot_show_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    stdout().print("half of a letter: \ud83d")
    assert capsys.readouterr().out == "half of a letter: \\ud83d\n"
