"""What is faster is measured on the machine at hand: raced once, kept, read again, cited, and left alone where it says
nothing."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import posenc
from posenc import KERPLE, T5, ALiBi, FoX, NoPE, Positions, RoPE, Shaw, TransformerXL, compat
from posenc.backends import choose, races
from posenc.backends.call import Backend, Call
from posenc.backends.chunked import CHUNKED
from posenc.backends.native import library
from posenc.backends.races import Kind, Lap
from posenc.backends.reference import REFERENCE
from posenc.backends.request import Request
from posenc.backends.triton import backend as triton
from posenc.command import tuning
from posenc.command.cli import main
from posenc.encoding.context import projected_at_random
from posenc.scheme import Scheme
from tests.backends.test_triton import INTERPRETED

pytestmark = pytest.mark.skipif(library.missing(torch.float32) is not None, reason="there is no kernel to race")
THREADS = 3  # of kinds that no other test has


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Kind]:
    """Races are on, none was run yet, and each is made up: PyTorch is ahead below 100 tokens. The kinds run."""
    run: list[Kind] = []

    def invented(kind: Kind, benchmark: races.Benchmark) -> races.Race:
        run.append(kind)
        return tuple(Lap(n, {"sdpa": 1.0, "native": 2.0 if n < 100 else 0.5}, True) for n in races.LENGTHS)

    monkeypatch.setenv("POSENC_RACES", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(races, "_RACES", {})
    monkeypatch.setattr(races, "run", invented)
    return run


def on(
    threads: int | None,
    dtype: torch.dtype = torch.float32,
    is_causal: bool = True,
    is_training: bool = False,
    is_few: bool = False,
    width: int = 64,
) -> Kind:
    """A kind that is rotated, of so many threads; None: those that there are."""
    return Kind(
        dtype, "rotated", is_causal, is_training, is_few, width, races.on_cpu(threads or torch.get_num_threads())
    )


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
        assert "in a race on this machine native took 500 ms against 1e+03 of sdpa at " in explained.why


def no_races(first: str, second: str, other: str) -> tuple[Any, ...]:
    """What is no race of the first two backends, of which the other is none."""
    of_second = (0.0, math.nan, math.inf, "1.0")
    seconds = {second: 1.0}, {first: 2.0, other: 1.0}, [2.0, 1.0], *({first: 2.0, second: x} for x in of_second)
    tokens = ([[n, {first: 2.0, second: 1.0}, True]] for n in (0, "512"))
    return [], 7, [[1]], *tokens, *([[512, each, True]] for each in seconds)


def test_a_race_is_kept_for_other_processes_unless_its_file_is_no_good(raced: list[Kind]) -> None:
    kind = on(THREADS)
    first = races.race_of(kind)
    path = races.path_of("float")
    assert path is not None
    assert json.loads(path.read_text()) == {str(kind): [list(lap) for lap in first or ()]}
    races._RACES.clear()
    assert races.race_of(kind) == first
    assert raced == [kind]
    contents = ["", "{", "[]", *(json.dumps({str(kind): laps}) for laps in no_races("sdpa", "native", "triton"))]
    for content in contents:
        races._RACES.clear()
        path.write_text(content)
        assert races.race_of(kind) == first
    assert raced == [kind] * (1 + len(contents))
    os.utime(path, (0, 0))
    assert races.stored("float") == {str(kind): first}
    assert path.stat().st_mtime > 0  # so that it is not removed as unused


def test_a_race_that_is_too_noisy_is_run_again_by_the_next_process(
    raced: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, noisy = on(THREADS), (Lap(16, {"sdpa": 1.0, "native": 2.0}, False),)
    monkeypatch.setattr(races, "run", lambda kind, benchmark: noisy)
    assert races.race_of(kind) == races.race_of(kind) == noisy
    assert races.stored("float") == {}


def test_nothing_is_raced_where_operations_are_watched_or_races_are_off(
    raced: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = on(THREADS)
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
        laps = races.run(on(None, dtype, False, is_training, is_few, 60), races.CPU)
    assert [lap.tokens for lap in laps] == list(races.LENGTHS)[: len(laps)]
    assert len(laps) >= races.LENGTHS.index(races.DECIDING_TOKENS) + 1
    assert all(lap.seconds["sdpa"] > 0 < lap.seconds["native"] for lap in laps)
    assert torch.equal(state, torch.get_rng_state())


def test_what_is_too_noisy_to_tell_is_the_default() -> None:
    laps = [Lap(n, {"sdpa": 1.0, "native": seconds}, False) for n, seconds in ((64, 0.5), (256, 2.0))]
    assert [lap.is_kernel for lap in laps] == [False, True]
    assert laps[1].comparison("native") == "native took 2e+03 ms against 1e+03 of sdpa at 256 tokens, too noisy to tell"
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
    assert list(races._RACES) == [on(torch.get_num_threads(), is_training=True)]
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x), expected)


def test_nothing_is_raced_under_another_switch_of_pytorchs_attention(raced: list[Kind]) -> None:
    kind = on(THREADS)
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        assert races.race_of(kind) is None
    assert races.race_of(kind) is not None


def test_the_command_sums_races_up_and_lists_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_kernel = {16: 2.0, 64: 0.5, 256: 0.25, 512: 9.0}
    laps = [Lap(n, {"sdpa": 1.0, "native": seconds}, n < 512) for n, seconds in of_kernel.items()]
    monkeypatch.setattr(races, "stored", lambda precision: {"plain": laps} if precision == "float" else {})
    main(["kernel"])
    summed = capsys.readouterr().out
    assert "faster than PyTorch's attention in 2 of 3, 0.25 to 2.00 of its time" in summed
    assert "plain" not in summed
    assert "none yet" not in summed
    main(["kernel", "--races"])
    listed = capsys.readouterr().out
    assert "    plain   16: 2.00, 64: 0.50, 256: 0.25, 512: 9.00 (too noisy)\n" in listed
    converted = "bfloat16 is converted here, and its races are float's\n"
    assert listed.count("  races: none yet; first calls of a kind run one\n") == 2 - (converted in listed)


# --- on a GPU, as far as choosing goes --------------------------------------------------------------------------------


class Elsewhere(torch.Tensor):
    """Says that it is on a GPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A GPU by the name of X on which nothing was raced."""
    monkeypatch.setenv("POSENC_RACES", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "X")
    monkeypatch.setattr(triton, "missing", lambda: None)
    races.races_on.cache_clear()
    yield
    races.races_on.cache_clear()


def chosen(scheme: Scheme | None, tokens: int = 600, width: int = 64, **how: Any) -> tuple[str, str, str]:
    """The backend that a call would have there, why, and the words of its kind."""
    grad, dtype, queries = how.pop("grad", False), how.pop("dtype", torch.bfloat16), how.pop("queries", tokens)
    heads, at = how.pop("heads", 2), Positions.arange(tokens)
    q, k = (torch.randn(1, h, n, width, dtype=dtype, requires_grad=grad) for h, n in ((heads, queries), (2, tokens)))
    encoding = None if scheme is None else scheme(at if queries == tokens else at[-queries:], at, dtype=torch.float32)
    if encoding is not None and encoding.wanted:
        x = torch.randn(1, tokens, 2 * width)
        encoding = encoding.with_projected(projected_at_random(scheme.features, x))
    how = {"is_causal": True, **how}
    with torch.set_grad_enabled(grad):
        *_, call = Request.of(query=q, key=k, value=k, encoding=encoding, **how).checked()
        call = replace(call, query=call.query.as_subclass(Elsewhere))
        backend, why = choose.choose(call)
        return backend.name, why, str(races.kind_on_gpu(call))


def record(kinds: Iterable[Kind], **milliseconds: float) -> None:
    """A race for each kind, at two lengths, of which the first has other times."""
    laps = [[n, {name: ms * n / 512e3 for name, ms in milliseconds.items()}, True] for n in (256, 512)]
    write({str(kind): laps for kind in kinds})


def write(content: Any) -> None:
    path = races.path_of("X")
    assert path is not None
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    races.races_on.cache_clear()


ON_GPU: dict[str, tuple[Callable[[], Scheme | None], dict[str, Any], str, str]] = {
    "nothing": (lambda: None, {}, "bfloat16, plain, causal, forward, 64", "sdpa"),
    "rotated": (lambda: RoPE(64), {}, "bfloat16, plain, causal, forward, 64", "sdpa"),
    "training": (NoPE, {"grad": True}, "bfloat16, plain, causal, training, 64", "sdpa"),
    "both": (NoPE, {"is_causal": False}, "bfloat16, plain, both directions, forward, 64", "sdpa"),
    "a step": (lambda: None, {"queries": 1}, "bfloat16, plain, causal, forward, few queries, 64", "sdpa"),
    "float16": (NoPE, {"dtype": torch.float16}, "float16, plain, causal, forward, 64", "sdpa"),
    "72 channels": (NoPE, {"width": 72}, "bfloat16, plain, causal, forward, 80", "sdpa"),
    "a line": (lambda: ALiBi(2), {}, "bfloat16, line, causal, forward, 64", "triton"),
    "a line, training": (lambda: ALiBi(2), {"grad": True}, "bfloat16, line, causal, training, 64", "triton"),
    "a table": (lambda: T5(2), {}, "bfloat16, table, causal, forward, 64", "triton"),
    "a learned table": (lambda: T5(2), {"grad": True}, "bfloat16, learned table, causal, training, 64", "triton"),
    "vectors": (lambda: Shaw(64, 5, values=False), {}, "bfloat16, vectors, causal, forward, 64", "triton"),
    "a clock": (lambda: FoX(2), {}, "bfloat16, clock, causal, forward, 64", "triton"),
    "float32": (NoPE, {"dtype": torch.float32}, "float32, plain, causal, forward, 64", "sdpa"),
    "TF32": (NoPE, {"dtype": torch.float32, "tf32": True}, "None", "sdpa"),
    "heads that share keys": (lambda: ALiBi(4), {"heads": 4}, "None", "triton"),
    "a table without an end": (lambda: KERPLE(2), {}, "None", "flex"),
    "a learned one": (lambda: KERPLE(2), {"grad": True}, "None", "triton"),
    "two tables": (lambda: T5(2) + T5(2), {}, "None", "triton"),
    "vectors of values": (lambda: Shaw(64, 5), {}, "None", "triton"),
    "vectors of all distances": (lambda: TransformerXL(128, 2, 64), {}, "None", "triton"),
    "300 channels": (NoPE, {"width": 300}, "None", "sdpa"),
    "a window": (lambda: ALiBi(2), {"window": 200}, "None", "triton"),
    "dropout": (NoPE, {"dropout_p": 0.5}, "None", "sdpa"),
    "the log-sum-exp": (lambda: ALiBi(2), {"return_lse": True}, "None", "triton"),
    "a line and a clock": (lambda: ALiBi(2) + FoX(2), {}, "None", "triton"),
    "60 tokens": (lambda: ALiBi(2), {"tokens": 60}, "bfloat16, line, causal, forward, 64", "triton"),
}


@pytest.mark.parametrize("case", ON_GPU)
def test_on_a_gpu_the_race_of_its_kind_decides_and_without_one_the_table(
    case: str, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, how, words, by_table = ON_GPU[case]
    words, how = words if words == "None" else f"{words} channels, X", dict(how)
    is_tf32 = how.pop("tf32", False)
    monkeypatch.setattr(compat, "multiplies_in_tf32", lambda: is_tf32)
    backend, why, kind = chosen(make(), **how)
    assert (backend, kind) == (by_table, words)
    assert ("timed on an H100 alone" in why) == (backend != "sdpa")
    record(tuning.kinds("another"), triton=1.0, flex=0.5, sdpa=0.2)
    assert chosen(make(), **how)[:2] == (backend, why)
    faster = {"sdpa": "triton", "triton": "flex", "flex": "triton"}[by_table]
    record([kind for kind in tuning.kinds("X") if words in ("None", str(kind))], **{by_table: 2.25, faster: 1.5})
    said = f"in a race on this device {faster} took 1.5 ms against 2.25 of {by_table} at 512 tokens"
    is_raced = words != "None" and case != "60 tokens"
    assert chosen(make(), **how)[:2] == ((faster, said) if is_raced else (by_table, why))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"bfloat16, line', "7", *no_races("triton", "flex", "flex_flash")])
def test_what_is_no_file_of_races_is_as_good_as_none(content: Any, gpu: None) -> None:
    expected = chosen(ALiBi(2))
    write(content if isinstance(content, str) else {expected[2]: content})
    assert chosen(ALiBi(2)) == expected
    assert expected[0] == "triton"


def test_of_a_race_the_fastest_that_takes_the_call_wins(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's attention has no mask in float32 beside bfloat16, and is not given one of many pairs."""
    record(tuning.kinds("X"), sdpa=0.5, flex=1.0, triton=1.5)
    assert [chosen(ALiBi(2), n, dtype=torch.float32)[0] for n in (600, 1600)] == ["sdpa", "flex"]
    assert chosen(NoPE(), 1600, dtype=torch.float32)[0] == "sdpa"
    said = "in a race on this device flex took 1 ms against 0.5 of sdpa and 1.5 of triton at 512 tokens"
    assert chosen(ALiBi(2))[:2] == ("flex", said)
    monkeypatch.setattr(compat, "flash_attention", lambda: "FA3")  # another kind
    assert chosen(ALiBi(2))[::2] == ("triton", "bfloat16, line, causal, forward, 64 channels, X, FA3")


