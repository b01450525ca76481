"""`make gpu` where there is no GPU: what it lists, interprets and writes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from research.benchmarks.gpu import run

RATIOS = {run.PLAIN: [1.0, 1.0, 1.0], "triton": [0.5, 0.4, 0.6]}
RECORD: dict[str, Any] = {
    "what": "alibi", "length": 4096, "width": 64, "phase": "forward", "auto": "triton",
    "ms": {"calls": {run.PLAIN: [1.0], "triton": [0.5]}, "graphs": {run.PLAIN: [0.5]}},
    "ratio": {"calls": RATIOS, "graphs": {run.PLAIN: [1.0, 1.0, 1.0]}},
    "refused": {"sdpa": "it adds to scores"}, "failed": {"flex": "RuntimeError: a | of\ntwo lines"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.triton
def test_a_dry_run_lists_tests_and_times_interpreted_kernels(tmp_path: Path) -> None:
    command = [
        run.__file__,
        "--dry-run",
        "--tests",
        "packages/posenc/tests/backends/test_triton_decode.py",
        "--out",
        str(tmp_path),
    ]
    told = subprocess.run([sys.executable, *command], cwd=run.ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert "test_triton_decode.py::test_heads_that_share_keys" in told.stdout
    assert found["tests"]["code"] == 0
    assert found["environment"]["kernels"].startswith("interpreted")
    rows = {(each["what"], each["phase"]): list(each["ratio"]["calls"]) for each in found["records"]}
    assert not any(each["failed"] for each in found["records"])
    for phase in run.PHASES:
        assert rows["rope", phase] == [run.PLAIN, "triton", "sdpa"]
        assert rows["alibi", phase] == [run.PLAIN, "triton", "sdpa", "mask made before"]
    for phase in run.PHASES[:2]:
        assert {"clone", "posenc", "posenc, compiled"} <= set(rows["rotation", phase])
        assert rows["norm and rotation", phase] == ["norms, then rotation", "norm_rotate", "norm_rotate, compiled"]
    assert len(rows) == 2 * 4 + 2


def test_the_page_has_every_way_and_every_failure() -> None:
    found = {"environment": {"torch": "2"}, "tests": {"command": "pytest", "summary": "3 passed"}, "records": [RECORD]}
    found["left"] = ["fire, decoding"]
    page = run.page(found)
    assert "`pytest`: 3 passed" in page
    assert "## Forward, 4,096 tokens" in page
    assert f"| alibi | 64 | {run.PLAIN} | 1 ms | 0.5 ms |" in page
    assert "| alibi | 64 | triton | **0.50 ± 0.10** | – |" in page
    assert "| alibi | forward | 64 | flex | RuntimeError: a \\| of two lines |" in page
    assert page.endswith("## Not begun, for want of time\n\n- fire, decoding\n")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--dry-run", "--lengths", "100"], 2, "--lengths must be powers of two from 64 on, got 100"),
        (["--dry-run", "--widths", "20"], 2, "--widths must be multiples of 16, got 20"),
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
    ({"command": "pytest", "code": 0, "summary": "1 passed"}, RECORD, "3 failed: alibi by flex, alibi by flex"),
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
    assert len(json.loads((tmp_path / "gpu.json").read_text())["records"]) == len(run.PHASES)
