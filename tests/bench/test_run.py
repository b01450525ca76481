import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from posenc.tools.bench import cases, run
from posenc.tools.bench.measure import Inputs, LeftOutError, Work
from posenc.tools.bench.run import bench, groups, grown
from posenc.tools.bench.settings import Settings
from posenc.tools.kit import saved
from posenc.tools.kit.machine import clock_of
from posenc.tools.kit.progress import Progress
from posenc.tools.kit.records import key, read
from tests.bench.test_command import TINY

SMALL = Settings(**TINY, schemes=("nope", "alibi"))


class Counting:
    """A clock that counts calls, and is interrupted at one of them."""

    def __init__(self, interrupt_at: int = 0) -> None:
        self.calls, self.interrupt_at = 0, interrupt_at
        self.clock = clock_of(torch.device("cpu"))

    def __call__(self, work: Work) -> float:
        self.calls += 1
        if self.calls == self.interrupt_at:
            raise KeyboardInterrupt
        return self.clock(work)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    bench(SMALL, folder)
    return folder


class Said(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(
    ("load", "said"),
    [(0.3, []), (3.24, ["the machine was busy in the last minute (load 3.2): what is timed now is doubtful"])],
)
def test_a_busy_machine_is_said_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, said: list[str]
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    progress = Said()
    with pytest.raises(KeyboardInterrupt):
        bench(SMALL, tmp_path, progress, clock=Counting(interrupt_at=1))
    assert progress.lines == said


def test_every_group_is_a_record_with_all_that_made_it(whole: Path) -> None:
    records = read(whole)
    expected = [
        ("limit", "float32", 16),
        *[("rope float32", "rope", 16), ("rope bfloat16", "rope", 16)],
        *[(f"rotated {phase}", "rope", 64) for phase in ("forward", "training")],
        *[(f"{load} {phase}", "several", 64) for phase in ("forward", "training") for load in ("quiet", "busy")],
        *[("decode", scheme, 64) for scheme in ("nope", "alibi")],
        *[(f"peers {phase}", s, 64) for phase in ("forward", "training") for s in ("alibi", "t5", "shaw_keys")],
        *[(f"price {phase}", s, 64) for phase in ("forward", "training") for s in ("nope", "alibi")],
    ]
    assert [(record["kind"], record["scheme"], record["length"]) for record in records] == expected
    for record in records:
        assert record["settings"]["heads"] == 2
        assert record["versions"].keys() >= {"posenc", "torch", "transformers", "x-transformers"}
        assert record["kernel"].keys() == {"kernel, float", "kernel, double", "kernel, bfloat16"}
        assert record["machine"].keys() >= {"processor", "vector units", "denormal numbers", "threads", "device"}
        assert record["time"]
        assert record["others"] is None or record["others"] >= 0
        assert record["fingerprint"]
        assert record["results"][record["baseline"]]["ratio"] == [1, 1, 1]
    assert {record["auto"] for record in records if record["kind"].startswith("price")} <= {
        b.name for b in run.BACKENDS
    }


def test_what_is_there_is_not_measured_again(whole: Path) -> None:
    before = read(whole)
    clock = Counting()
    assert bench(SMALL, whole, clock=clock) == before
    assert clock.calls == 0


@pytest.mark.more
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench(SMALL, tmp_path, clock=Counting(interrupt_at=40))
    kept = read(tmp_path)
    assert 0 < len(kept) < len(read(whole))
    records = bench(SMALL, tmp_path)
    assert records[: len(kept)] == kept
    assert sorted(map(str, map(key, records))) == sorted(map(str, map(key, read(whole))))


def test_schemes_lengths_and_sections_can_be_added(tmp_path: Path) -> None:
    first = replace(SMALL, only=("decode",), schemes=("nope",))
    bench(first, tmp_path)
    records = bench(replace(first, only=("decode", "growth"), schemes=("nope", "t5"), lengths=(64, 128)), tmp_path)
    assert [record["scheme"] for record in records if record["kind"] == "decode"] == ["nope", "t5"]
    assert len([record for record in records if record["kind"].startswith("growth")]) == 2 * 2 * 2


def test_neighbours_are_there_while_busy_groups_are_timed_and_are_not_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    now_busy = False

    @contextmanager
    def neighbours(cores: int) -> Iterator[None]:
        nonlocal now_busy
        assert cores == 3
        now_busy = True
        yield
        now_busy = False

    def race(*_: Any, **__: Any) -> dict[str, Any]:
        seen.append(("busy" if now_busy else "quiet", now_busy))
        return {"rounds": 0, "others": 9.0, "baseline": "plain", "results": {}}

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 4}, raising=False)  # of a machine with more
    monkeypatch.setattr(run, "neighbours", neighbours)
    monkeypatch.setattr(run, "race", race)
    records = bench(replace(SMALL, only=("busy",)), tmp_path)
    assert [record["kind"].split()[0] for record in records] == [kind for kind, _ in seen]
    assert [record["others"] for record in records] == [None if is_busy else 9.0 for _, is_busy in seen]
    assert not now_busy


