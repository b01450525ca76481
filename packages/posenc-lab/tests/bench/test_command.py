from pathlib import Path
from typing import Any

import pytest

from posenc.command.cli import main
from posenc_lab.bench import cases, command
from posenc_lab.bench.settings import Settings

HANDS = "tests.bench.handwritten"
ALIBI = ("--mine", f"{HANDS}:alibi")
TINY: dict[str, Any] = {
    "lengths": (64,),
    "rounds": 1,
    "budget": 0.01,
    "longest": 5.0,
    "backends": ("auto",),
    "heads": 2,
    "head_dim": 8,
}


def test_the_identity_is_what_two_runs_into_a_folder_must_share() -> None:
    same = Settings(lengths=(64,), schemes=("rope",)).identity()
    assert same == Settings().identity()
    for change in ({"dtype": "bfloat16"}, {"rounds": 3}, {"backends": ("auto",)}, {"heads": 4}, {"device": "cuda"}):
        assert Settings(**change).identity() != same  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "500"], "lengths must be powers of two from 64 on, got [500]"),
        (["--lengths", "32"], "lengths must be a whole number of at least 64, got 32"),
        (["--rounds", "0"], "rounds must be a whole number of at least 1, got 0"),
        (["--schemes", "rope+rope"], "scheme must name each part once, got 'rope+rope'"),
        (["--schemes", "roap"], "got 'roap' (did you mean 'rope'?)"),
        (["--backends", "abacus"], "backends must be one of auto, sdpa"),
        (["--dtype", "float32,int8"], "dtype must be 'float32', 'bfloat16', 'float16' or 'float64', got 'int8'"),
        ([*ALIBI, "--schemes", "t5,rope"], "schemes must be the one scheme that --mine implements, got ['t5', 'rope']"),
        ([*ALIBI, "--schemes", "rope+learned"], "one that acts in attention, got 'rope+learned', which"),
        ([*ALIBI, "--schemes", "t5"], ":alibi must take a fourth argument, scheme: the parameters of t5 are read from"),
        (["--mine", "my.py"], "--mine must be module:name or path/to/file.py:name, got 'my.py'"),
        (["--mine", "gone.py:a"], "--mine must be module:name or path/to/file.py:name, and there is no file 'gone.py'"),
        (["--mine", "gone:a"], "there is no module 'gone', here or installed"),
        (["--mine", f"{HANDS}:alibbi"], f"{HANDS} has no 'alibbi'; it has "),
        (["--mine", "math:pi"], "what else is called as attention(query, key, value), got 3"),
        (["--mine", f"{HANDS}:Module"], f"{HANDS}:Module must be a function, or what else is called as attention("),
        (["--device", "abacus"], "device must be one that is here, got 'abacus'"),
    ],
)
def test_a_wrong_value_is_named_and_is_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--out", str(tmp_path / "out"), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("posenc: error: ")
    assert message in error
    assert error.endswith("(see posenc bench --help)\n")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", ","], "argument --lengths: must name at least one, got none"),
        (["--schemes", ""], "argument --schemes: must name at least one, got none"),
        (["--backends", ",", ","], "argument --backends: must name at least one, got none"),
        (["--round", "3"], "unrecognized arguments: --round 3"),
        (["--lengths", "512,x"], "argument --lengths: must be whole numbers, got '512,x'"),
        (["--backends"], "argument --backends: expected at least one argument"),
    ],
)
def test_what_cannot_be_read_is_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", *words])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_it_prints_and_writes_tables_and_resumes_what_was_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(settings: Settings, name: str, length: int, training: bool, backends: object) -> cases.Built:
        if training:
            raise KeyboardInterrupt
        return priced(settings, name, length, training, backends)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "QUICK", TINY)
    priced = cases.priced
    words = ["bench", "--quick", "--schemes", "nope,alibi", "--dtype", "float32,bfloat16", "--out", str(tmp_path)]
    with monkeypatch.context() as patched:
        patched.setattr(cases, "priced", interrupt)
        assert main(words) == 1
    shown = capsys.readouterr()
    assert f"A partial report: {tmp_path / 'float32' / 'bench.md'}" in shown.out
    last = shown.err.splitlines()[-1]
    assert last == f"posenc: error: interrupted: 2 records are kept in {tmp_path / 'float32'}; the same command resumes"
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "The price of position: a training step" in shown.out
    assert "price training, ALiBi, 64" in shown.err
    for dtype in ("float32", "bfloat16"):
        folder = tmp_path / dtype
        names = {path.name for path in folder.iterdir()}
        assert names == {"bench.md", "records.jsonl", "config.toml"}
        assert f"| tensors | 1 × 2 × length × 8, {dtype} |" in (folder / "bench.md").read_text(encoding="utf-8")
        assert f"The report: {folder / 'bench.md'}" in shown.out


def test_regrets_are_of_both_directions_and_leave_out_what_a_scheme_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        command, "REGRET", TINY | {"backends": ("auto", "reference", "sdpa"), "schemes": ("nope", "alibi")}
    )
    assert main(["bench", "--regret", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "Regret of auto" in shown.out
    assert "regret training both ways, ALiBi, 64" in shown.err
    rows = [line.split("|")[1:-1] for line in (tmp_path / "bench.md").read_text().splitlines() if line.startswith("| ")]
    calls = {row[0].strip(): int(row[-1]) for row in rows if len(row) == 5 and row[-1].strip().isdecimal()}
    assert calls == {"all": 6, "forward": 3, "training": 3, "causal": 4, "both ways": 2, "64 tokens": 6} | {
        "NoPE": 4,
        "ALiBi": 2,  # without a direction it takes only earlier keys
    }
