"""Runs the steps of a plan that are not done yet, and writes their page."""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import posenc
from posenc.arguments import check_choice
from posenc.tools.bench.gpu.journal import Journal, latest
from posenc.tools.bench.gpu.lanes import Lanes, Worker
from posenc.tools.bench.gpu.page import page
from posenc.tools.bench.gpu.place import Place
from posenc.tools.bench.gpu.plans import PLANS
from posenc.tools.bench.gpu.predictions import told
from posenc.tools.bench.gpu.step import Step
from posenc.tools.kit.files import digest_of, write_whole

DONE, LATE = "done", "out of time"
LOG = "gpu.log"
Say = Callable[[str], None]


def run(
    plan: str, place: Place, out: Path, seconds: float, resume: bool, say: Say, only: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The lines of all results in ``out``, of this run and of those that it goes on from. It stops after ``seconds``;
    ``only`` names the steps to run, if not all.

    Each step has its own limit at first; what is left of the time is then given to those that needed more.

    ValueError if there are results already and ``resume`` is false, if they are of another plan, or for a step that
    does not exist.
    """
    for chosen in only:
        check_choice("step", chosen, [step.name for step in PLANS[plan]])
    until = time.monotonic() + seconds
    name = plan.replace(" ", "-")
    path = out / f"{name}.jsonl"
    with Journal.opened(path) as journal:
        _begin(journal, plan, place, path, resume)
        begun = len(journal.records)
        for is_last in (False, True):
            for step in steps(plan, only):
                limit = until if is_last else min(until, time.monotonic() + step.limit)
                if not (is_last and step.name in _hopeless(journal)):
                    _step(journal, begun, plan, step, place, out, limit, say)
                write_whole(out / f"{name}.md", page(journal.records).encode())
        return journal.records


def steps(plan: str, only: Sequence[str] = ()) -> list[Step]:
    """The steps of a plan, or those of them that are named."""
    return [step for step in PLANS[plan] if not only or step.name in only]


def _begin(journal: Journal, plan: str, place: Place, path: Path, resume: bool) -> None:
    at = {"at": time.strftime("%Y-%m-%d %H:%M:%S%z"), "sources": _sources()}
    if not journal.records:
        journal.add({"plan": plan, "is_dry": place.is_dry, **at, **told(plan, place.sizes)})
        return
    head = journal.records[0]
    if (head.get("plan"), head.get("is_dry")) != (plan, place.is_dry):
        what = "a dry run" if head.get("is_dry") else "no dry run"
        raise ValueError(f"{path} holds {head.get('plan')!r}, {what}: name another folder with --out")
    if not resume:
        raise ValueError(f"{path} holds results: --resume goes on from them, --out names another folder")
    if [record["sources"] for record in journal.records if "sources" in record][-1:] != [at["sources"]]:
        journal.add(at)


def _sources() -> str:
    """A short hash of the package's sources, by which the page tells results of others."""
    root = Path(posenc.__file__).parent
    return digest_of(b"".join(path.read_bytes() for path in sorted(root.rglob("*.py"))))


def _hopeless(journal: Journal) -> set[str]:
    """Steps whose last process could not begin."""
    ends = {record["step"]: record["outcome"] for record in journal.records if "outcome" in record}
    return {step for step, outcome in ends.items() if outcome not in (DONE, LATE)}


def _step(journal: Journal, begun: int, plan: str, step: Step, place: Place, out: Path, until: float, say: Say) -> None:
    begin = time.monotonic()
    again = {item for of, item in journal.again(begun) if of == step.name}
    if begin >= until or (_is_done(journal, step) and not again):
        return
    try:
        items = step.items(place)
    except ValueError as error:
        outcome, items = str(error), ()
    else:
        done = {item for of, item in latest(journal.records) if of == step.name}
        names = [name for name in items if name not in done or name in again]
        say(f"{step.title}: {len(names)} of {len(items)}")
        start = partial(
            Worker,
            (plan, step.name, *(["dry"] if place.is_dry else [])),
            out / LOG,
            _environment(place, step.count(place)),
        )
        lanes = Lanes(start, names, step.each, until, lambda found: journal.add({"step": step.name, **found}))
        outcome = lanes.run(step.count(place))
    ended = {"step": step.name, "outcome": outcome, "of": len(items), "took": round(time.monotonic() - begin, 1)}
    journal.add(ended)
    say(f"  {outcome}, {ended['took']} s")


def _is_done(journal: Journal, step: Step) -> bool:
    return any(record.get("step") == step.name and record.get("outcome") == DONE for record in journal.records)


def _environment(place: Place, processes: int) -> dict[str, str]:
    """Of several processes each has a core, and none starts others that compile. All find what another has compiled:
    PyTorch's compiler would name another folder, from its first graph in a process on."""
    alone = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"} if processes > 1 else {}
    dry = {"TRITON_INTERPRET": "1"} if place.is_dry else {}
    kept = Path(os.environ.get("TRITON_HOME", Path.home()), ".triton", "cache")  # Triton's own
    return {"TRITON_CACHE_DIR": str(kept), **os.environ, "PYTHONUNBUFFERED": "1", **alone, **dry}


def unwell(records: list[dict[str, Any]], chosen: Sequence[Step]) -> tuple[list[str], list[str]]:
    """The items that failed, and those of the steps that are not done."""
    items = latest(records).values()
    failed = [f"{r['step']}: {r['item']}" for r in items if "failed" in r or r.get("passed") is False]
    done = {r["step"] for r in records if r.get("outcome") == DONE}
    return failed, [step.name for step in chosen if step.name not in done]