@pytest.mark.parametrize("training", [False, True])
def test_positions_that_are_bound_once_are_bound_before_the_call(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[str] = []
    binding = cases._bound

    def count(scheme: Any, name: str, *rest: Any) -> Any:
        bound.append(name)
        return binding(scheme, name, *rest)

    inputs = Inputs.draw(SMALL, 64, 64, training)
    monkeypatch.setattr(cases, "_bound", count)
    answers = []
    for once, expected in ((True, 1), (False, 3)):
        bound.clear()
        work = cases.attention_work(SMALL, "rope_interleaved", 64, inputs, "auto", once)
        answers += [work() for _ in range(3)]
        assert len(bound) == expected
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0])


def test_ways_learn_nothing_where_they_are_bound_once() -> None:
    for way in (*cases.ROTATED.values(), *cases.DISTURBED.values()):
        assert not way.once or not list(cases.build_scheme(way.scheme, SMALL, 64).parameters())


def test_growth_is_measured_only_where_prices_are_not() -> None:
    both = {group.kind for group in groups(replace(SMALL, only=("price", "growth")))}
    assert both == {"limit", "price forward", "price training"}
    assert {group.kind for group in groups(replace(SMALL, only=("growth",)))} == {"growth forward", "growth training"}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("scheme", cases.all_schemes())
def test_every_scheme_can_be_priced_with_what_auto_takes(scheme: str, training: bool) -> None:
    built = cases.priced(SMALL, scheme, 128, training, ("auto",))
    out, *gradients = built.makes[built.facts["auto"]]()()
    assert out.shape == (1, 2, 128, 8)
    assert built.facts["why"]
    parameters = list(cases.build_scheme(scheme, SMALL, 128).parameters())
    assert [g.shape for g in gradients] == ([(1, 2, 128, 8)] * 3 + [p.shape for p in parameters] if training else [])


@pytest.mark.parametrize("scheme", cases.all_schemes())
def test_every_scheme_decodes(scheme: str) -> None:
    built = cases.decoded(SMALL, scheme)
    (plain,), (ours,) = (built.makes[name]()() for name in ("plain", "posenc"))
    assert plain.shape == ours.shape == (1, 2, 1, 8)
    if scheme == "nope":
        torch.testing.assert_close(ours, plain)


def test_a_backend_that_refuses_is_left_out_with_its_reason() -> None:
    built = cases.priced(SMALL, "distance_aware", 64, False, ("auto", "sdpa"))
    assert list(built.makes) == ["plain", built.facts["auto"], "sdpa"]
    with pytest.raises(LeftOutError, match="not additive"):
        built.makes["sdpa"]()


def test_what_auto_takes_is_measured_once() -> None:
    built = cases.priced(SMALL, "nope", 64, False, ("auto", "sdpa", "reference"))
    assert list(built.makes) == ["plain", "sdpa", "reference"]


# -- what is left out for its size ------------------------------------------------------------------------------------

PROBE = partial(cases.probed, SMALL, "alibi", False)
DENSE = cases.Group("price forward", "alibi", 8192, lambda: cases.Built({}, {}), work=1, probe=PROBE)


def shorter(seconds: float = 0.01, square: float = 0.0, line: float = 0.0) -> list[dict[str, Any]]:
    return [
        {
            "kind": "price forward",
            "scheme": "alibi",
            "length": n,
            "results": {"sdpa": {"seconds": [9.0, seconds * (n / 512) ** 2], "peak_bytes": square * n**2 + line * n}},
        }
        for n in (512, 1024)
    ]


def limits(records: list[dict[str, Any]], memory: int | None = 2**30) -> run._Limits:
    return run._Limits(SMALL, records, Counting(), memory)  # type: ignore[arg-type]


def test_memory_that_grows_with_the_square_is_told_from_shorter_calls() -> None:
    # 16 bytes a pair make exactly 1 GiB of 8,192 tokens, and half of the 1 GiB is the limit.
    assert limits(shorter(square=16)).reason(DENSE, "sdpa") == (
        "would need 1 GiB (told from 512 and 1,024 tokens), over 50% of the 1 GiB here"
    )
    assert limits(shorter(square=8)).reason(DENSE, "sdpa") == ""  # half of it exactly
    assert limits(shorter(line=1e5, square=0.1)).reason(DENSE, "sdpa") != ""
    assert limits(shorter(line=6e4)).reason(DENSE, "sdpa") == ""  # 0.46 GiB: what is not square is not squared
    assert limits(shorter(square=16), memory=None).reason(DENSE, "sdpa") == ""


