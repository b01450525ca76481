"""posenc extend on a tiny checkpoint: measured once, resumed, refused by name, reported."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers needs Python 3.11")

from posenc.command.cli import main
from posenc_lab.extend import measure, run
from posenc_lab.extend import model as models
from posenc_lab.extend.settings import Extension
from posenc_lab.extend.summary import Summary
from posenc_lab.extend.text import Tokens
from posenc_lab.kit.records import read
from tests.extend.tiny_checkpoint import checkpoint

CPU = torch.device("cpu")


def test_every_scaling_is_measured_once_and_what_is_there_is_kept(settings: Extension, tmp_path: Path) -> None:
    records = run.extend(settings, tmp_path)
    of = {(r["kind"], r["scheme"], r["seed"], r["length"]): r for r in records}
    assert len(of) == len(records) == 3 * 2 * (3 + 1) + 2
    for window in range(2):
        plain = of["final", "none", window, 32]["bits"]
        assert of["final", "cropped", window, 32]["bits"] == plain
        # Up to the trained length dynamic scaling does nothing, and linear does.
        assert of["final", "dynamic", window, 32]["bits"] == pytest.approx(plain, abs=1e-4)
        assert of["final", "linear", window, 32]["bits"] != pytest.approx(plain, abs=1e-3)
        assert of["final", "dynamic", window, 128]["bits"] != pytest.approx(
            of["final", "none", window, 128]["bits"], abs=1e-3
        )
    before = (tmp_path / "records.jsonl").read_bytes()
    assert len(run.extend(settings, tmp_path)) == len(records)
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_interrupted_and_run_again_is_the_same(
    settings: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run.extend(replace(settings, scalings=("none", "linear")), tmp_path / "whole")
    right, calls = run.measure.nats, 0

    def stopped(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return right(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run.measure, "nats", stopped)
    with pytest.raises(KeyboardInterrupt):
        run.extend(replace(settings, scalings=("none", "linear")), tmp_path / "parts")
    kept = len(read(tmp_path / "parts"))
    assert 0 < kept < len(whole)
    monkeypatch.setattr(run.measure, "nats", right)
    parts = run.extend(replace(settings, scalings=("none", "linear")), tmp_path / "parts")

    def results(records: list[dict[str, object]]) -> dict[tuple[object, ...], object]:
        return {tuple(r[n] for n in ("kind", "scheme", "seed", "length")): r["bits"] for r in records}

    assert results(parts) == results(whole)


def test_the_model_is_as_it_was_after_a_scaling(settings: Extension, tmp_path: Path) -> None:
    """Scalings are measured one after the other on one model: in another order the numbers are the same."""
    first = run.extend(replace(settings, scalings=("linear", "none"), lengths=(128,)), tmp_path / "a")
    second = run.extend(replace(settings, scalings=("none", "linear"), lengths=(128,)), tmp_path / "b")
    kept = [
        {(r["scheme"], r["seed"]): r["bits"] for r in records if r["kind"] == "final"} for records in (first, second)
    ]
    assert kept[0] == kept[1]


def test_the_report(settings: Extension, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "extend", settings.model, "--text", settings.text[0], "--scalings", "none,yarn", "--lengths", "128,192",
        "--factor", "6", "--windows", "2", "--final", "8", "--out", str(tmp_path),
    ]  # fmt: skip
    assert main(command) == 0
    said = capsys.readouterr()
    assert "memory: about" in said.err
    assert "trained at 32" in said.err
    assert "YaRN(factor=6.0, original_length=32)" in said.err
    page = (tmp_path / "report.html").read_text()
    for words in ("applied zero-shot", "--scalings none,yarn"):
        assert words in page
    assert {p.name for p in (tmp_path / "figures").iterdir()} >= {"final.png", "by_position-dark.png"}
    summary = Summary(read(tmp_path))
    assert summary.missing() == []
    assert summary.gain("none", 192) is not None


def test_what_a_folder_was_begun_with_is_kept(settings: Extension, tmp_path: Path) -> None:
    free = replace(settings, scalings=("none",), final=None, windows=None, lengths=(64, 128))
    assert run.extend(free, tmp_path)[-1]["configuration"]["final"] == 32  # the trained length
    longer = run.extend(replace(free, lengths=(32, 48, 128)), tmp_path)
    assert {r["tokens"] for r in longer if r["kind"] == "final"} == {32}
    said = r"lengths must be at least 32 in .*, which scores the last 32 tokens at every length, got 16: give another"
    with pytest.raises(ValueError, match=said):
        run.extend(replace(free, lengths=(16, 128)), tmp_path)
    with pytest.raises(ValueError, match=r"with final 32 there and 16 here: "):
        run.extend(replace(free, final=16), tmp_path)


def test_base_is_the_model_with_that_base(settings: Extension, tmp_path: Path) -> None:
    """Added to a folder, it has the losses of the same weights whose configuration has that base."""
    plain = replace(settings, scalings=("none",), lengths=(32, 128))
    run.extend(plain, tmp_path / "out")
    larger = replace(plain, scalings=("none", "base"), base=1e6)
    records = run.extend(larger, tmp_path / "out")
    with pytest.raises(ValueError, match=r"with base 1000000\.0 there and 500000\.0 here"):
        run.extend(replace(larger, base=5e5), tmp_path / "out")
    rope = {"rope_type": "default", "rope_theta": 1e6}
    other = checkpoint(tmp_path / "model", rope_parameters=rope)  # the same weights, by their seed
    expected = run.extend(replace(plain, model=str(other)), tmp_path / "other")
    bits = [
        {(r["seed"], r["length"]): r["bits"] for r in each if r["kind"] == "final" and r["scheme"] == name}
        for each, name in ((records, "base"), (expected, "none"), (records, "none"))
    ]
    assert len(bits[0]) == 4
    assert bits[0] == pytest.approx(bits[1], abs=1e-4)
    assert bits[0] != pytest.approx(bits[2], abs=1e-3)


def test_a_models_own_scaling_forgets_the_lengths_before(settings: Extension, tmp_path: Path) -> None:
    """transformers keeps the frequencies of the longest text at lengths that are not below the trained one."""
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    folder = checkpoint(tmp_path / "model", rope_parameters=dynamic)
    tokens, none = torch.arange(129) % 256, torch.tensor([], dtype=torch.int64)

    def loaded() -> torch.nn.Module:
        model: torch.nn.Module = models.load(models.find(str(folder)), "float32", "sdpa", CPU).model
        return model

    expected, model = measure.final(loaded(), tokens, 32, 8, none), loaded()
    measure.final(model, tokens, 128, 8, none)
    assert not torch.allclose(measure.final(model, tokens, 32, 8, none), expected)
    measure.begin_anew(model)
    torch.testing.assert_close(measure.final(model, tokens, 32, 8, none), expected)
    own = replace(settings, model=str(folder), scalings=("none",), lengths=(64, 128))
    found = {r["seed"]: r["bits"] for r in run.extend(own, tmp_path / "out") if r["scheme"] == "cropped"}
    pieces = Tokens(own.text, models.load(models.find(str(folder)), "float32", "sdpa", CPU).tokenizer, 128, 8, 2).pieces
    each = [float(measure.final(loaded(), piece.tokens, 32, 8, none).sum()) for piece in pieces]
    expected_bits = [n / math.log(2) / piece.final_bytes for n, piece in zip(each, pieces, strict=True)]
    assert [found[0], found[1]] == pytest.approx(expected_bits, abs=1e-4)
