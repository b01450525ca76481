import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from posenc.command.progress import Progress
from posenc_lab.compare.compare import build_model, compare
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.tasks import from_toml
from posenc_lab.compare.text import plan
from posenc_lab.kit.records import FILE, Record, key, read
from tests.compare.tiny_comparison import SCHEMES, small_config, untimed, write_text


def planned(config: CompareConfig) -> list[tuple[Any, ...]]:
    once = [(kind, None) for kind in ("training", "speed")]
    kinds = [*once, *plan(config.test_lengths, config.train_length)]
    return sorted((str(k), s, seed, n or 0) for k, n in kinds for s in config.schemes for seed in config.seeds)


def measured(records: list[Record]) -> list[tuple[Any, ...]]:
    found = [key(record) for record in records]
    return sorted((k, s, seed, n or 0) for k, s, seed, n, _ in found)


class Interrupting(Progress):
    """Sends this process a signal at the n-th piece of work."""

    def __init__(self, at: int, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.at = at
        self.number = number

    def advance(self, work: float, stage: str, detail: str = "") -> None:
        self.at -= 1
        if self.at == 0:
            os.kill(os.getpid(), self.number)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    compare(small_config(write_text(folder / "text")), folder / "out")
    return folder


def test_every_measurement_is_there_once_with_all_that_made_it(whole: Path) -> None:
    config = small_config(whole / "text")
    records = read(whole / "out")
    assert measured(records) == planned(config)
    for record in records:
        assert record["configuration"] == config.to_dict()
        assert record["versions"].keys() >= {"python", "torch", "posenc"}
        assert record["machine"].keys() >= {"processor", "cores", "memory_bytes", "threads", "device"}
        assert record["text"]["digest"]
        assert record["fingerprint"]
        assert record["time"]
    assert from_toml(whole / "out" / "config.toml") == config
    assert list((whole / "out" / "checkpoints").iterdir()) == []


def test_what_is_recorded(whole: Path) -> None:
    records = {key(record)[:4]: record for record in read(whole / "out")}
    plain, learned = records["training", "nope", 0, None], records["training", "learned", 0, None]
    assert (plain["position_parameters"], learned["position_parameters"]) == (0, 16 * 16)
    assert learned["parameters"] - plain["parameters"] == 16 * 16
    assert [step for step, _ in plain["curve"]] == [1, 2, 3, 4, 5, 6]
    assert plain["final_bits"] == plain["curve"][-1][1]
    assert plain["tokens_per_second"] > 0
    assert plain["peak_bytes"] > plain["parameters"] * 4  # a gradient of each, and what they are computed from
    for scheme in SCHEMES:
        speed = records["speed", scheme, 0, None]
        assert speed["relative_to"] == "nope"
        assert 0.1 < speed["step_ratio"] < 10
        assert speed["step_seconds"] > 0
        if scheme == "nope":
            assert speed["step_ratio"] == 1.0  # by definition: it is the unit
        for kind in ("windows", "sliding", "final_tokens"):
            for length in (8, 16, 32, 64, 128):
                record = records[kind, scheme, 0, length]
                if scheme == "learned" and length > 16:
                    assert record["undefined"] == "Learned encodes positions 0 to 15, got 31" or length > 32
                    assert "bits" not in record
                else:
                    assert len(record["bits"]) == 8
    assert len(records["truncated", "learned", 0, 16]["bits"]) == 8


def test_a_second_run_repeats_nothing(whole: Path) -> None:
    before = (whole / "out" / FILE).read_bytes()
    compare(small_config(whole / "text"), whole / "out", build=refuse)
    assert (whole / "out" / FILE).read_bytes() == before


def refuse(config: CompareConfig, scheme: str, seed: int) -> Any:
    raise AssertionError(f"{scheme} was built again")


@pytest.mark.parametrize(("at", "number"), [(33, signal.SIGINT), (9, signal.SIGTERM)])
def test_interrupted_and_resumed_is_the_same_as_never_stopped(
    whole: Path, tmp_path: Path, at: int, number: signal.Signals
) -> None:
    config = small_config(whole / "text")
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "out", Interrupting(at, number))
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    kept = read(tmp_path / "out")
    assert len(kept) < len(planned(config))
    records = compare(config, tmp_path / "out")
    assert records[: len(kept)] == kept
    assert untimed(records) == untimed(read(whole / "out"))


def diverging(config: CompareConfig, scheme: str, seed: int) -> Any:
    """A model that is no number from the start where the scheme is alibi and the seed 0."""
    model = build_model(config, scheme, seed)
    if (scheme, seed) == ("alibi", 0):
        with torch.no_grad():
            next(model.parameters()).fill_(float("nan"))
    return model


def test_a_scheme_that_diverges_is_recorded_so_and_the_others_go_on(whole: Path, tmp_path: Path) -> None:
    config = small_config(whole / "text", schemes=("alibi", "nope"))
    records = compare(config, tmp_path / "out", build=diverging)
    assert measured(records) == planned(config)
    about = {"kind", "scheme", "seed", "length", "time", "fingerprint", "configuration", "text", "versions", "machine"}
    for record in records:
        if record["scheme"] == "alibi" and record["kind"] != "speed":
            assert record["diverged"] == "the loss is nan at step 1"
            at = {"learning_rate", "multiplier", "tuned"} if record["kind"] == "training" else set()
            assert record.keys() - about == {"diverged", *at}  # and no made-up numbers
        else:
            assert "diverged" not in record
    assert list((tmp_path / "out").glob("checkpoints/*")) == []


def test_what_diverged_is_not_trained_again(whole: Path, tmp_path: Path) -> None:
    config = small_config(whole / "text", schemes=("alibi",))
    compare(config, tmp_path / "out", build=diverging)
    path = tmp_path / "out" / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:6], lines[-1]]))  # as if stopped there with the speed known
    assert measured(compare(config, tmp_path / "out", build=refuse)) == planned(config)


OWN = ("llama-7b.pt", "gpt-2.pt", "mine-3.safetensors", "nope-00.safetensors", "note.writing", "nope-0.pt.writing")


@pytest.mark.parametrize("ran", [False, True], ids=["compare never ran there", "it ran and measured nothing"])
def test_files_that_it_did_not_make_stay(whole: Path, tmp_path: Path, ran: bool) -> None:
    if ran:
        with pytest.raises(KeyboardInterrupt):
            compare(small_config(whole / "text", steps=7), tmp_path, Interrupting(3))
    folder = tmp_path / "checkpoints"
    folder.mkdir(exist_ok=True)
    for name in OWN:
        (folder / name).write_bytes(name.encode())
    compare(small_config(whole / "text", schemes=("nope",), steps=1), tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {name: name.encode() for name in OWN}
