"""The examples train and generate the same for any number of processes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.processes import in_processes
from tests.examples.scripts import load

ROOT = Path(__file__).resolve().parents[4]


def printed(processes: int, name: str, *options: str) -> list[str]:
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    ran = subprocess.run(
        [*program, str(ROOT / "examples" / name), *options], capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def losses(example: str, processes: int, *options: str) -> list[float]:
    return [float(line.split()[-1]) for line in printed(processes, example, "--steps", "3", *options)]


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


@pytest.mark.slow
@pytest.mark.survey
def test_generated_tokens_do_not_depend_on_the_number_of_processes() -> None:
    alone, held = printed(1, "sharded_decoding.py")
    assert len(alone.split()) == 17
    assert held.endswith(": 215")  # the last generated token is not read
    for processes in (2, 3):
        together, held = printed(processes, "sharded_decoding.py")
        assert together == alone
        shares = [int(number) for number in held.split(":")[1].split()]
        assert len(shares) == processes
        assert sum(shares) == 215
        assert max(shares) - min(shares) <= 2


def trained(fsdp: bool) -> list[tuple[float, ...]]:
    return load("ddp_fsdp").train(3, fsdp)


@pytest.mark.more
@pytest.mark.parametrize("fsdp", [False, True])
def test_what_positions_learn_does_not_depend_on_the_number_of_processes(fsdp: bool, tmp_path: Path) -> None:
    (alone,) = in_processes(1, tmp_path, trained, fsdp)
    page = (ROOT / "docs" / "recipes" / "ddp-and-fsdp.md").read_text(encoding="utf-8")
    said = re.findall(r"step \d: loss (\S+), gradients of the table and the biases (\S+) (\S+)", page)
    for here, numbers in zip(alone, said, strict=True):
        assert here == pytest.approx([float(number) for number in numbers], abs=2e-5)  # five digits are printed
    for found in in_processes(2, tmp_path, trained, fsdp):
        for here, there in zip(found, alone, strict=True):
            assert here == pytest.approx(there, rel=1e-4)  # float32, whose sums are in another order
