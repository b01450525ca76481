"""`make gpu` where there is no GPU: what it lists, interprets and writes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from research.benchmarks.gpu import run

TIMED = {"plain": [1.0], "triton": [0.5]}
RECORD: dict[str, Any] = {
    "scheme": "alibi", "length": 4096, "phase": "forward", "auto": "triton", "ms": TIMED,
    "ratio": {"plain": [1.0, 1.0, 1.0], "triton": [0.5, 0.4, 0.6]},
    "refused": {"sdpa": "it adds to scores"}, "failed": {"flex": "RuntimeError: a | of\ntwo lines"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.triton
def test_a_dry_run_lists_tests_and_times_interpreted_kernels(tmp_path: Path) -> None:
    command = [run.__file__, "--dry-run", "--tests", "tests/backends/test_triton_decode.py", "--out", str(tmp_path)]
    told = subprocess.run([sys.executable, *command], cwd=run.ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert "test_triton_decode.py::test_heads_that_share_keys" in told.stdout
    assert found["tests"]["code"] == 0
    assert found["environment"]["kernels"].startswith("interpreted")
    rows = [(each["scheme"], each["phase"], sorted(each["ratio"])) for each in found["records"]]
    ways = ["plain", "sdpa", "triton"]
    assert rows == [(scheme, phase, ways) for phase in run.PHASES for scheme in run.DRY_SCHEMES]


def test_the_page_has_every_way_and_every_failure() -> None:
    found = {"environment": {"torch": "2"}, "tests": {"command": "pytest", "summary": "3 passed"}, "records": [RECORD]}
    page = run.page(found)
    assert "`pytest`: 3 passed" in page
    assert "## Forward, 4,096 tokens" in page
    assert "| plain, ms | 1 |  |  |" in page
    assert "| alibi | **0.50 ± 0.10** | failed | – |" in page
    assert "| alibi | forward | flex | RuntimeError: a \\| of two lines |" in page


@pytest.mark.parametrize(
<<<<<<< HEAD
    ("found", "said"),
    [(DASH, "not measured"), ("0.80", "below"), ("0.90", "as predicted"), ("1.00", "as predicted"), ("1.20", "above")],
)
def test_verdicts(found: str, said: str) -> None:
    assert verdict(found, 0.9, 1.0) == said


def timed(name: str, graph: float | None, events: float, **more: Any) -> dict[str, Any]:
    clock = {} if graph is None else {"graph": [graph] * 3}
    return {
        "step": "times",
        "item": f"4096 {name}",
        "seconds": 1,
        "events": [events] * 3,
        "host": [0.1] * 3,
        **clock,
        **more,
    }


def test_the_page_says_what_was_predicted_what_came_and_what_it_changes() -> None:
    sizes = Sizes(**{**vars(SMALL), "lengths": (4096, 16384)})
    records: list[dict[str, Any]] = [
        {"plan": MINUTES, "is_dry": False, **predictions.told(MINUTES, sizes)},
        {"step": "first", "item": "versions", "seconds": 1, "about": {"torch": "2.11.0"}},
        {"step": "first", "item": "copy", "seconds": 1, "graph": [2.0] * 3, "events": [3.0] * 3, "bytes": 6 * 10**9},
        {"step": "first", "outcome": "done", "of": 3, "took": 2.0},
        {"step": "real", "item": "alibi, 64", "seconds": 1, "passed": False, "worst": "output",
         "errors": {"output": ["nan", "1.00e-02"], "log-sum-exp": ["1.00e-09", "1.00e-03"]}},
        {"step": "tests", "item": "one", "seconds": 1, "passed": False, "told": "a long\nstory"},
        {"step": "tests", "item": "two", "seconds": 1, "passed": True},
        {"step": "tests", "item": "three", "seconds": 1, "left_out": "needs two GPUs"},
        timed("forward flash", 1.0, 1.5),
        timed("forward cuDNN", 0.6, 0.7),
        timed(f"forward {ways.PLAIN}", 1.2, 1.3, auto="sdpa"),
        timed("forward nothing added, flex", 1.0, 1.1),
        timed("forward alibi, triton", 1.4, 1.6, auto="flex"),
        timed("forward alibi, flex", None, 2.0),  # so all three are compared between events
        timed("forward plain", 0.6, 0.7),
        timed("decoding plain", 0.1, 0.1),
        timed("decoding alibi, auto", 0.2, 0.3),
        {"step": "times", "item": "4096 training flash", "seconds": 1, "left_out": "out of memory"},
    ]  # fmt: skip
    told = page(records)
    assert "A dry run" not in told
    assert "| copy | 3,000 GB/s (graph) |" in told
    assert "| real | alibi, 64 | output nan, allowed 1.00e-02 |" in told
    assert "| tests | one | a long story |" in told
    assert "| cuDNN | flash | 4,096 | forward | 0.50 to 0.80 | 0.60 | as predicted |" in told
    assert "| alibi, triton | flash | 4,096 | forward | 0.90 to 1.11 | 1.40 | above |" in told
    assert "| alibi, triton | alibi, flex | 4,096 | forward | 0.50 to 0.90 | 0.80 | as predicted |" in told
    assert "| learned t5, triton | learned t5, flex | 4,096 | training | 0.05 to 0.50 | – | not measured |" in told
    assert "| nothing added | 5% | 4,096 | forward | sdpa | sdpa | stays |" in told
    changed = "a line in distance (ALiBi), 4,096, forward: triton, not flex"
    assert (
        f"- checks: 1 of 3 passed; failed: alibi, 64; one\n- choices of auto: 1 of 2 stay; {changed}; 4 not measured\n"
        in told
    )
    assert "| what | forward 4,096 | decoding 4,096 |\n" in told
    assert "| ALiBi | 1.40 / 2.33 | 2.00 |\n" in told
    graphs, _, one_by_one = told.partition("Called one by one")
    assert "| ALiBi by flex |" not in graphs
    assert "| ALiBi by flex | 1.33 / 2.86 | – |\n" in one_by_one
    assert "| a line in distance (ALiBi) | 5% | 4,096 | forward | flex | triton | changes |" in told
    assert "| a learned table (T5) | 5% | 4,096 | forward | – | not measured | not measured |" in told
    assert "| alibi, flex | – | 2.000 ± 0.000 | 1.33 | 2.86 | 2.86 |" in told
    assert "| alibi, flex | 4,096 | forward | 0.100 ± 0.000 | 0.000 | 2.000 |" in told
    assert "| times | 4096 training flash | out of memory |" in told
    assert "| real | 1 | 0 | 0 | 1 | 1 | not yet |" in told
    json.dumps(records)


def test_other_pages_have_summaries_of_results(tmp_path: Path) -> None:
    path = tmp_path / "it.md"
    path.write_text("one\n<!-- gpu: it.jsonl -->\nold\n<!-- end -->\ntwo\n")
    assert fill(path) == f"one\n<!-- gpu: it.jsonl -->\n\n{NOT_YET}\n\n<!-- end -->\ntwo\n"
    records = [
        {"plan": MINUTES, "predictions": [], "rules": []},
        timed("forward flash", 1.0, 1.0),
        timed("forward rope, auto", 2.0, 2.0),
    ]
    (tmp_path / "it.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    path.write_text(fill(path))
    assert fill(path).count("| RoPE | 2.00 / – |\n") == 2
    assert fill(path).endswith("\n<!-- end -->\ntwo\n")
    assert fill(path) == path.read_text()


def test_the_documentation_has_the_summaries_of_the_results_kept() -> None:
    page = ROOT / "docs" / "gpu.md"
    kept = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("research/benchmarks/results/gpu/*/*.jsonl")
        if path.stem in ("first-minutes", "quick")
    }
    assert len(kept) == 2
    assert kept <= {name.removeprefix("../") for name in re.findall("<!-- gpu: (.*) -->", page.read_text())}
    assert fill(page) == page.read_text()


# --- what is run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["far 32x16 4w7", "near 16 4w7"])
def test_other_sizes_and_stages_are_put_back(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def called() -> tuple[()]:
        seen.append((launch.sizes_of(64, True)[0], operator.squares_of("forward_near", {}, 64)))
        return ()

    seen: list[Any] = []
    monkeypatch.setattr(variants, "call_of", lambda place, name: (called, {}))
    before = launch.sizes_of, launch.squares_of, operator.squares_of
    variants._work(Place(True), f"alibi 16 {how}")()
    variants._work(Place(True), f"alibi 16 {variants.TAKEN}")()
    assert before == (launch.sizes_of, launch.squares_of, operator.squares_of)
    (sizes, near), taken = seen
    if how.startswith("far"):
        assert (sizes, near) == (launch.Sizes(32, 16, 32, 4, 7), taken[1])
    else:
        assert (sizes, near) == (taken[0]._replace(square=16), {"num_warps": 4, "num_stages": 7})


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Place:
    """The CPU as if it were a GPU: events and graphs are stand-ins, so that what needs them is run here too."""

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = time.perf_counter()

        def elapsed_time(self, end: "Event") -> float:
            return 1e3 * (end.at - self.at)

    class Graph:
        def replay(self) -> None:
            """Writes nothing."""

    stream = SimpleNamespace(wait_stream=lambda other: None)
    told = SimpleNamespace(major=9, minor=0, multi_processor_count=132, total_memory=2**36)
    for name, value in {
        "Event": Event,
        "CUDAGraph": Graph,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda it: nullcontext(),
        "graph": lambda it: nullcontext(),
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "memory_allocated": lambda: 2**40,
        "get_device_properties": lambda device: told,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(clocks, "CACHE", 16)
    monkeypatch.setattr(clocks, "BUDGET", 0.001)
    monkeypatch.setattr(agreement, "POISONED", range(4))
    monkeypatch.setattr(Place, "device", torch.device("cpu"))
    monkeypatch.setattr(Place, "sizes", SMALL)
    return Place()


def of(what: Step, place: Place, item: str) -> dict[str, Any]:
    """The result of an item of a step."""
    found: list[dict[str, Any]] = []
    what.serve(place, iter((item,)), lambda: None, lambda name, result: found.append(result))
    return found[0]


def test_what_a_gpu_is_asked_is_run_here_with_stand_ins(pretended: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for item in first.ITEMS:
        found = of(first.FIRST, pretended, item)
        assert "failed" not in found
        if item == "versions":
            assert found["about"]["capability"] == "9.0"
        else:
            assert set(found) >= {"host", "events", "graph"}
    found = of(timing.TIMED, pretended, "48 training flash")
    assert min(found[clock][0] for clock in ("host", "events", "graph")) > 0
    found = agreement.in_a_graph(pretended, CASE)
    assert (found["passed"], len(found["differ"])) == (False, 5)  # what is replayed here writes nothing
    monkeypatch.setattr(agreement, "LARGE", (2, 2, 16, 16))
    assert agreement.large(pretended, "alibi", True, backend="native")["passed"]


def test_launches_are_counted_by_kernel(pretended: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def event(kind: str, name: str, ms: float, **more: Any) -> SimpleNamespace:
        times = {"device_time": 1e3 * ms, "cpu_time_total": 1e3 * ms, "cpu_parent": None}
        return SimpleNamespace(device_type=getattr(torch.profiler.DeviceType, kind), name=name, **times | more)

    events = [
        event("CUDA", "forward", 2.0),
        event("CUDA", "forward", 1.0),
        event("CUDA", "void at::fill", 0.5),
        event("CUDA", "a range", 9.0, is_user_annotation=True),
        event("CPU", "posenc::triton", 0.25),
        event("CPU", "aten::empty", 0.125, cpu_parent=object()),
    ]
    monkeypatch.setattr(
        torch.profiler, "profile", lambda activities: nullcontext(SimpleNamespace(events=lambda: events))
    )
    monkeypatch.setattr(timing, "REPEATED", 2)  # so the mean of two calls
    found = of(timing.PROFILES, pretended, "48 forward flash")
    kernels = {"forward": [1, 1.5], "void at::fill": [0.5, 0.25]}
    assert found == {"launches": 1.5, "on_device": 1.75, "operations": 0.5, "host": 0.125, "kernels": kernels}
    head = {"plan": MINUTES, "is_dry": False, "predictions": [], "rules": []}
    told = page([head, {"step": "profiles", "item": "it", "seconds": 1, **found}])
    assert "| what | launches | device | forward | other kernels | operations | host |" in told
    assert "| it | 1.5 | 1.750 | 1.500 | 0.250 | 0.5 | 0.125 |" in told
    events[:] = events[-2:]
    assert of(timing.PROFILES, pretended, "48 forward flash") == {"left_out": "the profiler saw no kernel"}


def test_a_call_that_cannot_be_captured_says_why(pretended: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(graph: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuses)
    found = clocks.timed(pretended, lambda: ())
    assert found["graph_left_out"] == "RuntimeError: operation not permitted when stream is capturing"
    assert "graph" not in found


CASE = Case("alibi", 37, 2, 1, 16, torch.float32, "packed", backend="native")


@pytest.mark.parametrize("fault", [0.0, 1e-4, torch.nan])
def test_a_comparison_sees_faults(fault: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real = agreement.posenc.attention

    def attention(*given: Any, backend: str, **how: Any) -> Any:
        out, lse = real(*given, backend=backend, **how)
        return (out + fault if backend == "native" else out), lse

    monkeypatch.setattr(agreement.posenc, "attention", attention)
    found = agreement.compared(Place(True), CASE)
    assert found["passed"] == (fault == 0)
    assert set(found["errors"]) == {
        "output",
        "log-sum-exp",
        "gradient of query",
        "gradient of key",
        "gradient of value",
    }


def test_without_a_causal_mask_alibi_is_that_of_both_directions() -> None:
    assert agreement.compared(Place(True), replace(CASE, at="both"))["passed"]


def test_three_runs_that_differ_in_a_bit_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agreement.thrice(Place(True), CASE) == {"passed": True, "differ": []}
    real, calls = agreement.posenc.attention, []

    def attention(*given: Any, **how: Any) -> Any:
        calls.append(1)
        out, lse = real(*given, **how)
        return out, torch.nextafter(lse, lse + 1) if len(calls) == 2 else lse

    monkeypatch.setattr(agreement.posenc, "attention", attention)
    found = agreement.thrice(Place(True), CASE)
    assert found == {"passed": False, "differ": ["log-sum-exp"]}


def test_what_is_compiled_is_read_from_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Triton keeps it: by device, the compiled kernels first."""
    of = ModuleType("posenc.backends.triton.made_up")
    kernels: dict[int, Any] = {}
    of.forward = SimpleNamespace(device_caches={0: (kernels, {})}, __module__=of.__name__)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, of.__name__, of)

    def work() -> tuple[()]:
        told = SimpleNamespace(shared=1024, num_stages=2, num_warps=8)
        kernels[len(kernels)] = SimpleNamespace(n_regs=168, n_spills=len(kernels), metadata=told)
        return ()

    work()
    kernels[-1] = SimpleNamespace(metadata=None)  # did not fit on the device
    found = timing.compiled_by(Place(True), work)
    expected = {"registers": 168, "spills": 2, "shared": 1024, "stages": 2, "warps": 8}
    assert found == {"compiled": {"forward": [expected]}}
    records = [{"step": "compiled", "item": f"4096 {it}", "seconds": 1, **found} for it in ("forward", "training")]
    head = {"plan": MINUTES, "is_dry": False, "predictions": [], "rules": []}
    assert "| forward | 168 | 2 | 1024 | 8 | 2 | 4096 forward | 1 |" in page([head, *records])


