"""posenc extend on a tiny checkpoint: measured once, resumed, refused by name, reported."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers needs Python 3.11")

from posenc.cli import main
from posenc.extend import run
from posenc.extend.settings import Extension
from posenc.extend.summary import Summary
from posenc.workbench.records import read
from tests.extend.small import checkpoint, texts


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extend")
    (folder / "text").mkdir()
    checkpoint(folder / "model")
    texts(folder / "text")
    return folder


@pytest.fixture
def settings(place: Path) -> Extension:
    return Extension(
        model=str(place / "model"),
        text=(str(place / "text"),),
        scalings=("none", "linear", "dynamic"),
        lengths=(16, 32, 128),
        factor=4.0,
        windows=2,
        final=8,
        tasks=("text",),
        trials=1,
    )


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


def test_puzzles_and_the_report(
    place: Path, settings: Extension, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "extend", settings.model, "--text", settings.text[0], "--scalings", "none,yarn", "--lengths", "128,192",
        "--factor", "6", "--windows", "2", "--final", "8", "--trials", "1", "--depths", "0,100", "--out", str(tmp_path),
    ]  # fmt: skip
    assert main(command) == 0
    said = capsys.readouterr()
    assert "memory: about" in said.err
    assert "trained at 32" in said.err
    assert "YaRN(factor=6.0, original_length=32)" in said.err
    page = (tmp_path / "report.html").read_text()
    for words in ("passkey: a number said once in a text", "zero-shot swaps", "--scalings none,yarn", "0 of 2"):
        assert words in page
    assert {p.name for p in (tmp_path / "figures").iterdir()} >= {"final.png", "by_position-dark.png", "item.png"}
    summary = Summary(read(tmp_path))
    assert summary.found("passkey", "yarn", 192) in ((0, 2), (1, 2), (2, 2))
    assert summary.missing() == []
    assert summary.gain("none", 192) is not None


def test_fine_tuning_is_resumed_and_named(settings: Extension, tmp_path: Path) -> None:
    tuned = replace(settings, scalings=("linear",), lengths=(128,), train=3, train_length=32, learning_rate=1e-2)
    records = run.extend(tuned, tmp_path)
    training = next(r for r in records if r["kind"] == "training")
    assert [step for step, _ in training["curve"]] == [1, 2, 3]
    assert {r["scheme"] for r in records} == {"linear, 3 steps"}
    plain = run.extend(replace(tuned, train=0), tmp_path / "plain")
    final = [
        {r["seed"]: r["bits"] for r in each if r["kind"] == "final" and r["scheme"].startswith("linear")}
        for each in (records, plain)
    ]
    assert final[0] != final[1]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # of peft's own
def test_lora_trains_few_weights_and_changes_the_model(settings: Extension, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from posenc.extend.model import find, load
    from posenc.extend.tune import Trained, prepared

    tuned = replace(settings, lora=2, train=1)
    model = load(find(settings.model), "float32", "sdpa", torch.device("cpu")).model
    count = sum(p.numel() for p in Trained(prepared(model, tuned)).parameters())
    assert 0 < count < 0.1 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scalings": ("longrope",)}, "longrope needs its factors: add --search N or --factors FILE"),
        ({"scalings": ("yarns",)}, r"scalings must be .*, got 'yarns'"),
        ({"final": 17}, r"final must be at most the shortest length \(16\), got 17"),
        ({"depths": (110,)}, "depths must be percent, 0 to 100, got"),
        ({"factor": 1.0}, "factor must be"),
    ],
)
def test_a_wrong_setting_is_named(settings: Extension, change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(settings, **change)  # type: ignore[arg-type]


def test_what_is_not_there_is_named(settings: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"model must be smollm2, a folder of a checkpoint, .*got '.*nowhere'"):
        run.extend(replace(settings, model=str(tmp_path / "nowhere")), tmp_path)
    with pytest.raises(ValueError, match="too little text: 900 pieces of 129 tokens are needed"):
        run.extend(replace(settings, windows=900), tmp_path / "a")
    monkeypatch.setattr("posenc.extend.model.available_bytes", lambda device: 1000)
    with pytest.raises(ValueError, match=r"needs about .* GiB for 128 tokens in float32, and 0.0 GiB are free"):
        run.extend(settings, tmp_path / "b")


def test_another_extension_in_the_folder_is_refused(settings: Extension, tmp_path: Path) -> None:
    small = replace(settings, scalings=("none",), lengths=(32,))
    run.extend(small, tmp_path)
    with pytest.raises(ValueError, match=r"holds another extension, with factor 4\.0 there and 8\.0 here"):
        run.extend(replace(small, factor=8.0), tmp_path)


def test_longrope_takes_the_factors_of_a_file(settings: Extension, tmp_path: Path) -> None:
    path = tmp_path / "factors.json"
    path.write_text(json.dumps({"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0]}))
    lists = replace(settings, scalings=("none", "longrope"), factors=str(path), lengths=(32, 128))
    records = run.extend(lists, tmp_path / "out")
    assert sum(r["scheme"] == "longrope" for r in records) == 6
    path.write_text(json.dumps({"short_factor": [1.0] * 3, "long_factor": [1.0] * 4}))
    with pytest.raises(ValueError, match=r"short_factor of .* must have 4 numbers, one for each pair, got 3"):
        run.extend(lists, tmp_path / "other")
    path.write_text("[]")
    with pytest.raises(
        ValueError, match="factors must be a JSON file with the lists short_factor and long_factor, got '"
    ):
        run.extend(lists, tmp_path / "another")


def test_longrope_is_searched_on_text_that_is_not_tested(settings: Extension, tmp_path: Path) -> None:
    searched = replace(settings, scalings=("longrope",), search=5, lengths=(32, 128))
    records = run.extend(searched, tmp_path)
    tried = (tmp_path / "search.jsonl").read_text().splitlines()
    assert len(tried) == 6
    assert json.loads(tried[1])["origin"] == "PI"
    assert sum(r["scheme"] == "longrope" for r in records) == 6
    with pytest.raises(ValueError, match=r"lengths must be past the trained length \(32\) for a search"):
        run.extend(replace(searched, lengths=(32,)), tmp_path / "short")