def test_each_gpu_has_a_file_whose_name_depends_on_what_a_race_runs(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    names: set[str] = set()
    monkeypatch.setattr(
        Path, "read_text", lambda path, *how, **more: names.add(path.name) or path.read_bytes().decode()
    )
    assert len({races.path_of(place) for place in ("float", "X", "X, FA3", "Y")}) == 4
    assert {"races.py", "tuning.py", "flex.py", "sdpa.py", "blockwise.py", "operator.py", "forms.py"} <= names


@pytest.mark.parametrize("how", ["off", "traced", "undisturbed"])
def test_races_on_a_gpu_are_read_in_eager_calls_alone(how: str, gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tuning.kinds("X"), flex=1.0, triton=1.5)
    if how == "off":
        monkeypatch.setenv("POSENC_RACES", "0")
    if how == "traced":
        monkeypatch.setattr(compat, "is_eager", lambda: False)
    assert chosen(ALiBi(2))[0] == ("flex" if how == "undisturbed" else "triton")


# --- the races themselves, with backends of the CPU under a GPU's names -----------------------------------------------


def off_by_a_head(call: Call) -> Any:
    out, lse = CHUNKED.run(call)
    return out.roll(1, 1), lse


def too_large(call: Call) -> Any:
    if call.key.size(2) >= 64:
        raise torch.OutOfMemoryError("no memory")
    return CHUNKED.run(call)


@dataclass
class Clock:
    """A second for each run of triton, two for those of others; it stops the command after so many kinds."""

    kinds: list[str] = field(default_factory=list)
    names: dict[races.Run, str] = field(default_factory=dict)
    rounds: int = 0
    stops_after: int = 1000
    unsteady: tuple[str, ...] = ()  # kinds of which each time is three times the one before

    def seconds(self, run: races.Run, count: int) -> float:
        run()
        self.rounds += 1
        slow = 3.0**self.rounds if self.kinds[-1:] and self.kinds[-1] in self.unsteady else 1.0
        return slow * (1.0 if self.names[run] == "triton" else 2.0)


@pytest.fixture
def clock(gpu: None, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Small calls, for which no time is measured."""
    made, run_of, run, benchmark_on = Clock(), races.run_of, races.run, tuning.benchmark_on

    def named(backend: Backend, *rest: Any) -> races.Run:
        found = run_of(backend, *rest)
        made.names[found] = backend.name
        return found

    def counted(kind: Kind, benchmark: races.Benchmark) -> races.Race:
        if len(made.kinds) >= made.stops_after:
            raise KeyboardInterrupt
        made.kinds.append(str(kind))
        return run(kind, benchmark._replace(seconds=made.seconds))

    for name, few in {"TOKENS": 64, "CHANNELS": 256, "SEQUENCES": 2, "LENGTHS": (32, 64), "CHECKED_TOKENS": 40}.items():
        monkeypatch.setattr(tuning, name, few)
    monkeypatch.setattr(races, "ROUNDS", (3, 3))
    monkeypatch.setattr(races, "run_of", named)
    monkeypatch.setattr(races, "run", counted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tuning, "benchmark_on", lambda device, say: benchmark_on(torch.device("cpu"), say))
    fakes = replace(CHUNKED, name="triton"), replace(REFERENCE, name="flex")
    monkeypatch.setattr(choose, "BACKENDS", (choose.SDPA, *fakes, CHUNKED, REFERENCE))
    return made


def test_the_command_races_what_was_not_raced(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stops and goes on with nothing lost, leaves out what computes something else or fails, at any length, and says
    what it found, and what it did not keep."""
    wrong = replace(REFERENCE, name="flex", run=off_by_a_head)
    monkeypatch.setattr(choose, "BACKENDS", (*choose.BACKENDS[:2], wrong, *choose.BACKENDS[3:]))
    words = ["bfloat16", "64 channels"]
    names = [str(kind) for kind in tuning.kinds("X") if kind.dtype == torch.bfloat16 and kind.width == 64]
    assert len(names) == 25
    clock.stops_after = 4
    assert main(["kernel", "--tune", *words]) == 1
    assert clock.kinds == names[:4] == list(races.stored("X"))
    said = capsys.readouterr().err
    assert f"{names[0]}: flex is left out at 40 tokens: its error is " in said
    assert f"{names[0]}: triton took 1e+03 ms against 2e+03 of sdpa at 32 tokens; triton took " in said
    assert said.endswith("posenc: error: interrupted\n")
    clock.stops_after, clock.unsteady = 1000, (names[7],)
    for before, now, more in ((4, 21, 1), (24, 1, 1), (24, 1, 0), (25, 0, 0)):
        clock.unsteady = clock.unsteady * more
        assert main(["kernel", "--tune", *words]) == 0
        out, said = capsys.readouterr()
        noisy = ", of which 1 were too noisy to keep: the same command runs them again" * more
        assert out == f"25 kinds of calls: {before} were raced before, {now} now{noisy}\n"
        assert said.count("too noisy to tell; it is not kept") == more
    assert clock.kinds == [*names, names[7], names[7]]
    expected = tuple(Lap(n, {"sdpa": 2.0, "triton": 1.0}, True) for n in (32, 64))
    assert races.stored("X") == dict.fromkeys(names, expected)
    assert main(["kernel", "--races"]) in (0, 1)
    listed = capsys.readouterr().out
    assert "X\n  races: fastest triton in 50\n" in listed
    assert f"    {names[0]}\n      triton took 1e+03 ms against 2e+03 of sdpa at 32 tokens\n" in listed


FAILING = {
    "one": (["flex"], [["sdpa", "triton", "flex"], ["sdpa", "triton"]]),
    "all but one": (["flex", "triton"], [["sdpa", "triton", "flex"]]),
    "too few": (["flex", "triton"], []),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_backend_that_fails_at_a_length_is_left_out_there(
    case: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kind that has less than two is not raced again."""
    failing, expected = FAILING[case]
    if case == "too few":
        monkeypatch.setattr(tuning, "CHECKED_TOKENS", 64)
    backends = (replace(x, run=too_large) if x.name in failing else x for x in choose.BACKENDS)
    monkeypatch.setattr(choose, "BACKENDS", tuple(backends))
    for now in (1, 0):
        assert main(["kernel", "--tune", "float16", "line", "causal", "training", "64 channels"]) == 0
        out, said = capsys.readouterr()
        assert out == f"1 kinds of calls: {1 - now} were raced before, {now} now\n"
        for name in failing:
            assert said.count(f"{name} is left out at 64 tokens: OutOfMemoryError: no memory\n") == now
        assert said.count("fewer than two backends take it") == (now if expected == [] else 0)
    assert [[*lap.seconds] for race in races.stored("X").values() for lap in race] == expected
    assert chosen(ALiBi(2), dtype=torch.float16, grad=True)[0] == "triton"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_kind_is_one_that_calls_have_and_is_computed_right(dtype: str, clock: Clock) -> None:
    """By three backends whose results are compared with the reference, gradients of what is learned too."""
    found: list[str] = []
    benchmark = tuning.benchmark_on(torch.device("cuda"), found.append)
    for kind in tuning.kinds("X"):
        if str(kind).startswith(dtype) and kind.width == 96:
            call, _ = tuning.call_of(kind, 64, torch.device("cpu"))
            with torch.set_grad_enabled(kind.is_training):
                assert races.kind_on_gpu(call) == kind
            assert [len(lap.seconds) for lap in races.run(kind, benchmark)] == [3, 3]
    assert found == []


@pytest.mark.triton
@pytest.mark.skipif(not INTERPRETED, reason="the kernels are not interpreted in this process")
@pytest.mark.parametrize("added", ["line", "clock"])
def test_so_are_the_kernels_of_a_gpu(added: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "BACKENDS", (choose.SDPA, triton.TRITON))
    found: list[str] = []
    kind = Kind(torch.bfloat16, added, True, True, False, 128, "X")
    race = races.run(kind, tuning.benchmark_on(torch.device("cuda"), found.append))
    assert [list(lap.seconds) for lap in race] == [["sdpa", "triton"]] * 2
    assert found == []


REFUSED_TO_TUNE = {
    "there are no races to run: torch sees no GPU, and a CPU's are run by calls": ([], {}),
    "there are no races to run: POSENC_RACES turns them off": ([], {"POSENC_RACES": "0"}),
}


@pytest.mark.parametrize("said", REFUSED_TO_TUNE)
def test_the_command_says_why_it_races_nothing(
    said: str, gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, environ = REFUSED_TO_TUNE[said]
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["kernel", "--tune", *words]) == 1
    assert capsys.readouterr().err == f"posenc: error: {said}\n"


def test_the_command_knows_the_words_of_kinds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "--tune", "bfloat17"]) == 1
    said = "--tune must be words of a kind, such as 'bfloat16, plain, causal, forward, 64 channels, X', got 'bfloat17'"
    assert capsys.readouterr().err.endswith(f"posenc: error: {said}\n")


# --- in FlashAttention's place ----------------------------------------------------------------------------------------


@dataclass
class Implementation:
    """Takes the place of PyTorch's FlashAttention on the CPU, with the conditions of FlashAttention 3 and 4: no
    dropout, no mask, and the layouts that they take."""

    library: torch.library.Library | None = None
    calls: int = 0

    def remove(self) -> None:
        self.library = None

    def __call__(self) -> "Implementation":
        self.library = torch.library.Library("aten", "IMPL", "CPU")
        name = "_scaled_dot_product_flash_attention_for_cpu"
        with warnings.catch_warnings(action="ignore"):  # that it takes the place of another
            self.library.impl(name, self.forward, "CPU")
        return self

    def forward(self, q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, **more: Any) -> Any:
        self.calls += 1
        assert dropout_p == 0
        assert more.get("attn_mask") is None
        assert q.size(-1) == k.size(-1) == v.size(-1)
        assert not is_causal or q.size(2) == k.size(2)
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
        scores = q @ k.mT * more["scale"]
        scores = scores.masked_fill(torch.ones(scores.shape[2:]).triu(1).bool(), -torch.inf) if is_causal else scores
        return scores.softmax(-1) @ v, scores.logsumexp(-1)


@pytest.fixture
def implementation() -> Iterator[Implementation]:
    made = Implementation()
    attention = torch.nn.attention
    if not hasattr(attention, "register_flash_attention_impl"):
        pytest.skip("torch before 2.11 has no place for another")
    attention.register_flash_attention_impl("of a test", register_fn=made)
    attention.activate_flash_attention_impl("of a test")
    yield made
    attention.restore_flash_attention_impl()
    del attention._registry._FLASH_ATTENTION_IMPLS["of a test"]


@pytest.mark.parametrize("how", [{"is_causal": True}, {}, {"is_causal": True, "scale": 0.3}], ids=str)
@pytest.mark.parametrize("scheme", [None, RoPE(16), Shaw(16, 5, values=False)], ids=["nothing", "rope", "shaw"])
@pytest.mark.parametrize("widths", [(16, 16), (16, 24)], ids=str)
def test_what_is_in_the_place_of_flash_attention_runs_what_adds_nothing(
    widths: tuple[int, int], scheme: Scheme | None, how: dict[str, Any], implementation: Implementation
) -> None:
    """With its gradient, of grouped queries too; and nothing else."""
    shapes = zip((6, 2, 2), (16, *widths), strict=True)
    x = [torch.randn(2, heads, 37, width, requires_grad=True, dtype=torch.float64) for heads, width in shapes]
    outs = [posenc.attention(*x, scheme, backend=name, **how) for name in ("sdpa", "reference")]
    mine, exact = (torch.autograd.grad(out.square().sum(), x) for out in outs)  # type: ignore[union-attr]
    torch.testing.assert_close(outs[0], outs[1])
    torch.testing.assert_close(mine, exact)
    assert implementation.calls == (0 if isinstance(scheme, Shaw) else 1)
