"""What is faster is measured on the machine at hand: raced once, kept, read again, cited, and left alone where it says
nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import posenc
from posenc import ALiBi, NoPE, RoPE
from posenc.backends import races
from posenc.backends.native import library
from posenc.backends.races import Kind, Lap
from posenc.command.cli import main
from posenc.scheme import Scheme

pytestmark = pytest.mark.skipif(library.missing(torch.float32) is not None, reason="there is no kernel to race")
THREADS = 3  # of kinds that no other test has


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Kind]:
    """Races are on, none was run yet, and each is made up: PyTorch is ahead below 100 tokens. The kinds run."""
    run: list[Kind] = []

    def invented(kind: Kind) -> races.Race:
        run.append(kind)
        return tuple(Lap(n, 1.0, 2.0 if n < 100 else 0.5, True) for n in races.LENGTHS)

    monkeypatch.setenv("POSENC_RACES", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(races, "_RACES", {})
    monkeypatch.setattr(races, "_run", invented)
    return run


Q = torch.randn(1, 2, 600, 32)
CASES: dict[str, tuple[int, Scheme | None, dict[str, Any], str, str]] = {
    "nothing, short": (80, None, {}, "sdpa", "float32, plain, causal, forward, 64"),
    "nothing": (110, NoPE(), {}, "native", "float32, plain, causal, forward, 64"),
    "rotated": (110, RoPE(32), {}, "native", "float32, rotated, causal, forward, 64"),
    "both directions": (
        600,
        RoPE(32),
        {"is_causal": False},
        "native",
        "float32, rotated, both directions, forward, 64",
    ),
    "training": (600, RoPE(32), {"grad": True}, "native", "float32, rotated, causal, training, 64"),
    "bfloat16": (600, None, {"dtype": torch.bfloat16}, "native", "bfloat16, plain, causal, forward, 64"),
    "float16": (600, None, {"dtype": torch.float16}, "native", "float16, plain, causal, forward, 64"),
    "padded channels": (600, None, {"width": 20}, "native", "float32, plain, causal, forward, 60"),
    "wide heads": (600, None, {"width": 128}, "native", "float32, plain, causal, forward, 128"),
    "a score term": (600, ALiBi(2), {}, "native", ""),
    "a mask": (300, None, {"attn_mask": torch.ones(300, 300).bool()}, "sdpa", ""),
    "dropout": (600, None, {"dropout_p": 0.5}, "sdpa", ""),
    "few queries": (3, None, {}, "sdpa", "float32, plain, causal, forward, few queries, 64"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_race_of_its_kind_decides_and_is_run_once(case: str, raced: list[Kind]) -> None:
    tokens, scheme, how, expected, kind = CASES[case]
    how = {"is_causal": True, **how}
    dtype, width, grad = how.pop("dtype", torch.float32), how.pop("width", 32), how.pop("grad", False)
    q = torch.randn(1, 2, tokens, width, dtype=dtype, requires_grad=grad)
    for _ in range(2):
        explained = posenc.explain(q, q, q, scheme, **how)
        assert explained.backend == expected
    assert [str(each).startswith(kind) for each in raced] == [True] * (kind != "")
    if kind and expected == "native":
        assert "in a race on this machine the kernel took 500 ms against 1e+03 at " in explained.why


BAD: tuple[Any, ...] = ([[1]], [], [[0, 1.0, 1.0, True]], [[16, 0.0, 1.0, True]], [[16, 1.0, float("inf"), True]], 7)


def test_a_race_is_kept_for_other_processes_unless_its_file_is_no_good(raced: list[Kind]) -> None:
    kind = Kind(torch.float32, True, True, False, False, 64, THREADS)
    first = races.race_of(kind)
    path = races.path_of("float")
    assert path is not None
    assert json.loads(path.read_text()) == {str(kind): [list(lap) for lap in first or ()]}
    races._RACES.clear()
    assert races.race_of(kind) == first
    assert raced == [kind]
    for content in ("", "{", "[]", *map(json.dumps, ({str(kind): laps} for laps in BAD))):
        races._RACES.clear()
        path.write_text(content)
        assert races.race_of(kind) == first
    assert raced == [kind] * (4 + len(BAD))
    assert races.stored("float") == {str(kind): first}


def test_a_race_that_is_too_noisy_is_run_again_by_the_next_process(
    raced: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, noisy = Kind(torch.float32, True, True, False, False, 64, THREADS), (Lap(16, 1.0, 2.0, False),)
    monkeypatch.setattr(races, "_run", lambda kind: noisy)
    assert races.race_of(kind) == races.race_of(kind) == noisy
    assert races.stored("float") == {}


def test_nothing_is_raced_where_operations_are_watched_or_races_are_off(
    raced: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Kind(torch.float32, True, True, False, False, 64, THREADS)
    with torch.autograd.profiler.profile():
        assert races.race_of(kind) is None
    monkeypatch.setenv("POSENC_RACES", "off")
    assert races.race_of(kind) is None
    assert raced == []


@pytest.mark.parametrize(("is_training", "is_few"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_race_runs_both_and_disturbs_nothing(dtype: torch.dtype, is_training: bool, is_few: bool) -> None:
    state = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        laps = races._run(Kind(dtype, True, False, is_training, is_few, 60, torch.get_num_threads()))
    assert [lap.tokens for lap in laps] == list(races.LENGTHS)[: len(laps)]
    assert len(laps) >= races.LENGTHS.index(races.DECIDING_TOKENS) + 1
    assert all(lap.pytorch > 0 < lap.kernel for lap in laps)
    assert torch.equal(state, torch.get_rng_state())


def test_what_is_too_noisy_to_tell_is_the_default() -> None:
    laps = [Lap(n, 1.0, seconds, False) for n, seconds in ((64, 0.5), (256, 2.0))]
    assert [lap.is_kernel for lap in laps] == [False, True]
    assert str(laps[1]) == "2e+03 ms against 1e+03 at 256 tokens, too noisy to tell"
    assert [races.nearest(tuple(laps), n).tokens for n in (0, 20, 127, 129, 5000)] == [64, 64, 64, 256, 256]


def test_a_graph_takes_the_kernel_where_it_is_ahead_at_every_length(
    raced: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken() -> list[str]:
        found: list[str] = []

        def attend(q: torch.Tensor) -> torch.Tensor:
            return posenc.attention(q, q, q, RoPE(32), is_causal=True)

        def keep(graph: torch.fx.GraphModule, _: object) -> Any:
            found.extend(str(node.target) for node in graph.graph.nodes if "native" in str(node.target))
            return graph.forward

        torch._dynamo.reset()
        torch.compile(attend, backend=keep, fullgraph=True)(Q)
        return found

    assert taken() == []
    monkeypatch.setattr(races, "_RACES", {kind: race[2:] for kind, race in races._RACES.items()})
    assert taken() == ["posenc.native.default"]


@pytest.mark.parametrize("how", ["checkpoint", "hooks"])
def test_a_race_inside_of_saved_tensor_hooks_is_none_of_their_business(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A checkpoint's hooks run the layer again, in which the race is."""
    monkeypatch.setenv("POSENC_RACES", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(races, "_RACES", {})
    monkeypatch.setattr(races, "SECONDS_OF_ROUNDS", 0.0)
    x, saved = [torch.randn(1, 2, 40, 16, requires_grad=True) for _ in range(3)], []

    def attend(*layer: torch.Tensor) -> Any:
        return posenc.attention(*layer, RoPE(16), is_causal=True)

    expected = torch.autograd.grad(posenc.attention(*x, RoPE(16), is_causal=True, backend="sdpa").sum(), x)  # type: ignore[union-attr]
    if how == "checkpoint":
        out = torch.utils.checkpoint.checkpoint(attend, *x, use_reentrant=False)
    else:
        with torch.autograd.graph.saved_tensors_hooks(lambda y: (saved.append(y), y)[1], lambda y: y):
            out = attend(*x)
        assert len(saved) < 20
    assert list(races._RACES) == [Kind(torch.float32, True, True, True, False, 64, torch.get_num_threads())]
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x), expected)


def test_nothing_is_raced_under_another_switch_of_pytorchs_attention(raced: list[Kind]) -> None:
    kind = Kind(torch.float32, True, True, False, False, 64, THREADS)
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        assert races.race_of(kind) is None
    assert races.race_of(kind) is not None


def test_the_command_sums_races_up_and_lists_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    laps = (Lap(16, 1.0, 2.0, True), Lap(64, 1.0, 0.5, True), Lap(256, 1.0, 0.25, True), Lap(512, 1.0, 9.0, False))
    monkeypatch.setattr(races, "stored", lambda precision: {"plain": laps} if precision == "float" else {})
    main(["kernel"])
    summed = capsys.readouterr().out
    assert "faster than PyTorch's attention in 2 of 3, 0.25 to 2.00 of its time" in summed
    assert "plain" not in summed
    main(["kernel", "--races"])
    assert "    plain   16: 2.00, 64: 0.50, 256: 0.25, 512: 9.00 (too noisy)\n" in capsys.readouterr().out
