"""The first minutes on a GPU, where there is none: what is killed goes on, what hangs ends, and what the page says."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from posenc.backends.triton import launch, operator
from posenc.tools.bench.gpu import (
    agreement,
    clocks,
    first,
    lanes,
    plans,
    predictions,
    run,
    step,
    timing,
    variants,
    ways,
)
from posenc.tools.bench.gpu.__main__ import QUICK, WHOLE, main
from posenc.tools.bench.gpu.agreement import Case
from posenc.tools.bench.gpu.journal import AGAIN, Journal
from posenc.tools.bench.gpu.page import DASH, MAIN, NOT_YET, fill, page, verdict
from posenc.tools.bench.gpu.place import PHASES, REAL, SMALL, Place, Sizes
from posenc.tools.bench.gpu.step import Step, answered
from posenc.tools.bench.measure import LeftOutError

MINUTES = plans.MINUTES
ROOT = Path(__file__).parents[2]

# A process as `worker` is one, without PyTorch: what it does goes by the name of an item.
WORKER = """
import json, os, sys, time
_, plan, step, descriptor, *dry = sys.argv
say = lambda record: os.write(int(descriptor), json.dumps(record).encode() + b"\\n")
if step == "dumb":
    sys.exit("it cannot begin")
say({"ready": True})
for line in sys.stdin:
    name = line.strip()
    if name.startswith("hang"):
        time.sleep(60)
    if name.startswith("die"):
        os.kill(os.getpid(), 11)
    time.sleep(0.02)
    found = {"broken": True, "failed": "an illegal access"} if name.startswith("break") else {"passed": True}
    say({"item": name, "seconds": 0.02, "process": os.getpid(), **found})
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its folder is of the path of modules."""
    (tmp_path / "tiny_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(lanes, "MODULE", "tiny_worker")
    return tmp_path


def steps(*named: tuple[str, list[str]], workers: int = 1, limit: float = 5.0) -> tuple[Step, ...]:
    return tuple(
        Step(name, name, limit, 0.3, lambda place, names=names: names, step.called(lambda place, name: {}), workers)  # type: ignore[misc]
        for name, names in named
    )


def went(monkeypatch: pytest.MonkeyPatch, out: Path, plan: tuple[Step, ...], **how: Any) -> list[dict[str, Any]]:
    monkeypatch.setitem(plans.PLANS, MINUTES, plan)
    given = {"seconds": 5.0, "resume": False, **how}
    return run.run(MINUTES, Place(True), out, given["seconds"], given["resume"], lambda line: None)


# --- processes --------------------------------------------------------------------------------------------------------


def test_what_hangs_dies_or_breaks_the_device_costs_only_itself(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["one", "hang", "two", "die", "three", "break", "four"]
    found = {r["item"]: r for r in went(monkeypatch, tiny, steps(("a", names))) if "item" in r}
    assert list(found) == names
    assert found["hang"]["failed"] == "it took longer than 0.3 s"
    assert found["die"]["failed"] == "its process ended by signal 11: see the log"
    assert found["break"]["failed"] == "an illegal access"
    assert "broken" not in found["break"]
    processes = [found[name]["process"] for name in ("one", "two", "three", "break", "four")]
    assert len(set(processes)) == 4
    assert processes[2] == processes[3]  # it takes the next item in the same process
    assert all(found[name]["passed"] for name in ("one", "two", "three", "four"))


def test_several_processes_take_every_item_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [str(n) for n in range(12)]
    found = [r for r in went(monkeypatch, tiny, steps(("a", names), workers=3)) if "item" in r]
    assert sorted(r["item"] for r in found) == sorted(names)
    assert len({r["process"] for r in found}) > 1


def test_a_step_that_cannot_begin_says_so_and_others_go_on(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = went(monkeypatch, tiny, steps(("dumb", ["one"]), ("a", ["two"])))
    assert [(r["step"], r["outcome"]) for r in records if "outcome" in r] == [("dumb", lanes.SILENT), ("a", "done")]
    assert "it cannot begin" in (tiny / "gpu.log").read_text()
    assert run.unwell(records, run.steps(MINUTES)) == ([], ["dumb"])


def test_a_step_out_of_time_goes_on_with_what_others_leave(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [str(n) for n in range(20)]
    plan = (*steps(("a", names), limit=0.2), *steps(("b", ["last"])))
    records = went(monkeypatch, tiny, plan)
    assert [(r["step"], r["outcome"]) for r in records if "outcome" in r] == [
        ("a", "out of time"), ("b", "done"), ("a", "done"),
    ]  # fmt: skip
    assert [r["item"] for r in records if r.get("step") == "a" and "item" in r] == names


def test_all_of_it_stops_in_time_and_goes_on(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = steps(("a", ["one", "hang"]), ("b", ["two"]))
    begin = time.monotonic()
    records = went(monkeypatch, tiny, plan, seconds=0.25)
    assert time.monotonic() - begin < 2
    assert "b" not in {r.get("step") for r in records}
    records = went(monkeypatch, tiny, plan, resume=True)
    assert [r["item"] for r in records if "item" in r] == ["one", "hang", "two"]


def test_what_was_too_slow_is_tried_again_by_the_next_run_alone(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = steps(("a", ["one", "hang", "die"]))
    records = went(monkeypatch, tiny, plan)
    assert [r["item"] for r in records if "item" in r] == ["one", "hang", "die"]  # once, in both passes
    assert records[2][AGAIN]
    (tiny / "tiny_worker.py").write_text(WORKER.replace("sleep(60)", "sleep(0)"))
    records = went(monkeypatch, tiny, plan, resume=True)
    assert [r["item"] for r in records if "item" in r] == ["one", "hang", "die", "hang"]
    assert run.unwell(records, plan) == (["a: die"], [])
    assert "| a | 3 | 2 | 0 | 1 |" in page(records)
    assert went(monkeypatch, tiny, plan, resume=True) == records


def test_a_result_that_cannot_be_written_ends_all_of_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> None:
        if b"two" in data:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("posenc.tools.bench.gpu.journal.put", full)
    with pytest.raises(OSError, match="No space left"):
        went(monkeypatch, tiny, steps(("a", ["one", "two", "three"])))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_killed_in_the_middle_nothing_is_lost_and_nothing_comes_twice(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny / "first-minutes.jsonl"
    child = os.fork()  # another process would import PyTorch
    if child == 0:
        try:
            went(monkeypatch, tiny, steps(("a", [str(n) for n in range(1000)])))
        finally:
            os._exit(1)
    while not (path.exists() and path.read_bytes().count(b"\n") > 5):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with path.open("ab") as file:  # as if it had been writing
        file.write(b'{"step": "a", "item": "hal')
    before = path.read_bytes().rpartition(b"\n")[0].splitlines()
    done = len(before) - 1
    names = [str(n) for n in range(done + 3)]
    records = went(monkeypatch, tiny, steps(("a", names)), resume=True)
    assert [r["item"] for r in records if "item" in r] == names
    assert path.read_bytes().splitlines()[: len(before)] == before


def test_results_of_other_sources_are_told_apart(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = went(monkeypatch, tiny, steps(("a", ["one"])))
    assert "versions of them" not in page(records)
    assert went(monkeypatch, tiny, steps(("a", ["one"])), resume=True) == records
    monkeypatch.setattr(run, "_sources", lambda: "another")
    changed = went(monkeypatch, tiny, steps(("a", ["one"])), resume=True)
    assert [record.get("sources") for record in changed] == [records[0]["sources"], None, None, "another"]
    assert "these are results of 2 versions of them" in page(changed)


def test_two_at_once_and_damaged_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    with Journal.opened(path) as journal:
        journal.add({"step": "a", "item": "one"})
        with pytest.raises(ValueError, match="is being written by another process"), Journal.opened(path):
            pass
    path.write_bytes(path.read_bytes() + b"nothing\n")
    with pytest.raises(ValueError, match=r"it.jsonl, line 2, is not a result"), Journal.opened(path):
        pass


def test_errors_of_items_say_what_they_are() -> None:
    def of(error: Exception) -> Callable[[], dict[str, Any]]:
        def raises() -> dict[str, Any]:
            raise error

        return raises

    place = Place(True)
    assert answered(place, of(LeftOutError("no room"))) == {"left_out": "no room"}
    assert answered(place, of(torch.OutOfMemoryError("CUDA"))) == {"failed": "out of memory: CUDA", AGAIN: True}
    assert answered(place, of(RuntimeError("an error\nof lines"))) == {"failed": "RuntimeError: an error"}


def test_a_device_that_no_longer_answers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def synchronize() -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert answered(Place(), dict) == {"failed": "RuntimeError: an illegal memory access", "broken": True}


# --- the command ------------------------------------------------------------------------------------------------------


def test_wrong_usage_and_what_is_missing_have_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")  # set back after the test
    monkeypatch.setattr("posenc.backends.triton.launch.missing", lambda: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jaxtyping" else object())
    out = ["--out", str(tmp_path)]

    def said(*words: str) -> tuple[int, str]:
        code = main([*words, *out])
        return code, capsys.readouterr().err.strip()

    assert said() == (1, f"posenc: error: jaxtyping cannot be imported by {sys.executable}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert said("--seconds", "0") == (2, "posenc: error: --seconds must be more than 0, got 0.0")
    if not torch.cuda.is_available():
        why = f"posenc: error: torch {torch.__version__} sees no CUDA device; --dry-run needs none"
        assert said() == (1, why)
    assert said("--dry-run", "--only", "nothing")[0] == 2
    assert not list(tmp_path.iterdir())
    (tmp_path / "first-minutes.jsonl").write_text('{"plan": "first minutes", "is_dry": true}\n')
    assert said("--dry-run")[1].endswith("holds results: --resume goes on from them, --out names another folder")
    (tmp_path / "first-minutes.jsonl").write_text('{"plan": "first minutes", "is_dry": false}\n')
    assert "no dry run: name another folder with --out" in said("--dry-run", "--resume")[1]
    monkeypatch.setattr("posenc.backends.triton.launch.missing", lambda: "Triton is not installed")
    assert said("--dry-run") == (1, "posenc: error: Triton is not installed")


# --- what is predicted, and the page ----------------------------------------------------------------------------------


def test_everything_that_is_predicted_or_decided_is_timed() -> None:
    timed = {*timing.TIMED.items(Place())}
    for told in predictions.PREDICTIONS:
        for way in (told.of, told.over):
            assert f"{told.length} {told.phase} {way}" in timed
    for now, backends in predictions.RULES.values():
        for way in (now, *backends.values()):
            assert {f"{REAL.lengths[0]} {phase} {way}" for phase in PHASES} <= timed
    assert {told.low < told.high for told in predictions.PREDICTIONS} == {True}
    assert {*timing.COMPILED.items(Place())} <= timed
    assert {*timing.PROFILES.items(Place())} <= timed
    assert {way for ways_ in MAIN.values() for way in ways_ if way} <= {name.split(" ", 2)[2] for name in timed}


def test_the_limits_of_the_steps_are_within_the_time() -> None:
    assert all(sum(step.limit for step in plan) <= WHOLE for name, plan in plans.PLANS.items() if name != plans.QUICK)
    quick = plans.PLANS[plans.QUICK]
    assert sum(step.limit for step in quick[1:]) + 10 <= QUICK  # the first step took 8 seconds
    assert all(step.each <= step.limit for plan in plans.PLANS.values() for step in plan)


def test_what_is_checked_quickly_is_of_the_checks() -> None:
    steps = agreement.SMALL_SIZES, agreement.REAL_SIZES, agreement.FEW_SIZES
    small, real, few = ({*each.items(Place())} for each in steps)
    assert few < small | real
    assert len(few) == len(agreement.FEW)
    for scheme in agreement.MAIN:
        assert {name for name in few & small if name.startswith(scheme)}
        assert {name for name in few & real if name.startswith(scheme)}


@pytest.mark.parametrize(
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
    [
        ("48 decoding plain", set()),
        ("48 decoding shaw, auto", {"auto"}),
        ("80 rotation rope", {"bytes"}),
        ("80 rotation copy", {"bytes"}),
        ("48 training rope, auto", {"auto"}),
    ],
)
def test_other_ways_run_too(name: str, told: set[str]) -> None:
    found = of(timing.TIMED, Place(True), name)
    assert set(found) == {"events", "host", "events_are", "graph_left_out"} | told


def test_what_is_compiled_once_is_found_by_all_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyTorch's compiler names a folder of its own in the process that it first compiles in, unless one is named."""
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    assert run._environment(Place(True), 1)["TRITON_CACHE_DIR"] == str(tmp_path / ".triton" / "cache")
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    assert run._environment(Place(True), 16)["TRITON_CACHE_DIR"] == "elsewhere"
