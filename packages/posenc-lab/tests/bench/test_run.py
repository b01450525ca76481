from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from posenc_lab.bench import cases, run
from posenc_lab.bench.measure import LeftOutError, Work
from posenc_lab.bench.run import bench
from posenc_lab.bench.settings import Settings
from posenc_lab.kit.machine import clock_of
from posenc_lab.kit.records import key, read
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


def test_every_group_is_a_record_with_all_that_made_it(whole: Path) -> None:
    records = read(whole)
    expected = [(f"price {phase}", s, 64) for phase in ("forward", "training") for s in ("nope", "alibi")]
    assert [(record["kind"], record["scheme"], record["length"]) for record in records] == expected
    for record in records:
        assert record["settings"]["heads"] == 2
        assert record["versions"].keys() >= {"posenc", "torch"}
        assert record["kernel"].keys() == {"kernel, float", "kernel, double", "kernel, bfloat16"}
        assert record["machine"].keys() >= {"processor", "vector units", "denormal numbers", "threads", "device"}
        assert record["time"]
        assert record["others"] is None or record["others"] >= 0
        assert record["fingerprint"]
        assert record["results"][record["baseline"]]["ratio"] == [1, 1, 1]
    assert {record["auto"] for record in records} <= {backend.name for backend in run.BACKENDS}


def test_what_is_there_is_not_measured_again(whole: Path) -> None:
    before = read(whole)
    clock = Counting()
    assert bench(SMALL, whole, clock=clock) == before
    assert clock.calls == 0


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench(SMALL, tmp_path, clock=Counting(interrupt_at=20))
    kept = read(tmp_path)
    assert 0 < len(kept) < len(read(whole))
    records = bench(SMALL, tmp_path)
    assert records[: len(kept)] == kept
    assert sorted(map(str, map(key, records))) == sorted(map(str, map(key, read(whole))))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("scheme", cases.all_schemes())
def test_every_scheme_can_be_priced_with_what_auto_takes(scheme: str, training: bool) -> None:
    built = cases.priced(SMALL, scheme, 128, training, ("auto",))
    out, *gradients = built.makes[built.facts["auto"]]()()
    assert out.shape == (1, 2, 128, 8)
    assert built.facts["why"]
    parameters = list(cases.build_scheme(scheme, SMALL, 128).parameters())
    assert [g.shape for g in gradients] == ([(1, 2, 128, 8)] * 3 + [p.shape for p in parameters] if training else [])


def test_a_backend_that_refuses_is_left_out_with_its_reason() -> None:
    built = cases.priced(SMALL, "distance_aware", 64, False, ("auto", "sdpa"))
    assert list(built.makes) == ["plain", built.facts["auto"], "sdpa"]
    with pytest.raises(LeftOutError, match="not additive"):
        built.makes["sdpa"]()


# -- what is left out for its size ------------------------------------------------------------------------------------

PROBE = partial(cases.probed, SMALL, "alibi", False)
DENSE = cases.Group("price forward", "alibi", 8192, lambda: cases.Built({}, {}), work=1, probe=PROBE)


@pytest.mark.parametrize(
    ("seconds", "square", "line", "memory", "reason"),
    [
        # 16 bytes a pair make exactly 1 GiB of 8,192 tokens, and half of the 1 GiB is the limit.
        (0.01, 16, 0, 2**30, "would need 1 GiB (told from 512 and 1,024 tokens), over 50% of the 1 GiB here"),
        (0.01, 8, 0, 2**30, ""),
        (0.01, 0.1, 1e5, 2**30, "would need 1 GiB (told from 512 and 1,024 tokens), over 50% of the 1 GiB here"),
        (0.01, 0, 6e4, 2**30, ""),  # 0.46 GiB: what is not square is not squared
        (0.01, 16, 0, None, ""),
        # 1/64 of it at 1,024 tokens, so 0.08 s there are 5.12 s at 8,192; the allowed are 5.
        (0.08, 0, 0, None, "would take 5 s a call (told from 512 and 1,024 tokens), over the 5 s allowed"),
        (0.0766, 0, 0, None, ""),
    ],
)
def test_long_calls_are_told_from_two_short_ones(
    seconds: float, square: float, line: float, memory: int | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = run._Limits(SMALL, Counting(), memory)
    measured = {n: (seconds * (n / 1024) ** 2, int(square * n**2 + line * n)) for n in run.PROBES}
    monkeypatch.setattr(limits, "_probe", lambda group, name, length: measured[length])
    assert limits.reason(DENSE, "sdpa") == reason
    assert limits.reason(replace(DENSE, length=run.SHORT_TOKENS), "sdpa") == ""


def test_a_call_that_is_too_much_is_a_dash_and_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SHORT_TOKENS", 64)
    monkeypatch.setattr(run, "PROBES", (64, 128))
    monkeypatch.setattr(run, "machine", lambda device: {"memory_bytes": 1000})
    settings = replace(SMALL, schemes=("t5",), lengths=(64, 256))
    last = bench(settings, tmp_path)[-1]
    assert last["length"] == 256
    assert "over 50% of the 0 GiB here" in last["results"][last["auto"]]["left_out"]
    assert last["results"]["plain"]["ratio"] == [1, 1, 1]


# -- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_cuda(tmp_path: Path) -> None:
    records = bench(replace(SMALL, device="cuda", schemes=("nope", "alibi", "learned")), tmp_path)
    for record in records:
        assert record["results"][record["baseline"]]["ratio"] == [1, 1, 1]
        assert not [r for r in record["results"].values() if r.get("left_out", "").startswith("failed")]