def test_steps_take_names_until_there_are_none() -> None:
    it = Step("a", "a", 1, 1, lambda place: ("one",), step.called(lambda place, name: {"name": name}))
    answers: dict[str, dict[str, Any]] = {}
    it.serve(Place(True), iter(("one", "two")), lambda: None, lambda n, found: answers.update({n: found}))
    assert answers == {"one": {"name": "one"}, "two": {"name": "two"}}


@pytest.mark.parametrize("phase", ["forward", "training", "decoding", "forward/24"])
@pytest.mark.parametrize("scheme", ["alibi", "learned t5"])
def test_a_bias_made_before_is_that_of_the_scheme(scheme: str, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "ROWS", 20)  # not a divisor of 48
    place = Place(True)
    (out, *gradients), (expected, *others) = (
        ways.call_of(place, f"48 {phase} {scheme}{by}")[0]() for by in (ways.MADE_BEFORE, ", reference")
    )
    # Rounding a bias b moves a score by 2^-9 |b|; a weight is the quotient of two that do. The outputs are rounded too.
    u = torch.finfo(torch.bfloat16).eps / 2
    furthest = 47 * 2**-4 if scheme == "alibi" else 0.0  # tables are of bfloat16
    values = float(place.inputs(48, phase).value.detach().abs().max())
    assert float((out - expected).detach().abs().max()) <= (2 * u * furthest + 4 * u) * values
    if phase == "training":
        assert [x.shape for x in gradients[:3]] == [x.shape for x in others[:3]]
        assert [x.shape for x in gradients[3:]] == ([] if scheme == "alibi" else [(1, 2, 48, 48)])