def test_time_grows_with_the_square() -> None:
    # 1/64 of it at 1,024 tokens, so 16 times 0.32 s at 8,192 are 5.12 s; the allowed are 5.
    assert limits(shorter(seconds=5.12 / 256)).reason(DENSE, "sdpa") == (
        "would take 5 s a call (told from 512 and 1,024 tokens), over the 5 s allowed"
    )
    assert limits(shorter(seconds=4.9 / 256)).reason(DENSE, "sdpa") == ""


def test_a_short_call_is_always_made() -> None:
    assert limits(shorter(seconds=1e6)).reason(replace(DENSE, length=run.SHORT), "sdpa") == ""


def test_where_nothing_shorter_was_measured_two_calls_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PROBES", (64, 128))
    small = limits([], memory=2**26)
    assert "told from 64 and 128 tokens" in small.reason(DENSE, "reference")
    calls = small.clock.calls  # type: ignore[attr-defined]
    assert calls == 2 * (1 + run.PROBED)
    small.reason(replace(DENSE, length=16384), "reference")
    assert small.clock.calls == calls  # type: ignore[attr-defined]


def test_a_call_that_is_too_much_is_a_dash_and_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SHORT", 64)
    monkeypatch.setattr(run, "PROBES", (64, 128))
    monkeypatch.setattr(run, "machine", lambda device: {"memory_bytes": 1000})
    settings = replace(SMALL, only=("growth",), schemes=("t5",), lengths=(64, 256))
    last = bench(settings, tmp_path)[-1]
    assert last["length"] == 256
    assert "over 50% of the 0 GiB here" in last["results"][last["auto"]]["left_out"]
    assert last["results"]["plain"]["ratio"] == [1, 1, 1]


def test_grown_tells_the_line_from_the_square() -> None:
    def bytes_at(n: int) -> float:
        return 7 * n + 3 * n**2

    assert grown(512, bytes_at(512), 1024, bytes_at(1024), 4096) == pytest.approx(bytes_at(4096))
    assert grown(512, 512, 1024, 1024, 4096) == pytest.approx(4096)
    assert grown(512, 700, 1024, 1024, 4096) >= 0  # less than in proportion, as small calls may


# -- folders ----------------------------------------------------------------------------------------------------------


def test_records_without_a_configuration_are_not_this_benchmarks(tmp_path: Path) -> None:
    settings = replace(SMALL, only=("decode",), schemes=("nope",))
    bench(settings, tmp_path)
    (tmp_path / "config.toml").unlink()
    with pytest.raises(ValueError, match=r"holds records but no config\.toml to tell of what: give another folder"):
        bench(settings, tmp_path)


def test_an_older_folder_is_resumed(tmp_path: Path) -> None:
    """It has ``settings.json`` instead of ``config.toml``."""
    settings = replace(SMALL, only=("decode",), schemes=("nope",))
    (record,) = bench(settings, tmp_path)
    about = {part: record[part] for part in ("settings", "versions", "machine", "kernel")}
    (tmp_path / "settings.json").write_text(json.dumps(about))
    (tmp_path / "config.toml").unlink()
    assert bench(settings, tmp_path) == [record]
    assert saved.identity_in(tmp_path, Settings.from_mapping)["machine"]["cores"] == record["machine"]["cores"]
    (tmp_path / "config.toml").unlink()
    with pytest.raises(ValueError, match=r"holds another benchmark, with heads \d+ there and 3 here: give another"):
        bench(replace(settings, heads=3), tmp_path)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings\.json is not JSON \(.* at column 2\): give another folder"):
        bench(settings, tmp_path)


@pytest.mark.gpu
def test_on_cuda(tmp_path: Path) -> None:
    records = bench(replace(SMALL, device="cuda", schemes=("nope", "alibi", "learned")), tmp_path)
    for record in records:
        assert record["results"][record["baseline"]]["ratio"] == [1, 1, 1]
        assert not [r for r in record["results"].values() if r.get("left_out", "").startswith("failed")]


def test_another_build_of_the_kernel_is_another_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SMALL, only=("decode",), schemes=("nope",))
    monkeypatch.setattr(run, "kernel", lambda: {"kernel, float": "v4, by g++ 12"})
    bench(settings, tmp_path)
    monkeypatch.setattr(run, "kernel", lambda: {"kernel, float": "v3, by g++ 12"})
    said = r"with kernel, float 'v4, by g\+\+ 12' there and 'v3, by g\+\+ 12' here: give another folder"
    with pytest.raises(ValueError, match=said):
        bench(settings, tmp_path)


def test_a_damaged_configuration_is_named(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.toml").write_text("{")
    with pytest.raises(ValueError, match=r"config\.toml, line 1, is not TOML: "):
        bench(SMALL, tmp_path)
