"""The examples train the same for any number of processes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def losses(example: str, processes: int, *options: str) -> list[float]:
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    ran = subprocess.run(
        [*program, str(ROOT / "examples" / example), "--steps", "3", *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [float(line.split()[-1]) for line in ran.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.survey
@pytest.mark.parametrize("example", ["context_parallel.py", "finetune_long_context.py"])
def test_losses_do_not_depend_on_the_number_of_processes(example: str) -> None:
    if example == "finetune_long_context.py":
        pytest.importorskip("transformers")
    alone = losses(example, 1)
    assert len(alone) == 3
    assert alone[-1] < alone[0]
    for processes, options in (
        (2, ()),
        (3, ("--order", "striped")),
        (2, ("--order", "documents", "--method", "ulysses")),
    ):
        assert losses(example, processes, *options) == pytest.approx(alone, abs=2e-6)  # six digits are printed