@pytest.mark.parametrize(
    ("name", "told"),
=======
    ("words", "code", "told"),
>>>>>>> 8722b8d8 (Replace the harness of a borrowed GPU by one script)
    [
        (["--dry-run", "--lengths", "100"], 2, "--lengths must be powers of two from 64 on, got 100"),
        (["--dry-run", "--schemes", "nothing"], 2, "nothing"),
        ([], 1, "sees no CUDA device; --dry-run needs none"),
    ],
)  # fmt: skip
@pytest.mark.triton
def test_what_cannot_run_is_named(
    words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # main sets it, and it must not outlive the test
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run.main(words) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("tests", "record", "told"), [
    ({"command": "pytest", "code": 1, "summary": "told"}, RECORD | {"failed": {}}, "1 failed: the tests (told)"),
    ({"command": "pytest", "code": 0, "summary": "1 passed"}, RECORD, "2 failed: alibi by flex, alibi by flex"),
])  # fmt: skip
@pytest.mark.triton
def test_a_failure_is_the_exit_code(
    tests: dict[str, Any], record: dict[str, Any], told: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(run, "tested", lambda *_: tests)
    monkeypatch.setattr(run, "timed", lambda *_: record)
    assert run.main(["--dry-run", "--schemes", "alibi", "--out", str(tmp_path)]) == 1
    assert told in capsys.readouterr().err
    assert len(json.loads((tmp_path / "gpu.json").read_text())["records"]) == 2
