"""What `make gpu` writes, measured on the CPU, where FlexAttention without a score is left out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from posenc.tools.bench import gpu
from posenc.tools.bench.settings import Settings
from tests.bench.test_command import TINY
from tests.bench.test_run import Counting

SETTINGS = Settings(
    **TINY | {"lengths": (64, 128), "compiled": True}, schemes=("alibi", "shaw"), rotated_dtypes=("float32",)
)
TESTS = '<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="40" time="1.5"/></testsuites>'


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    path = tmp_path / "tests.xml"
    path.write_text(TESTS)
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled."""
    monkeypatch.setattr(gpu, "_compiled", lambda: pytest.fail("it is measured on CUDA alone"))
    monkeypatch.setattr(gpu, "FLEX", "tiled")
    monkeypatch.setattr("posenc.tools.bench.peers.compiled", lambda function, *inputs: lambda: function(*inputs))


@pytest.fixture
def found(quick: None, tests: Path) -> dict[str, Any]:
    return gpu.report(SETTINGS, tests, Counting(), lambda told: None)


def test_everything_that_was_asked_for_is_there(found: dict[str, Any]) -> None:
    assert found["tests"] == {"tests": 40, "failures": 2, "errors": 1, "skipped": 3}
    assert found["versions"]["torch"] == torch.__version__
    assert found["machine"]["device"] == "cpu"
    asked = [(r["length"], r["phase"], r["scheme"]) for r in found["attention"]]
    assert asked == [(n, p, s) for n in (64, 128) for p in ("forward", "training") for s in ("alibi", "shaw")]
    for record in found["attention"]:
        results = record["results"]
        assert {"plain", gpu.BARE, "tiled", record["auto"]} == set(results)
        assert results[gpu.BARE] == {"left_out": "FlexAttention is measured on CUDA alone"}
        assert results["plain"]["ratio"] == [1, 1, 1]
        assert results[record["auto"]]["ratio"][0] > 0
    (rotation,) = found["rotation"]
    assert rotation["bytes"] == 4 * 4 * 2 * 16 * 8  # queries and keys, read and written, of four bytes
    assert "seconds" in rotation["results"][gpu.COPY]
    json.dumps(found)


def test_the_page_has_tests_ratios_and_bandwidth(found: dict[str, Any]) -> None:
    first = found["attention"][0]
    for way, ratio in (("plain", 1.0), (gpu.BARE, 1.25), ("tiled", 2.5)):
        first["results"][way] = {
            "seconds": [ratio / 1e3] * 3,
            "ratio": [ratio] * 3,
            "ratio_to_flex": [ratio / 1.25] * 3,
        }
    first["auto"] = "tiled"
    copy, ours = ({"seconds": [x] * 3} for x in (1e-6, 4e-6))
    found["rotation"][0]["results"] = {gpu.COPY: copy, "posenc": ours, "another": {"left_out": "No module named 'it'"}}
    page = gpu.page(found)
    assert "| tests that need a GPU | 40 tests, 2 failures, 1 errors, 3 skipped |" in page
    assert "## Forward, over scaled_dot_product_attention" in page
    assert "| alibi | tiled | **2.50 ± 0.00** |" in page
    assert "## Forward, over FlexAttention without a score" in page
    assert "| alibi | tiled | **2.00 ± 0.00** |" in page
    assert "| FlexAttention without a score | 1.25 | – (1) |" in page
    assert f"| float32 | {gpu.COPY} | {found['rotation'][0]['bytes'] / 1e-6 / 1e9:.0f} | 100% |" in page
    assert "| float32 | posenc | 1 | 25% |" in page
    assert "(1) No module named 'it'" in page


def test_the_command_writes_both_and_says_that_tests_failed(
    quick: None, tests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "DEFAULTS", {**SETTINGS.to_dict(), "lengths": (64,)})
    out = tmp_path / "out"
    assert gpu.main(["--tests", str(tests), "--out", str(out)]) == 1
    assert "tests failed" in capsys.readouterr().err
    assert json.loads((out / "gpu.json").read_text())["tests"]["failures"] == 2
    assert (out / "gpu.md").read_text().startswith("# posenc on a GPU\n")
    tests.write_text(TESTS.replace('errors="1" failures="2"', 'errors="0" failures="0"'))
    assert gpu.main(["--tests", str(tests), "--out", str(out)]) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"posenc: error: torch {torch.__version__} sees no CUDA device\n"
    assert not (tmp_path / "out").exists()


def test_another_file_than_pytests_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("not xml", "<testsuite tests='1'/>"):
        (tmp_path / "other.xml").write_text(text)
        words = ["--device", "cpu", "--tests", str(tmp_path / "other.xml"), "--out", str(tmp_path)]
        assert gpu.main(words) == 2
        assert "other.xml must be what pytest --junitxml writes, got " in capsys.readouterr().err
