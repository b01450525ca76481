"""The command whole, on the CPU: processes that interpret the kernels, lines and a page."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posenc.tools.bench.gpu import plans, timing
from posenc.tools.bench.gpu.place import Place

pytestmark = [pytest.mark.slow, pytest.mark.triton]
STEPS = ("first", "few", "profiles")


def run(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "posenc.tools.bench.gpu", "--dry-run", "--out", str(out), *words]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True
    )


def lines(out: Path, plan: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / f"{plan}.jsonl").read_text().splitlines()]


def test_a_dry_run_does_every_item_once_and_resumes(tmp_path: Path) -> None:
    told = run(tmp_path, "--quick", "--only", *STEPS)
    assert told.returncode == 0, told.stdout + told.stderr + (tmp_path / "gpu.log").read_text()[-4000:]
    records = lines(tmp_path, "quick")
    place = Place(True)
    for step in plans.PLANS[plans.QUICK]:
        if step.name in STEPS:
            found = [r["item"] for r in records if r.get("step") == step.name and "item" in r]
            assert sorted(found) == sorted(step.items(place))
    left = {r["item"]: r["left_out"] for r in records if "left_out" in r}
    assert left == {"alibi, in a graph": "the CPU has no graphs"}
    assert [r["passed"] for r in records if "passed" in r] == [True] * 4
    profiles = [r for r in records if r.get("step") == "profiles" and "item" in r]
    assert len(profiles) == len(timing.PROFILES.items(place))
    assert all(r["operations"] > 0 for r in profiles)
    page = (tmp_path / "quick.md").read_text()
    assert "No number here says anything of a GPU." in page
    assert "| kernels | interpreted |" in page
    told = run(tmp_path, "--quick", "--only", *STEPS, "--resume")
    assert told.returncode == 0
    assert lines(tmp_path, "quick") == records


@pytest.mark.parametrize(
    ("plan", "step", "found"),
    [("variants", "variants", "kernels"), ("flex", "flex", "left_out")],
)
def test_the_other_commands_run_dry(plan: str, step: str, found: str, tmp_path: Path) -> None:
    """FlexAttention has no backward pass on the CPU."""
    told = run(tmp_path, f"--{plan}", "--only", step)
    assert told.returncode == 0, told.stdout + told.stderr + (tmp_path / "gpu.log").read_text()[-4000:]
    records = lines(tmp_path, plan)
    assert [r["outcome"] for r in records if "outcome" in r] == ["done"]
    assert {found in r for r in records if "item" in r} == {True}
